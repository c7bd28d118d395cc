"""A server whose databases have the tables of all services."""

import pytest

from payonce.testing import Servers


@pytest.fixture(scope="session")
def servers(servers_of_the_house: Servers) -> Servers:
    return servers_of_the_house
