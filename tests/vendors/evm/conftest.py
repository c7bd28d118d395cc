"""Every test of the wallet's client runs in process and over a socket."""

from functools import partial

import pytest

from tests.vendors.evm.wallets import OpenChain, on_chain


@pytest.fixture
def open_chain(over_sockets: bool) -> OpenChain:
    return partial(on_chain, over_sockets)
