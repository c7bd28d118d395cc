"""What is earned adds up to what was billed, whatever the moments at which one looks."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from payonce.kit.money import Amount, asset_of
from payonce.kit.outcomes import Invalid
from payonce.services.billing.subscriptions.domain.calendar import local
from payonce.services.billing.subscriptions.domain.revenue import earned, next_recognition

STEADY = settings(max_examples=100, deadline=None, derandomize=True)
AED = asset_of("AED")
START = datetime(2026, 1, 15, 20, 0, tzinfo=UTC)
A_YEAR_LATER = datetime(2027, 1, 15, 20, 0, tzinfo=UTC)

amounts = st.integers(-(10**9), 10**9).map(lambda minor: Amount(minor, AED))
lengths = st.integers(1, 3 * 366 * 86_400).map(lambda seconds: timedelta(seconds=seconds))
offsets = st.lists(st.integers(-(10**7), 10**8), max_size=20)


@STEADY
@given(amounts, lengths, offsets)
def test_the_differences_between_any_moments_add_up_to_the_amount(
    amount: Amount, length: timedelta, offsets: list[int]
) -> None:
    end = START + length
    moments = sorted([START, *(START + timedelta(seconds=offset) for offset in offsets), max(end, START)])
    moments.append(max(moments[-1], end))
    parts = [earned(amount, START, end, late) - earned(amount, START, end, early) for early, late in pairwise(moments)]
    assert Amount.total(parts, AED) == amount
    sign = -1 if amount.minor < 0 else 1
    assert all(part.minor * sign >= 0 for part in parts)


@STEADY
@given(amounts, lengths)
def test_nothing_is_earned_before_the_start_and_everything_at_the_end(amount: Amount, length: timedelta) -> None:
    end = START + length
    assert not earned(amount, START, end, START)
    assert not earned(amount, START, end, START - timedelta(days=1))
    assert earned(amount, START, end, end) == earned(amount, START, end, end + timedelta(days=1)) == amount


def test_half_a_unit_goes_to_the_even_one() -> None:
    end = START + timedelta(days=2)
    half = START + timedelta(days=1)
    assert [earned(Amount(minor, AED), START, end, half).minor for minor in (1, 3, 5, -1, -3)] == [0, 2, 2, 0, -2]


def test_a_year_is_posted_on_each_first_of_a_month_of_the_books_and_at_its_end() -> None:
    moments, after = [], START
    while (at := next_recognition(START, A_YEAR_LATER, after, "Asia/Dubai")) is not None:
        moments.append(at)
        after = at
    shown = [local(at, "Asia/Dubai").to_plain().format_iso() for at in moments]
    assert shown == [
        *(f"2026-{month:02}-01T00:00:00" for month in range(2, 13)),
        "2027-01-01T00:00:00",
        "2027-01-16T00:00:00",
    ]


@STEADY
@given(lengths, st.integers(-(10**8), 10**8), st.sampled_from(["UTC", "Asia/Dubai", "America/Havana", "Asia/Beirut"]))
def test_the_next_posting_is_later_and_never_after_the_end(length: timedelta, offset: int, zone: str) -> None:
    end, after = START + length, START + timedelta(seconds=offset)
    found = next_recognition(START, end, after, zone)
    assert (found is None) == (after >= end)
    assert found is None or (after < found <= end and found > START)


def test_a_posting_is_not_called_past_by_a_clock_that_shows_the_old_month_once_more() -> None:
    """St John's put its clocks back at a minute past midnight of 1 November 2009, to 31 October."""
    october_again = datetime(2009, 11, 1, 2, 45, tzinfo=UTC)
    assert local(october_again, "America/St_Johns").month == 10
    found = next_recognition(datetime(2009, 1, 1, tzinfo=UTC), START, october_again, "America/St_Johns")
    assert found == datetime(2009, 11, 1, 3, 30, tzinfo=UTC)


def test_time_that_is_empty_is_refused() -> None:
    for ask in (lambda: earned(Amount(1, AED), START, START, START), lambda: next_recognition(START, START, START)):
        with pytest.raises(Invalid, match="is empty: the end must be later"):
            ask()
