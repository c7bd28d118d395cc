"""The customers of the demo `billing`: the steps of each one with their times, and the expected result.

Expected results are computed with the standard library's calendar and integers, independently of the service.
"""

import random
from calendar import monthrange
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from fractions import Fraction
from typing import Final
from zoneinfo import ZoneInfo

BASIC, PRO, ANNUAL, TRIAL = "basic", "pro", "annual-pro", "trial"
PRICES: Final = {BASIC: 2_900, PRO: 9_900, ANNUAL: 99_900, TRIAL: 100}
MONTHS_OF: Final = {BASIC: 1, PRO: 1, ANNUAL: 12}
TRIAL_DAYS: Final = 14
FIRST_DAY: Final = datetime(2024, 1, 31, tzinfo=UTC)
"""The last day of a month, in a leap year."""
SPREAD_DAYS: Final = 28
ZONES: Final = ("UTC", "Asia/Dubai", "Europe/Berlin", "America/New_York")
HOURS: Final = range(9, 20)
"""No zone above changes its clocks at these hours."""
INTO_PERIOD: Final = timedelta(days=10, hours=5)
SHORT_PAUSE, LONG_PAUSE = timedelta(days=4), timedelta(days=50)
BEFORE_RENEWAL: Final = timedelta(days=3)
NEW_CARD_AFTER: Final = timedelta(days=5, hours=1)
PAYS, DECLINES, EXPIRED = "4242424242424242", "4000000000000002", "4000000000000069"
TRIES: Final = 6
"""Attempts for an invoice that is never paid: the first, and one on each day of dunning."""


class CustomerAction(StrEnum):
    SUBSCRIBE = "subscribe"
    TRY = "try"
    CHANGE = "change"
    CANCEL = "cancel"
    PAUSE = "pause"
    RESUME = "resume"
    NEW_CARD = "new_card"
    CARD_WILL = "card_will"
    """At the gateway: the outcomes of the next charges."""
    CARD_BECOMES = "card_becomes"
    """At the gateway: another card behind the same token."""


@dataclass(frozen=True)
class Step:
    at: datetime
    act: CustomerAction
    what: str = ""


@dataclass(frozen=True)
class Period:
    start: datetime
    amount: int
    paid: bool = True


@dataclass(frozen=True)
class Life:
    """The steps of a customer, and the expected result."""

    steps: Sequence[Step]
    periods: Sequence[Period]
    ending: str
    changes: Sequence[int] = ()
    """Differences paid for upgrades."""
    declines: int = 0

    @property
    def tries(self) -> bool:
        return any(step.act is CustomerAction.TRY for step in self.steps)

    @property
    def captured(self) -> int:
        return sum(period.amount for period in self.periods if period.paid) + sum(self.changes)


@dataclass(frozen=True)
class Customer:
    number: int
    kind: str
    zone: str
    begins_at: datetime
    ends_at: datetime
    life: Life

    @property
    def id(self) -> str:
        return f"customer-{self.number}"


@dataclass(frozen=True)
class LifeSetting:
    """When a customer begins, when the demo ends, and the month of the scripted event."""

    begins_at: datetime
    ends_at: datetime
    zone: str
    month: int

    def starts(self, plan: str, of: datetime | None = None) -> list[datetime]:
        """The starts of all periods counted from an anchor."""
        anchor, months = of or self.begins_at, MONTHS_OF[plan]
        found: list[datetime] = []
        while (start := later(anchor, len(found) * months, self.zone)) <= self.ends_at:
            found.append(start)
        return found

    def periods(self, plan: str, of: datetime | None = None) -> list[Period]:
        return [Period(start, PRICES[plan]) for start in self.starts(plan, of)]

    @property
    def renewal(self) -> datetime:
        """The renewal at which the scripted event happens."""
        return later(self.begins_at, self.month, self.zone)

    @property
    def within(self) -> datetime:
        """A moment within the period that this renewal begins."""
        return self.renewal + INTO_PERIOD


