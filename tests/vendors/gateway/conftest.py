"""Every test of the client runs in process and over a socket."""

from functools import partial

import pytest

from tests.vendors.gateway.at import OpenGateway, at_gateway


@pytest.fixture
def open_gateway(over_sockets: bool) -> OpenGateway:
    return partial(at_gateway, over_sockets)
