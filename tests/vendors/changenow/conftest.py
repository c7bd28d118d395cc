"""Every test of the client runs in process and over a socket."""

from functools import partial

import pytest

from tests.vendors.changenow.at import OpenChangeNow, at_changenow


@pytest.fixture
def open_changenow(over_sockets: bool) -> OpenChangeNow:
    return partial(at_changenow, over_sockets)
