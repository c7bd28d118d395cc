"""The application on a database of its own, asked in process as customers, operators and strangers would."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

from payonce.app.process import App
from payonce.http.application import build_web
from payonce.settings import Settings
from payonce.testing import OpenStage, ScratchDatabase
from tests.http.web_fixtures import servers, settings
from tests.services.billing.api.counter import Counter, Shop, resources, through
from tests.services.billing.billing_stage import open_house

__all__ = ["servers", "settings"]

OpenCounter = Callable[[], AbstractAsyncContextManager[Counter]]
OpenShop = Callable[[], AbstractAsyncContextManager[Shop]]


@pytest.fixture
def counter(settings: Settings, scratch: ScratchDatabase) -> OpenCounter:
    @asynccontextmanager
    async def opened() -> AsyncIterator[Counter]:
        async with App.open(settings) as app:
            app.resources = resources(app)
            yield Counter(app, build_web(app), scratch)

    return opened


@pytest.fixture
def shop(settings: Settings, scratch: ScratchDatabase, stage: OpenStage) -> OpenShop:
    @asynccontextmanager
    async def opened() -> AsyncIterator[Shop]:
        async with open_house(stage) as house, App.open(settings) as app:
            app.resources = [*resources(app), house.client, house.notifier]
            web = build_web(app)
            house.door._take = through(web, house.door)  # type: ignore[method-assign, assignment]
            yield Shop(app, web, scratch, house=house)

    return opened
