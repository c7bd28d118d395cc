"""What a change of plan costs: the unused part of what was billed goes back, the rest of the new plan is charged.

A plan of the same interval keeps the anchor, and the rest of the running period is charged at the new price.
With another interval (a month becomes a year) a new period begins at the moment of change, charged in full, and later
periods are counted from there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from payonce.kit.money import Amount, Rounding
from payonce.kit.outcomes import Invalid
from payonce.services.billing.subscriptions.domain.calendar import (
    Anchor,
    Interval,
    Period,
    period,
    period_at,
    share_left,
    whole_second,
)


@dataclass(frozen=True, slots=True)
class BilledLine:
    """A line of an invoice at the price and for the time it was billed, and what was given back of it before."""

    amount: Amount
    start: datetime
    end: datetime
    credited_minor: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.credited_minor <= self.amount.minor:
            raise Invalid(
                f"a line of {self.amount.minor} minor units of which {self.credited_minor} were credited has no unused "
                "part: give a line that charges, and credits of no more than it charged"
            )


@dataclass(frozen=True, slots=True)
class ProratedLine:
    """A line of the change: below zero it gives back, above zero it charges, for the time from start to end."""

    amount: Amount
    start: datetime
    end: datetime


@dataclass(frozen=True, slots=True)
class Proration:
    """The lines of a change of plan, the period that runs from now on, and what later periods are counted from."""

    credits: tuple[ProratedLine, ...]
    debit: ProratedLine | None
    period: Period
    anchor: Anchor
    total: Amount

    @property
    def lines(self) -> tuple[ProratedLine, ...]:
        return self.credits if self.debit is None else (*self.credits, self.debit)


def change_plan(
    billed: Sequence[BilledLine], price: Amount, interval: Interval, anchor: Anchor, at: datetime
) -> Proration:
    """What is due when the plan becomes one of this price and interval at this moment.

    `billed` are the lines in force: the plan's own, or after an earlier change in the same period that change's debit.
    The total is below zero when more goes back than is charged.
    """
    if price.minor < 0:
        raise Invalid(f"a plan cannot cost {price.to_text()} {price.asset}; its price must not be below zero")
    at = whole_second(at)
    running = period_at(anchor, at)
    if interval != anchor.interval:
        anchor = Anchor.at(at, anchor.zone, interval)
        running = period(anchor, 0)
    back = tuple(line for line in (credit_unused(each, at) for each in billed) if line is not None)
    debit = debit_remaining(price, running, at)
    lines = back if debit is None else (*back, debit)
    return Proration(back, debit, running, anchor, Amount.total((line.amount for line in lines), price.asset))


def credit_unused(billed: BilledLine, at: datetime) -> ProratedLine | None:
    """What was billed for the time still to come goes back, rounded half to even; never more than is left of it."""
    unused = billed.amount.times(share_left(billed.start, billed.end, at), Rounding.HALF_EVEN)
    back = min(unused.minor, billed.amount.minor - billed.credited_minor)
    if back == 0:
        return None
    return ProratedLine(Amount(-back, billed.amount.asset), max(whole_second(at), billed.start), billed.end)


def debit_remaining(price: Amount, running: Period, at: datetime) -> ProratedLine | None:
    """The price of the rest of a period, rounded half to even."""
    due = price.times(share_left(running.start, running.end, at), Rounding.HALF_EVEN)
    return ProratedLine(due, max(whole_second(at), running.start), running.end) if due else None
