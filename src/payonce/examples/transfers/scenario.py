"""The example in the crash explorer: one transfer that succeeds, and one that is refunded."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from payonce import (
    Account,
    Amount,
    Answer,
    Database,
    EffectRecord,
    HttpClient,
    Janitor,
    NotifyingFeed,
    Reads,
    Relay,
    Review,
    Transport,
    Tx,
    balance,
    well_known,
)
from payonce.examples.transfers import store
from payonce.examples.transfers.handlers import pay_in, refund, withdraw
from payonce.examples.transfers.invariants import INVARIANTS
from payonce.examples.transfers.model import AT_NORTHBANK, AT_SOUTHBANK, HOUSE, Order, State
from payonce.examples.transfers.policies import VENDOR_TIMEOUT_S
from payonce.vendors.books import Movement
from payonce.vendors.northbank.client import NorthbankClient
from payonce.vendors.northbank.simulator import NorthbankSimulator
from payonce.vendors.southbank.client import SouthbankClient
from payonce.vendors.southbank.simulator import SouthbankSimulator

NORTH, SOUTH = "northbank.test", "southbank.test"
EURO: Final = well_known("EUR")
OPENING: Final = Amount(100_000, EURO)
ORDERS: Final = (
    Order(id="t-1", source="ann", target="bob", amount="12.50", currency="EUR"),
    Order(id="t-2", source="ann", target="shut", amount="7.00", currency="EUR"),
)
ENDS: Final = {"t-1": State.PAID, "t-2": State.REFUNDED}

Simulators = Mapping[str, Any]


class TransfersScenario:
    name = "transfers"
    components = (("transfers", "payonce.examples.transfers"),)
    handlers = (withdraw, pay_in, refund)
    invariants = INVARIANTS

    def simulators(self, now: Callable[[], datetime]) -> Simulators:
        north, south = NorthbankSimulator(clock=now), SouthbankSimulator(clock=now)
        north.open_account(HOUSE)
        north.open_account("ann", OPENING)
        south.open_account(HOUSE, OPENING)
        south.open_account("bob")
        south.open_account("shut")
        south.close_account("shut")
        return {NORTH: north, SOUTH: south}

    def resources(self, reach: Callable[[str], Transport], database: Database, feed: NotifyingFeed) -> Sequence[object]:
        north, south = (
            HttpClient(host.partition(".")[0], f"https://{host}", timeout_s=VENDOR_TIMEOUT_S, transport=reach(host))
            for host in (NORTH, SOUTH)
        )
        return [NorthbankClient(north), SouthbankClient(south)]

    def relays(self, reach: Callable[[str], Transport]) -> Sequence[Relay]:
        return ()

    def janitors(self, database: Database, feed: NotifyingFeed) -> Sequence[Janitor]:
        return ()

    async def set_up(self, tx: Tx) -> None:
        await store.post_opening(tx.post, [OPENING])
        for order in ORDERS:
            await store.request(tx, order)

    def decide(self, review: Review, simulators: Simulators) -> tuple[Answer, Any, str | None]:
        """Only a contradiction makes a step wait for an operator; the banks' records then decide."""
        reference = f"{review.effect.key}:{review.effect.generation}"
        if self.happened(simulators)[reference]:
            raise AssertionError(f"{reference} is in the bank's records: no review should be necessary")
        return Answer.DID_NOT, None, None

    async def answered(self, tx: Tx, effect: EffectRecord, answer: Answer) -> None:
        return None

    def happened(self, simulators: Simulators) -> Counter[str]:
        movements: list[Movement] = [*simulators[NORTH].books.movements, *simulators[SOUTH].books.movements]
        return Counter(each.reference for each in movements if each.reference.partition("/")[0] in ENDS)

    def expected_parked(self) -> int:
        return 0

    async def check(self, read: Reads, simulators: Simulators) -> list[str]:
        rows = await read.fetch("select id, state from transfers.transfers order by id")
        found = [
            f"transfer {row['id']} is {row['state']}, not {ENDS[row['id']]}"
            for row in rows
            if row["state"] != ENDS[row["id"]]
        ]
        for path, host in ((AT_NORTHBANK, NORTH), (AT_SOUTHBANK, SOUTH)):
            ours, theirs = await balance(read, Account(path, EURO)), simulators[host].books.balance(HOUSE, EURO)
            if ours != theirs:
                found.append(f"{path} is {ours} in our books, and {theirs} in the bank's")
        return found


def scenarios() -> tuple[TransfersScenario, ...]:
    return (TransfersScenario(),)
