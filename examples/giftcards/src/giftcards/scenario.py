"""What the crash explorer runs: one card that is issued, and one that the mint refuses."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from giftcards import store
from giftcards.handlers import issue_card
from giftcards.invariants import INVARIANTS
from giftcards.mint.client import MintClient
from giftcards.mint.simulator import BLOCKED, CARDS, MintSimulator
from giftcards.model import AT_MINT, State, ordered
from giftcards.policies import MINT_TIMEOUT_S
from payonce import Account, Amount, Database, HttpClient, NotifyingFeed, Reads, Tx, balance, well_known
from payonce.testing.crash import Now, PlainScenario, Reach, Scenario, Simulators

MINT: Final = "mint.test"
EURO: Final = well_known("EUR")
OPENING: Final = Amount(100_000, EURO)
CARDS_ORDERED: Final = (ordered("c-1", "ada", "25.00", "EUR"), ordered("c-2", BLOCKED, "10.00", "EUR"))
ENDS: Final = {"c-1": State.ISSUED, "c-2": State.REFUSED}


class GiftcardsScenario(PlainScenario):
    name = "giftcards"
    components = (("giftcards", "giftcards"),)
    handlers = (issue_card,)
    invariants = INVARIANTS

    def simulators(self, now: Now) -> Simulators:
        mint = MintSimulator()
        mint.deposit(OPENING)
        return {MINT: mint}

    def resources(self, reach: Reach, database: Database, feed: NotifyingFeed) -> Sequence[object]:
        http = HttpClient("mint", f"https://{MINT}", timeout_s=MINT_TIMEOUT_S, transport=reach(MINT))
        return [MintClient(http)]

    async def set_up(self, tx: Tx) -> None:
        await store.post_opening(tx.connection, [OPENING])
        for card in CARDS_ORDERED:
            await store.order(tx, card)

    def happened(self, simulators: Simulators) -> Mapping[str, int]:
        movements = _mint(simulators).books.movements
        issued = [movement.reference for movement in movements if movement.target == CARDS]
        return {reference: issued.count(reference) for reference in issued}

    async def check(self, read: Reads, simulators: Simulators) -> list[str]:
        rows = await read.fetch("select id, state from giftcards.cards order by id")
        ends = {row["id"]: row["state"] for row in rows}
        found = [f"card {card} is {ends[card]}, not {state}" for card, state in ENDS.items() if ends[card] != state]
        ours, theirs = await balance(read, Account(AT_MINT, EURO)), _mint(simulators).balance(OPENING)
        if ours != theirs:
            found.append(f"{AT_MINT} is {ours} in our books and {theirs} in the mint's")
        return found


def _mint(simulators: Mapping[str, Any]) -> MintSimulator:
    mint = simulators[MINT]
    assert isinstance(mint, MintSimulator)
    return mint


def scenarios() -> tuple[Scenario, ...]:
    return (GiftcardsScenario(),)