def later(anchor: datetime, months: int, zone: str) -> datetime:
    """The same local time a number of months later, on the last day of a month that is too short."""
    local = anchor.astimezone(ZoneInfo(zone))
    year, month = divmod(local.year * 12 + local.month - 1 + months, 12)
    day = min(local.day, monthrange(year, month + 1)[1])
    return local.replace(year=year, month=month + 1, day=day).astimezone(UTC)


def steady(plan: str) -> Callable[[LifeSetting], Life]:
    def live(given: LifeSetting) -> Life:
        return Life([Step(given.begins_at, CustomerAction.SUBSCRIBE, plan)], given.periods(plan), "active")

    return live


def trial_that_converts(given: LifeSetting) -> Life:
    converted = given.begins_at.astimezone(ZoneInfo(given.zone)) + timedelta(days=TRIAL_DAYS)
    periods = [Period(given.begins_at, PRICES[TRIAL]), *given.periods(BASIC, converted.astimezone(UTC))]
    return Life([Step(given.begins_at, CustomerAction.TRY)], periods, "active")


def trial_that_ends(given: LifeSetting) -> Life:
    steps = [
        Step(given.begins_at, CustomerAction.TRY),
        Step(given.begins_at + INTO_PERIOD, CustomerAction.CANCEL, "period_end"),
    ]
    return Life(steps, [Period(given.begins_at, PRICES[TRIAL])], "canceled")


def cancels(when: str) -> Callable[[LifeSetting], Life]:
    def live(given: LifeSetting) -> Life:
        steps = [
            Step(given.begins_at, CustomerAction.SUBSCRIBE, BASIC),
            Step(given.within, CustomerAction.CANCEL, when),
        ]
        return Life(steps, given.periods(BASIC)[: given.month + 1], "canceled")

    return live


def upgrades(given: LifeSetting) -> Life:
    """The rest of the period at the new price minus the rest at the old one, each rounded half-even."""
    start, end = given.renewal, later(given.begins_at, given.month + 1, given.zone)
    left = Fraction(int((end - given.within).total_seconds()), int((end - start).total_seconds()))
    difference = round(PRICES[PRO] * left) - round(PRICES[BASIC] * left)
    periods = given.periods(BASIC)[: given.month + 1] + given.periods(PRO)[given.month + 1 :]
    steps = [Step(given.begins_at, CustomerAction.SUBSCRIBE, BASIC), Step(given.within, CustomerAction.CHANGE, PRO)]
    return Life(steps, periods, "active", [difference])


def downgrades(given: LifeSetting) -> Life:
    """At the next period."""
    periods = given.periods(PRO)[: given.month + 1] + given.periods(BASIC)[given.month + 1 :]
    steps = [Step(given.begins_at, CustomerAction.SUBSCRIBE, PRO), Step(given.within, CustomerAction.CHANGE, BASIC)]
    return Life(steps, periods, "active")


def pauses_within_a_period(given: LifeSetting) -> Life:
    steps = [
        Step(given.begins_at, CustomerAction.SUBSCRIBE, BASIC),
        Step(given.within, CustomerAction.PAUSE),
        Step(given.within + SHORT_PAUSE, CustomerAction.RESUME),
    ]
    return Life(steps, given.periods(BASIC), "active")


def pauses_for_longer(given: LifeSetting) -> Life:
    """Resuming begins a new period, and later periods are counted from that day."""
    resumed = given.within + LONG_PAUSE
    steps = [
        Step(given.begins_at, CustomerAction.SUBSCRIBE, BASIC),
        Step(given.within, CustomerAction.PAUSE),
        Step(resumed, CustomerAction.RESUME),
    ]
    if resumed > given.ends_at:
        return Life(steps[:2], given.periods(BASIC)[: given.month + 1], "paused")
    return Life(steps, given.periods(BASIC)[: given.month + 1] + given.periods(BASIC, resumed), "active")


