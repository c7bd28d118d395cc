"""A server whose databases have the examples' tables."""

import pytest

from payonce.testing import Servers


@pytest.fixture(scope="session")
def servers(shared_servers: Servers) -> Servers:
    return shared_servers
