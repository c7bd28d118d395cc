"""The demonstration `transfers`: money moves between two banks that return wrong, lost and late responses, through
workers that are killed."""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from payonce.cli.demo.kit import DisruptedRun, Workload, run_workload, scratch_app, table, too_few_kills

if TYPE_CHECKING:
    from payonce import Reader, Settings
    from payonce.cli.demo.kit import App
    from payonce.examples.transfers.demo.banks import Banks
    from payonce.examples.transfers.demo.verdict import Verdict
    from payonce.examples.transfers.model import Order

TRANSFERS: Final = 2_000
SHARE_OF_FAULTS: Final = 0.2
POOR, CLOSED = 0.04, 0.08
"""Shares of transfers from accounts without money, and to accounts that accept none."""
PUT_AT_ONCE: Final = 500
LIMIT_S: Final = 120.0
"""Transfers unfinished by then count as lost."""


@dataclass(frozen=True)
class Report:
    seed: int
    verdict: "Verdict"
    faults: Mapping[str, int]
    disrupted: DisruptedRun

    @property
    def log_path(self) -> Any:
        return self.disrupted.log_path

    def figures(self) -> dict[str, Any]:
        verdict, disrupted = self.verdict, self.disrupted
        return {
            "transfers": verdict.requested,
            "finished": verdict.finished,
            "refused": verdict.refused,
            "compensated": verdict.compensated,
            "in_review": verdict.in_review,
            "lost": len(verdict.lost),
            "doubled": len(verdict.doubled),
            "unexplained": {code: amount.to_minor_text() for code, amount in verdict.unexplained.items()},
            "faults": dict(self.faults),
            "kills": disrupted.kills,
            "stops": disrupted.stops,
            "restarts": disrupted.restarts,
            "seconds": round(disrupted.seconds, 1),
            "seed": self.seed,
        }

    def complaints(self) -> list[str]:
        """Violations of the guarantee; empty if it was kept."""
        verdict, found = self.verdict, []
        if verdict.lost:
            found.append(f"{len(verdict.lost)} transfers are lost, first {verdict.lost[0]}")
        if verdict.doubled:
            found.append(f"{len(verdict.doubled)} transfers happened more than once, first {verdict.doubled[0]}")
        if verdict.in_review:
            found.append(f"{verdict.in_review} orders still wait for a person")
        found += [
            f"{amount} are unexplained: the banks' books and ours differ"
            for amount in verdict.unexplained.values()
            if amount
        ]
        found += [f"broken: {words}" for words in verdict.broken]
        if not self.faults:
            found.append("no call went wrong, so nothing was proven")
        return found + too_few_kills(self.disrupted.kills)

    def rendered(self) -> Any:
        meanings = {
            "transfers": "ordered, from accounts at Northbank to accounts at Southbank",
            "finished": "withdrawn once and paid in once, by the banks' own books",
            "refused": "by Northbank; nothing moved",
            "compensated": "refused by Southbank, and given back at Northbank",
            "in_review": "wait for a person",
            "lost": "neither finished nor waiting, or reported as done but not in the banks' books",
            "doubled": "withdrawn, paid or given back more than once, by the banks' own books",
            "unexplained": "minor units by which the banks' books and ours differ",
            "faults": "calls to the banks that went wrong, on purpose",
            "kills": "workers killed with SIGKILL in mid-work",
            "stops": "workers stopped until their leases were over",
            "restarts": "workers started again",
            "seconds": "from the first worker to the last transfer",
            "seed": "of the transfers, the faults and the blows",
        }
        figures = self.figures()
        figures["faults"] = sum(self.faults.values())
        figures["unexplained"] = ", ".join(f"{minor} {code}" for code, minor in figures["unexplained"].items())
        rows = [(name, figure, meanings[name]) for name, figure in figures.items()]
        return table("Every unit accounted for", ("figure", "", "meaning"), rows, right=("",))


async def demonstrate(settings: "Settings", seed: int, size: int | None) -> Report:
    from payonce.examples.transfers import QUEUES, store
    from payonce.examples.transfers.demo.banks import open_banks
    from payonce.examples.transfers.demo.verdict import judge
    from payonce.examples.transfers.model import ENDED

    orders = seeded_orders(size or TRANSFERS, seed)

    async def done(read: "Reader") -> int:
        counts = await store.counts(read)
        return sum(count for state, count in counts.items() if state in ENDED)

    async with scratch_app(settings) as (app, addresses), open_banks(orders, seed, SHARE_OF_FAULTS) as banks:
        await _put(app, orders, banks)
        queues = [policy.queue for policy in QUEUES]
        workload = Workload(
            "transfers.worker", queues, QUEUES[0].lease_s, len(orders), done, LIMIT_S, lambda: banks.answer_reviews(app)
        )
        disrupted = await run_workload(app, addresses, workload, seed, banks.environment)
        # Delivers requests still in transit to the banks, so that they are checked.
        await banks.deliver()
        verdict = await judge(app.read, banks.northbank, banks.southbank, orders)
        return Report(seed, verdict, banks.faults(), disrupted)


def seeded_orders(count: int, seed: int) -> list["Order"]:
    """Orders determined by the seed."""
    from payonce.examples.transfers.demo.banks import CLOSED_ACCOUNTS, CUSTOMERS, POOR_ACCOUNT
    from payonce.examples.transfers.model import Order

    chance = random.Random(seed)
    orders = []
    for number in range(count):
        cents, currency = chance.randint(1, 50_000), chance.choice(("EUR", "JPY"))
        source = POOR_ACCOUNT if chance.random() < POOR else f"n-{chance.randrange(CUSTOMERS)}"
        closed = chance.random() < CLOSED
        target = f"closed-{chance.randrange(CLOSED_ACCOUNTS)}" if closed else f"s-{chance.randrange(CUSTOMERS)}"
        amount = str(cents) if currency == "JPY" else f"{cents // 100}.{cents % 100:02}"
        orders.append(Order(id=f"t-{number:05}", source=source, target=target, amount=amount, currency=currency))
    return orders


async def _put(app: "App", orders: list["Order"], banks: "Banks") -> None:
    """Creates our opening balances, and every transfer with its first message."""
    from payonce.examples.transfers import store

    async with app.begin() as tx:
        await store.post_opening(tx.post, banks.opening)
    for start in range(0, len(orders), PUT_AT_ONCE):
        async with app.begin() as tx:
            for order in orders[start : start + PUT_AT_ONCE]:
                await store.request(tx, order)