def declined_for_a_while(given: LifeSetting) -> Life:
    """On the due date, and on the first day of dunning."""
    ends = "insufficient_funds,insufficient_funds,succeeds"
    steps = [
        Step(given.begins_at, CustomerAction.SUBSCRIBE, BASIC),
        Step(given.renewal - BEFORE_RENEWAL, CustomerAction.CARD_WILL, ends),
    ]
    return Life(steps, given.periods(BASIC), "active", declines=2)


def declined_for_good(given: LifeSetting) -> Life:
    steps = [
        Step(given.begins_at, CustomerAction.SUBSCRIBE, BASIC),
        Step(given.renewal - BEFORE_RENEWAL, CustomerAction.CARD_BECOMES, DECLINES),
    ]
    periods = [*given.periods(BASIC)[: given.month], Period(given.renewal, PRICES[BASIC], paid=False)]
    return Life(steps, periods, "unpaid", declines=TRIES)


def card_expires(given: LifeSetting) -> Life:
    """A hard decline is not retried; a new card is charged at once."""
    steps = [
        Step(given.begins_at, CustomerAction.SUBSCRIBE, BASIC),
        Step(given.renewal - BEFORE_RENEWAL, CustomerAction.CARD_BECOMES, EXPIRED),
        Step(given.renewal + NEW_CARD_AFTER, CustomerAction.NEW_CARD, PAYS),
    ]
    return Life(steps, given.periods(BASIC), "active", declines=1)


def never_pays(given: LifeSetting) -> Life:
    steps = [
        Step(given.begins_at, CustomerAction.CARD_BECOMES, DECLINES),
        Step(given.begins_at, CustomerAction.SUBSCRIBE, BASIC),
    ]
    return Life(steps, [Period(given.begins_at, PRICES[BASIC], paid=False)], "incomplete_expired", declines=1)


KINDS: Final[Mapping[str, tuple[int, Callable[[LifeSetting], Life]]]] = {
    "monthly": (5, steady(BASIC)),
    "monthly_pro": (3, steady(PRO)),
    "annual": (24, steady(ANNUAL)),
    "trial": (4, trial_that_converts),
    "trial_ended": (2, trial_that_ends),
    "canceled_at_period_end": (3, cancels("period_end")),
    "canceled_at_once": (3, cancels("now")),
    "upgraded": (3, upgrades),
    "downgraded": (2, downgrades),
    "paused": (2, pauses_within_a_period),
    "paused_for_long": (2, pauses_for_longer),
    "declined_for_a_while": (3, declined_for_a_while),
    "declined_for_good": (2, declined_for_good),
    "card_expired": (2, card_expires),
    "never_paid": (1, never_pays),
}
"""With the number of each kind among 61 customers."""


def seeded_customers(count: int, months: int, seed: int) -> list[Customer]:
    """Each kind once, then by weight."""
    chance = random.Random(seed)
    rest = [kind for kind, (weight, _) in KINDS.items() for _ in range(weight)]
    chance.shuffle(rest)
    kinds = [*KINDS, *(rest[place % len(rest)] for place in range(count))][:count]
    ends_at = _end(months)
    return [_customer(number, kind, months, ends_at, chance) for number, kind in enumerate(kinds, start=1)]


def _end(months: int) -> datetime:
    """The given number of months after the last customer begins."""
    return later(FIRST_DAY + timedelta(days=SPREAD_DAYS + 1), months, "UTC") + timedelta(minutes=7)


def _customer(number: int, kind: str, months: int, ends_at: datetime, chance: random.Random) -> Customer:
    begins_at = FIRST_DAY + timedelta(
        days=chance.randrange(SPREAD_DAYS), hours=chance.choice(HOURS), minutes=chance.randrange(60)
    )
    zone, month = chance.choice(ZONES), chance.randint(1, max(1, months - 2))
    given = LifeSetting(begins_at, ends_at, zone, month)
    return Customer(number, kind, zone, begins_at, ends_at, KINDS[kind][1](given))
