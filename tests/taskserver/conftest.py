"""A database with the server's tables, and a server on it that speaks to Google's own client."""

from contextlib import AbstractAsyncContextManager

import pytest

from payonce.testing import OpenStage, Servers
from tests.taskserver.api import Api, open_api
from tests.taskserver.testbed import TaskServerTestbed, open_testbed


@pytest.fixture(scope="session")
def servers(shared_servers: Servers) -> Servers:
    return shared_servers


@pytest.fixture
def testbed(stage: OpenStage) -> AbstractAsyncContextManager[TaskServerTestbed]:
    """A server that dispatches by itself."""
    return open_testbed(stage)


@pytest.fixture
def still(stage: OpenStage) -> AbstractAsyncContextManager[TaskServerTestbed]:
    """A server whose clock stands and which dispatches only in steps."""
    return open_testbed(stage, dispatching=False, frozen=True)


@pytest.fixture
def api(stage: OpenStage) -> AbstractAsyncContextManager[Api]:
    """The API, here or at Google; nothing is dispatched."""
    return open_api(stage)
