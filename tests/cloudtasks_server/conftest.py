"""A database with the server's tables, and a server on it that speaks to Google's own client."""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager

import pytest

from payonce.testing import OpenStage
from tests.cloudtasks_server.desk import Desk, open_desk


@pytest.fixture(scope="session")
def payonce_components() -> Sequence[tuple[str, str]]:
    return (("cloudtasks", "payonce.queues.cloudtasks.server"),)


@pytest.fixture
def desk(stage: OpenStage) -> AbstractAsyncContextManager[Desk]:
    """A server that dispatches by itself."""
    return open_desk(stage)


@pytest.fixture
def still(stage: OpenStage) -> AbstractAsyncContextManager[Desk]:
    """A server whose clock stands and which dispatches only in steps."""
    return open_desk(stage, dispatching=False, frozen=True)
