"""Resources of the handlers: the clients of the two banks."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from payonce import Amount, Database, Settings, SharedBudget, call_observer, get_logger, post, well_known
from payonce.examples.transfers.policies import VENDOR_TIMEOUT_S
from payonce.examples.transfers.settings import TransfersSettings
from payonce.examples.transfers.store import post_opening

if TYPE_CHECKING:
    from payonce import HttpClient
    from payonce.vendors.northbank.simulator import NorthbankSimulator
    from payonce.vendors.southbank.simulator import SouthbankSimulator

BANK_CALLS_PER_S, BANK_BURST, BANK_WAIT_S = 500.0, 100, 0.4
"""The rate limit of each example bank for all our processes; waiting counts towards a call's timeout."""
OPENING: Final = (Amount(1_000_000, well_known("EUR")), Amount(1_000_000, well_known("JPY")))
"""Initial balances of the simulated banks."""

log = get_logger(__name__)


@asynccontextmanager
async def open_banks(settings: Settings, database: Database) -> AsyncIterator[Sequence[object]]:
    """Opens the clients of the example's banks. A bank without an address is simulated in this process."""
    # Imported late: commands that open no role need no HTTP client, which is slow to load.
    from payonce.vendors.northbank.client import NorthbankClient
    from payonce.vendors.southbank.client import SouthbankClient

    banks = settings.of(TransfersSettings)
    async with AsyncExitStack() as stack:
        northbank = await stack.enter_async_context(_bank("northbank", banks.northbank_url, settings))
        southbank = await stack.enter_async_context(_bank("southbank", banks.southbank_url, settings))
        if banks.southbank_url is None:
            async with database.transaction() as connection:
                await post_opening(partial(post, connection), OPENING)
        yield [
            client(
                http, SharedBudget(database, name, BANK_CALLS_PER_S, BANK_BURST, BANK_WAIT_S), watch=call_observer(name)
            )
            for client, http, name in (
                (NorthbankClient, northbank, "northbank"),
                (SouthbankClient, southbank, "southbank"),
            )
        ]


@asynccontextmanager
async def _bank(name: str, url: str | None, settings: Settings) -> AsyncIterator["HttpClient"]:
    from payonce import HttpClient

    timeout_s = VENDOR_TIMEOUT_S
    if url is not None:
        # The address is the operator's: it may be in their own network.
        async with HttpClient(name, url, timeout_s=timeout_s, allow_private=True) as http:
            yield http
        return
    journal = settings.simulators_dir / f"{name}.journal"
    log.warning("vendor_simulated", vendor=name, journal=str(journal), instead=f"set PAYONCE_{name.upper()}_URL")
    with closing(simulated_bank(name, journal)) as simulator:
        async with HttpClient(name, f"https://{name}.example", timeout_s=timeout_s, transport=simulator) as http:
            yield http


def simulated_bank(name: str, journal: Path) -> "NorthbankSimulator | SouthbankSimulator":
    """Opens new records, or continues existing ones."""
    from payonce.vendors.northbank.simulator import NorthbankSimulator
    from payonce.vendors.southbank.simulator import SouthbankSimulator

    if name == "northbank":
        northbank = NorthbankSimulator(journal)
        northbank.open_account("house")
        northbank.open_account("ann", *OPENING)
        return northbank
    southbank = SouthbankSimulator(journal)
    southbank.open_account("house", *OPENING)
    southbank.open_account("bob")
    return southbank
