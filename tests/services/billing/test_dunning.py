"""A failed renewal is tried again on the days of the table, in the customer's time, and then no more."""

from datetime import UTC, datetime, timedelta

import whenever
from hypothesis import given, settings
from hypothesis import strategies as st

from payonce.services.billing.subscriptions.domain.calendar import local
from payonce.services.billing.subscriptions.domain.dunning import RETRY_DAYS, next_day

STEADY = settings(max_examples=100, deadline=None, derandomize=True)
FAILED = datetime(2026, 3, 20, 8, 0, tzinfo=UTC)
"""Nine in the morning in Berlin, nine days before its clocks go forward."""

failures = st.datetimes(datetime(2020, 1, 1), datetime(2060, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001
zones = st.sampled_from(sorted(whenever.available_timezones()))


def test_the_days_are_1_3_5_7_and_14_at_the_same_local_time() -> None:
    shown, now = [], FAILED
    while (at := next_day(FAILED, False, "Europe/Berlin", now)) is not None:
        shown.append(local(at, "Europe/Berlin").to_plain().format_iso())
        now = at
    assert shown == [
        "2026-03-21T09:00:00",
        "2026-03-23T09:00:00",
        "2026-03-25T09:00:00",
        "2026-03-27T09:00:00",
        "2026-04-03T09:00:00",
    ]


@STEADY
@given(failures, zones, st.lists(st.integers(0, 40 * 86_400), max_size=8), st.booleans())
def test_days_come_later_and_later_and_end_whatever_holds_them_up(
    failed_at: datetime, zone: str, held_up_s: list[int], hard: bool
) -> None:
    now, days = failed_at, 0
    while (at := next_day(failed_at, hard, zone, now)) is not None:
        assert now < at <= failed_at + timedelta(days=RETRY_DAYS[-1], hours=25)
        days += 1
        now = at + timedelta(seconds=held_up_s.pop() if held_up_s else 0)
    assert 1 <= days <= (1 if hard else len(RETRY_DAYS))


def test_a_card_that_stays_wrong_has_one_day_alone_which_is_the_last() -> None:
    last = FAILED + timedelta(days=14)
    assert next_day(FAILED, True, "UTC", FAILED) == last
    assert next_day(FAILED, True, "UTC", FAILED + timedelta(days=6)) == last
    assert next_day(FAILED, True, "UTC", last) is None


def test_a_new_card_that_fails_goes_on_with_the_days_left() -> None:
    assert next_day(FAILED, False, "UTC", FAILED + timedelta(days=6)) == FAILED + timedelta(days=7)


def test_days_that_an_outage_covered_are_left_out() -> None:
    assert next_day(FAILED, False, "UTC", FAILED + timedelta(days=7, hours=1)) == FAILED + timedelta(days=14)
    assert next_day(FAILED, False, "UTC", FAILED + timedelta(days=20)) is None
