"""A server whose databases have the tables of all services."""

import pytest

from payonce.testing import Servers


@pytest.fixture(scope="session")
def servers(shared_servers: Servers) -> Servers:
    return shared_servers
