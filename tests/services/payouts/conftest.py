"""A server whose databases have the tables of all services."""

from collections.abc import Iterator

import pytest

from payonce.app import all_migrations
from payonce.testing import Servers


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    running = Servers(all_migrations())
    yield running
    running.close()
