"""The simulated exchange and chain on their own ports, for roles in several processes."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from payonce.service import Served
from payonce.services.payouts.resources import SIMULATED_KEY, simulated_chain, simulated_changenow
from payonce.settings import Settings
from payonce.testing.server import serving


@asynccontextmanager
async def serve(settings: Settings, host: str, *, exchange_port: int, chain_port: int) -> AsyncIterator[Served]:
    with simulated_changenow(settings) as changenow:
        async with (
            simulated_chain(settings, changenow) as node,
            serving(changenow, host, exchange_port) as exchange_url,
            serving(node, host, chain_port) as chain_url,
        ):
            environment = {
                "CHANGENOW_API_KEY": SIMULATED_KEY,
                "CHANGENOW_URL": exchange_url,
                "PAYONCE_CHAIN_URL": chain_url,
            }
            yield Served({"exchange": exchange_url, "chain": chain_url}, environment)
