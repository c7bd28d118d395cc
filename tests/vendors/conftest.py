"""Every test of a bank's client runs in process and over a socket."""

from functools import partial

import pytest

from tests.vendors.banks import OpenNorthbank, OpenSouthbank, at_northbank, at_southbank


@pytest.fixture(params=[False, True], ids=["in process", "sockets"])
def over_sockets(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def open_northbank(over_sockets: bool) -> OpenNorthbank:
    return partial(at_northbank, over_sockets)


@pytest.fixture
def open_southbank(over_sockets: bool) -> OpenSouthbank:
    return partial(at_southbank, over_sockets)
