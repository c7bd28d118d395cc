"""The application on a database of its own, asked in process."""

import base64
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from payonce.app.process import App
from payonce.http.application import build_web
from payonce.settings import Settings, load_settings
from payonce.testing import ScratchDatabase, Servers
from tests.http.client import WebClient

OpenWeb = Callable[[], AbstractAsyncContextManager[WebClient]]


@pytest.fixture(scope="session")
def servers(shared_servers: Servers) -> Servers:
    return shared_servers


@pytest.fixture
def settings(scratch: ScratchDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("DATABASE_URL", scratch.service_url)
    monkeypatch.setenv("PAYONCE_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("PAYONCE_KEYS", f"k1:{base64.b64encode(bytes(range(32))).decode()}")
    return load_settings()


@pytest.fixture
def web(settings: Settings, scratch: ScratchDatabase) -> OpenWeb:
    @asynccontextmanager
    async def opened() -> AsyncIterator[WebClient]:
        async with App.open(settings) as app:
            yield WebClient(app, build_web(app), scratch)

    return opened
