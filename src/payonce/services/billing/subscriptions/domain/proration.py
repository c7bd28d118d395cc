"""The price of a plan change: the unused part of the billed amount is credited, and the rest of the new plan is
charged.

A plan with the same interval keeps the anchor, and the rest of the current period is charged at the new price.
With another interval (monthly to annual) a new period begins at the change, is charged in full, and becomes the anchor
of later periods.
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
    """A billed invoice line with its price, its time and the amount credited or refunded before."""

    amount: Amount
    start: datetime
    end: datetime
    credited_minor: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.credited_minor <= self.amount.minor:
            raise Invalid(
                f"a line of {self.amount.minor} minor units with {self.credited_minor} credited has no unused "
                "part: give a line that charges, with credits up to its amount"
            )


@dataclass(frozen=True, slots=True)
class ProratedLine:
    """A line of the change, for the time from start to end: negative amounts are credits, positive ones charges."""

    amount: Amount
    start: datetime
    end: datetime


@dataclass(frozen=True, slots=True)
class Proration:
    """The lines of a plan change, the period from now on, and the anchor of later periods."""

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
    """The lines and total of a change to a plan with this price and interval at this time.

    `billed` are the lines in force: the plan's own, or after an earlier change in the same period that change's debit.
    The total is negative if more is credited than charged.
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
    """The credit for the remaining time of a billed line, rounded half to even; never more than is left of the line."""
    unused = billed.amount.times(share_left(billed.start, billed.end, at), Rounding.HALF_EVEN)
    back = min(unused.minor, billed.amount.minor - billed.credited_minor)
    if back == 0:
        return None
    return ProratedLine(Amount(-back, billed.amount.asset), max(whole_second(at), billed.start), billed.end)


def debit_remaining(price: Amount, running: Period, at: datetime) -> ProratedLine | None:
    """The price of the rest of a period, rounded half to even."""
    due = price.times(share_left(running.start, running.end, at), Rounding.HALF_EVEN)
    return ProratedLine(due, max(whole_second(at), running.start), running.end) if due else None
