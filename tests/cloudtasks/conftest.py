"""A database with the tables of the server and of the example that is pushed."""

from collections.abc import Sequence

import pytest


@pytest.fixture(scope="session")
def payonce_components() -> Sequence[tuple[str, str]]:
    return (("cloudtasks", "payonce.queues.cloudtasks.server"), ("tally", "payonce.examples.tally"))
