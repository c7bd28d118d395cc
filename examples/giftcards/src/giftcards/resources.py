"""Opens the client of the mint. Without an address the mint is simulated in this process."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from typing import TYPE_CHECKING, Final

from giftcards.policies import MINT_TIMEOUT_S
from giftcards.settings import GiftcardsSettings
from giftcards.store import post_opening
from payonce import Amount, Database, HttpClient, Settings, SharedBudget, call_observer, get_logger, well_known

if TYPE_CHECKING:
    from giftcards.mint.simulator import MintSimulator

CALLS_PER_S, BURST, WAIT_S = 500.0, 100, 0.4
"""What the mint allows all our processes together; the wait is part of a call's time-out."""
OPENING: Final = (Amount(1_000_000, well_known("EUR")),)
"""What the simulated mint holds for us at first."""

log = get_logger(__name__)


@asynccontextmanager
async def open_mint(settings: Settings, database: Database) -> AsyncIterator[Sequence[object]]:
    from giftcards.mint.client import MintClient

    budget = SharedBudget(database, "mint", CALLS_PER_S, BURST, WAIT_S)
    url = settings.of(GiftcardsSettings).mint_url
    if url is not None:
        # The operator wrote the address: it may be in their own network.
        async with HttpClient("mint", url, timeout_s=MINT_TIMEOUT_S, allow_private=True) as http:
            yield [MintClient(http, budget, watch=call_observer("mint"))]
        return
    log.warning("vendor_simulated", vendor="mint", instead="set GIFTCARDS_MINT_URL")
    async with database.transaction() as connection:
        await post_opening(connection, OPENING)
    with closing(_simulated_mint(settings)) as simulator:
        async with HttpClient("mint", "https://mint.example", timeout_s=MINT_TIMEOUT_S, transport=simulator) as http:
            yield [MintClient(http, budget, watch=call_observer("mint"))]


def _simulated_mint(settings: Settings) -> "MintSimulator":
    from giftcards.mint.simulator import MintSimulator

    mint = MintSimulator(settings.simulators_dir / "mint.journal")
    mint.deposit(*OPENING)
    return mint
