"""A server whose databases have the tables of the task server and of the example that is pushed."""

from collections.abc import Iterator

import pytest

from payonce.engine.database.migrate import known_migrations
from payonce.testing import Servers

COMPONENTS = (("cloudtasks", "payonce.taskserver"), ("tally", "payonce.examples.tally"))


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    running = Servers(known_migrations(COMPONENTS))
    yield running
    running.close()
