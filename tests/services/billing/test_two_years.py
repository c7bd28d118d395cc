"""Real renewals of two years and more, on the days and hours that a person would say."""

from datetime import UTC, datetime, timedelta
from typing import Final

import pytest

from payonce.kit.money import Amount
from payonce.services.billing.subscriptions.domain.calendar import Interval, Unit, local
from payonce.services.billing.subscriptions.handlers.test_clocks import ADVANCE_MAX
from payonce.services.billing.subscriptions.store import plans
from payonce.services.billing.subscriptions.store.plans import Offer
from payonce.testing import OpenStage
from tests.services.billing.billing_stage import AED, open_house

MONTH, QUARTER, YEAR = Interval(Unit.MONTH), Interval(Unit.MONTH, 3), Interval(Unit.YEAR)
LIVES: Final = {
    # The 31st over a leap year and one that is none.
    ("2023-12-31T09:00+04:00", "Asia/Dubai", MONTH): """
        2023-12-31 09:00 2024-01-31 09:00 2024-02-29 09:00 2024-03-31 09:00 2024-04-30 09:00 2024-05-31 09:00
        2024-06-30 09:00 2024-07-31 09:00 2024-08-31 09:00 2024-09-30 09:00 2024-10-31 09:00 2024-11-30 09:00
        2024-12-31 09:00 2025-01-31 09:00 2025-02-28 09:00 2025-03-31 09:00 2025-04-30 09:00 2025-05-31 09:00
        2025-06-30 09:00 2025-07-31 09:00 2025-08-31 09:00 2025-09-30 09:00 2025-10-31 09:00 2025-11-30 09:00
        2025-12-31 09:00""",
    # On 30 March 2025 the clocks go from 2 to 3: half past two does not exist on that day, and does on the next.
    ("2024-12-30T02:30+01:00", "Europe/Berlin", QUARTER): """
        2024-12-30 02:30 2025-03-30 03:30 2025-06-30 02:30 2025-09-30 02:30 2025-12-30 02:30 2026-03-30 02:30
        2026-06-30 02:30 2026-09-30 02:30 2026-12-30 02:30""",
    # On 26 October 2025 half past two comes twice.
    ("2024-10-26T02:30+02:00", "Europe/Berlin", QUARTER): """
        2024-10-26 02:30 2025-01-26 02:30 2025-04-26 02:30 2025-07-26 02:30 2025-10-26 02:30 2026-01-26 02:30
        2026-04-26 02:30 2026-07-26 02:30 2026-10-26 02:30""",
    # 29 February, which the years in between do not have.
    ("2024-02-29T23:59+00:00", "UTC", YEAR): """
        2024-02-29 23:59 2025-02-28 23:59 2026-02-28 23:59 2027-02-28 23:59 2028-02-29 23:59""",
}
TWICE: Final = datetime(2025, 10, 26, 0, 30, tzinfo=UTC)
"""The first half past two of that night."""


@pytest.mark.full
async def test_renewals_of_years_come_on_the_days_and_hours_of_the_customers_calendar(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        moments = []
        for number, ((begin, zone, interval), table) in enumerate(LIVES.items()):
            words = table.split()
            expected = [f"{day} {hour}" for day, hour in zip(words[::2], words[1::2], strict=True)]
            async with house.s.begin() as tx:
                await plans.add_version(tx, Offer(f"plan-{number}", "Plan", Amount(500, AED), interval))
            clock = await house.test_clock(datetime.fromisoformat(begin))
            customer = await house.customer(zone=zone, test_clock=clock)
            subscription = await house.subscribe(customer, f"plan-{number}")
            end = datetime.fromisoformat(expected[-1]).replace(tzinfo=UTC) + timedelta(hours=12)
            while clock.now_at < end:
                clock = await house.advance(clock, min(end, clock.now_at + ADVANCE_MAX))
            invoices = await house.invoices(subscription)
            shown = [local(each.issued_at, zone).to_plain().format_iso()[:16].replace("T", " ") for each in invoices]
            assert shown == expected, zone
            assert [each.period_end for each in invoices[:-1]] == [each.period_start for each in invoices[1:]]
            assert {house.captures(each) for each in invoices} == {1}
            moments += [each.issued_at for each in invoices]
        assert TWICE in moments
        assert await house.broken() == {}
