"""A database with the server's tables, and a server on it that speaks to Google's own client."""

from contextlib import AbstractAsyncContextManager

import pytest

from payonce.testing import OpenStage, Servers
from tests.taskserver.api import Api, open_api
from tests.taskserver.desk import Desk, open_desk


@pytest.fixture(scope="session")
def servers(servers_of_the_house: Servers) -> Servers:
    return servers_of_the_house


@pytest.fixture
def desk(stage: OpenStage) -> AbstractAsyncContextManager[Desk]:
    """A server that dispatches by itself."""
    return open_desk(stage)


@pytest.fixture
def still(stage: OpenStage) -> AbstractAsyncContextManager[Desk]:
    """A server whose clock stands and which dispatches only in steps."""
    return open_desk(stage, dispatching=False, frozen=True)


@pytest.fixture
def api(stage: OpenStage) -> AbstractAsyncContextManager[Api]:
    """The API, here or at Google; nothing is dispatched."""
    return open_api(stage)
