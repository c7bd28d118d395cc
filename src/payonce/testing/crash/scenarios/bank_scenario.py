"""Shared by the built-in scenarios: two banks, payments to make, and a comparison of both sides' records."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

import msgspec

from payonce.engine.database.connections import Database
from payonce.engine.effects import Answer, EffectRecord, Review
from payonce.engine.janitors import PRUNE_EVERY_S, Janitor
from payonce.engine.janitors.prune import Prune
from payonce.engine.ledger.model import Reads
from payonce.engine.messages.contract import Contract
from payonce.engine.messages.policy import Fixed, Policy
from payonce.engine.messages.transaction import NotifyingFeed, Tx
from payonce.engine.messages.work import Handler
from payonce.engine.outbox import Relay
from payonce.testing.crash.scenario import Decision, Now, PlainScenario, Reach, ScenarioOptions, Simulators
from payonce.testing.crash.scenarios import store
from payonce.testing.crash.scenarios.bank import Bank
from payonce.testing.crash.scenarios.client import BankClient, Banks
from payonce.testing.crash.scenarios.news import Listener, NewsRelay

HOME, AWAY, NEWS = "home.bank.test", "away.bank.test", "news.test"
RESOURCES: Final = {
    "bank.charge": "charges",
    "bank.purchase": "payments",
    "bank.broadcast": "broadcasts",
    "bank.quote": "quotes",
    "bank.wire": "wires",
}
MOVES_NO_MONEY: Final = "quotes"
LEASE_S: Final = 30.0

Faults = Mapping[tuple[str, str], tuple[str, ...]]


def policy(name: str, max_attempts: int | None = None, contract: Contract | None = None) -> Policy:
    return Policy(f"crash-{name}", max_attempts=max_attempts, backoff=Fixed(5), lease_s=LEASE_S, contract=contract)


@dataclass(frozen=True)
class BankScenario(PlainScenario):
    """A scenario on the two banks."""

    name: str
    handlers: Sequence[Handler]
    first: Policy
    payments: Mapping[str, int]
    """The payments, in minor units by id."""
    ends: Mapping[str, frozenset[str]]
    """The states in which each payment may end, whatever happens to its processes."""
    home_faults: Faults = field(default_factory=dict)
    away_faults: Faults = field(default_factory=dict)
    repeated: Sequence[str] = ()
    """Payments that are requested twice, as by an impatient customer."""
    prunes: bool = False
    publishes: bool = False
    """Whether each payment's end is published."""
    by_hand: Mapping[str, Policy] = field(default_factory=dict)
    """Payments whose message is pushed directly into that queue, bypassing the outbox."""
    misfits: Sequence[bytes] = ()
    """Directly pushed bodies that are no messages of the first queue: each is parked and logged."""
    wipes: bool = False
    redrives: bool = False
    redrives_reviews: bool = False

    components = (("crash", "payonce.testing.crash.scenarios"),)
    invariants = store.INVARIANTS

    def simulators(self, now: Now) -> Simulators:
        banks = {HOME: Bank("home", now, self.home_faults), AWAY: Bank("away", now, self.away_faults)}
        return {**banks, NEWS: Listener()}

    def resources(self, reach: Reach, database: Database, feed: NotifyingFeed) -> Sequence[object]:
        return [Banks(BankClient(HOME, reach(HOME)), BankClient(AWAY, reach(AWAY)))]

    def relays(self, reach: Reach) -> Sequence[Relay]:
        return [NewsRelay(NEWS, reach(NEWS))] if self.publishes else []

    def janitors(self, database: Database, feed: NotifyingFeed) -> Sequence[Janitor]:
        return [Janitor("prune", PRUNE_EVERY_S, Prune(database).tick)] if self.prunes else []

    @property
    def options(self) -> ScenarioOptions:
        first = next(iter(self.by_hand), None)
        pushed: dict[str, list[bytes]] = {}
        for payment_id, policy in self.by_hand.items():
            body = msgspec.json.encode({"correlation_id": payment_id, "payload": {"after": first}})
            pushed.setdefault(policy.queue, []).append(body)
        if self.misfits:
            pushed.setdefault(self.first.queue, []).extend(self.misfits)
        return ScenarioOptions(self.wipes, self.redrives, self.redrives_reviews, pushed)

    async def set_up(self, tx: Tx) -> None:
        await store.add(tx, self.payments)
        for number, payment_id in enumerate((*self.payments, *self.repeated)):
            if payment_id in self.by_hand:
                continue
            await tx.send(self.first, {}, correlation_id=payment_id, key=f"{payment_id} {number}")

    def expected_parked(self) -> int:
        return len(self.misfits)

    def decide(self, review: Review, simulators: Simulators) -> Decision:
        """Decides by the banks' current records: an operator cannot see requests in transit."""
        effect = review.effect
        for bank in _banks(simulators):
            for entry in bank.entries(RESOURCES[effect.kind]):
                if entry.reference == f"{effect.key}:{effect.generation}":
                    return Answer.HAPPENED, {"number": entry.number, "reference": entry.reference}, entry.number
        return Answer.DID_NOT, None, None

    async def answered(self, tx: Tx, effect: EffectRecord, answer: Answer) -> None:
        """Requests the payment again if its message is gone; the handler goes by the recorded effects."""
        if await tx.fetchval("select exists (select from payonce.live_messages where id = $1)", effect.message_id):
            return
        payment_id = effect.key.rpartition(" ")[2]
        await tx.send(self.first, {}, correlation_id=payment_id, key=f"{payment_id} {effect.id} {effect.revision}")

    def happened(self, simulators: Simulators) -> Mapping[str, int]:
        times: Counter[str] = Counter()
        for bank in _banks(simulators):
            times += bank.times()
        return times

    async def check(self, read: Reads, simulators: Simulators) -> list[str]:
        ours, theirs = await _performed(read), _booked(simulators)
        found = [f"the bank has {entry}, but we do not" for entry in (theirs - ours)]
        found += [f"we have {entry}, but the bank does not" for entry in (ours - theirs)]
        payments = await store.states(read)
        for payment_id, allowed in self.ends.items():
            if payments[payment_id].state not in allowed:
                found.append(
                    f"payment {payment_id} is {payments[payment_id].state}, not {' or '.join(sorted(allowed))}"
                )
        spent = sum(each.minor for each in payments.values() if each.state in ("paid", "credited"))
        if (on_the_books := await store.held(read, "payments/made")) != spent:
            found.append(f"payments of {spent} were made, but the ledger has {on_the_books}")
        parked = await read.fetch(
            "select distinct message_id from payonce.job_logs where status = 'parked' and last_error is not null"
        )
        if self.misfits and len(parked) != len(self.misfits):
            found.append(
                f"{len(self.misfits)} bodies are no messages, but the job log has {len(parked)} of them as parked"
            )
        published = sorted(_listener(simulators).events.values())
        if self.publishes and published != sorted((each.id, each.state) for each in payments.values()):
            found.append(f"the listener received {published}")
        return found


def _banks(simulators: Simulators) -> list[Bank]:
    return [cast(Bank, simulators[host]) for host in (HOME, AWAY)]


def _listener(simulators: Simulators) -> Listener:
    return cast(Listener, simulators[NEWS])


async def _performed(read: Reads) -> "Counter[tuple[Any, ...]]":
    rows = await read.fetch(
        """
        select kind, key, generation, (request->>'minor')::bigint as minor, outcome->>'number' as number
        from payonce.effects where state = 'performed'
        """
    )
    return Counter(
        (RESOURCES[row["kind"]], f"{row['key']}:{row['generation']}", row["minor"], row["number"])
        for row in rows
        if RESOURCES[row["kind"]] != MOVES_NO_MONEY
    )


def _booked(simulators: Simulators) -> "Counter[tuple[Any, ...]]":
    return Counter(
        (entry.resource, entry.reference, entry.minor, entry.number)
        for bank in _banks(simulators)
        for entry in bank.books
        if entry.resource != MOVES_NO_MONEY
    )
