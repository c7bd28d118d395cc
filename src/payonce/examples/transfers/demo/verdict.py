"""The verdict on transfers, by the banks' own records: what was lost, what happened twice, what is unexplained."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from payonce import Account, Amount, Reader, audit_ledger, balance, reviews, well_known
from payonce.examples.transfers import INVARIANTS, model
from payonce.examples.transfers.model import Order, State
from payonce.vendors.books import Movement
from payonce.vendors.northbank.simulator import NorthbankSimulator
from payonce.vendors.southbank.simulator import SouthbankSimulator

STEPS: Final[dict[State, frozenset[str]]] = {
    State.REFUSED: frozenset(),
    State.PAID: frozenset({"withdraw", "pay-in"}),
    State.REFUNDED: frozenset({"withdraw", "refund"}),
    State.HELD: frozenset({"withdraw"}),
}
"""The bookings that the banks must have for a transfer with this end."""


@dataclass(frozen=True)
class Verdict:
    requested: int
    finished: int
    refused: int
    compensated: int
    in_review: int
    lost: Sequence[str]
    doubled: Sequence[str]
    unexplained: dict[str, Amount]
    broken: Sequence[str]
    """Violated invariants, and findings in the ledger."""


async def judge(
    read: Reader, northbank: NorthbankSimulator, southbank: SouthbankSimulator, orders: Sequence[Order]
) -> Verdict:
    rows = await read.fetch("select id, state from transfers.transfers")
    states = {row["id"]: State(row["state"]) for row in rows}
    booked = Counter(_steps(northbank.books.movements, orders) + _steps(southbank.books.movements, orders))
    waiting = await reviews(read)
    in_review = {review.effect.key.partition("/")[0] for review in waiting}
    lost, doubled = [], []
    for order in orders:
        state = states.get(order.id)
        shown = {step: booked[order.id, step] for step in ("withdraw", "pay-in", "refund")}
        if max(shown.values()) > 1 or (shown["pay-in"] and shown["refund"]):
            doubled.append(order.id)
        elif order.id not in in_review and (
            state not in STEPS or {step for step, times in shown.items() if times} != STEPS[state]
        ):
            lost.append(order.id)
    ended = Counter(states.values())
    return Verdict(
        requested=len(orders),
        finished=ended[State.PAID],
        refused=ended[State.REFUSED],
        compensated=ended[State.REFUNDED],
        in_review=len(waiting),
        lost=lost,
        doubled=doubled,
        unexplained=await _unexplained(read, northbank, southbank, orders),
        broken=await _broken(read),
    )


def _steps(movements: Sequence[Movement], orders: Sequence[Order]) -> list[tuple[str, str]]:
    """The transfer and step of each booking that matches an order exactly; others do not count."""
    wanted = {order.id: order for order in orders}
    found = []
    for movement in movements:
        key, _, _ = movement.reference.rpartition(":")
        transfer_id, _, step = key.partition("/")
        order = wanted.get(transfer_id)
        if order is not None and _is_step(movement, step, order):
            found.append((transfer_id, step))
    return found


def _is_step(movement: Movement, step: str, order: Order) -> bool:
    ways = {
        "withdraw": (order.source, model.HOUSE),
        "pay-in": (model.HOUSE, order.target),
        "refund": (model.HOUSE, order.source),
    }
    amount = Amount.from_decimal(order.amount, well_known(order.currency))
    return ways.get(step) == (movement.source, movement.target) and movement.amount == amount


async def _unexplained(
    read: Reader, northbank: NorthbankSimulator, southbank: SouthbankSimulator, orders: Sequence[Order]
) -> dict[str, Amount]:
    """By asset, the difference between our mirror accounts and our balances at the banks."""
    found = {}
    for code in sorted({order.currency for order in orders}):
        asset = well_known(code)
        found[code] = Amount.zero(asset)
        for path, books in ((model.AT_NORTHBANK, northbank.books), (model.AT_SOUTHBANK, southbank.books)):
            ours = await balance(read, Account(path, asset))
            found[code] += abs(books.balance(model.HOUSE, asset) - ours)
    return found


async def _broken(read: Reader) -> list[str]:
    found = [f"{name}: {len(rows)} rows" for name, query in INVARIANTS.items() if (rows := await read.fetch(query))]
    return found + [f"{finding.kind}: {finding.text}" for finding in await audit_ledger(read)]
