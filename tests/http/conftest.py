"""The application on a database of its own, asked in process."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

from payonce.app.process import App
from payonce.http.application import build_web
from payonce.settings import Settings
from payonce.testing import ScratchDatabase
from tests.http.client import WebClient
from tests.http.web_fixtures import servers, settings

__all__ = ["servers", "settings"]

OpenWeb = Callable[[], AbstractAsyncContextManager[WebClient]]


@pytest.fixture
def web(settings: Settings, scratch: ScratchDatabase) -> OpenWeb:
    @asynccontextmanager
    async def opened() -> AsyncIterator[WebClient]:
        async with App.open(settings) as app:
            yield WebClient(app, build_web(app), scratch)

    return opened
