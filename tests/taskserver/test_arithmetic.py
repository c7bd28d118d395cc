"""The retry arithmetic: Google's examples, and what must hold for any settings."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from payonce.taskserver.arithmetic import (
    RETRY_AFTER_MAX_S,
    Retrying,
    backoff_s,
    burst_of,
    counts_as_execution,
    is_exhausted,
    is_success,
    next_wait_s,
)
from payonce.taskserver.delivery import retry_after_of

durations = st.floats(0, 86_400, allow_nan=False)
settings = st.builds(
    lambda attempts, duration_s, backoffs, doublings: Retrying(
        attempts, duration_s, min(backoffs), max(backoffs), doublings
    ),
    st.integers(1, 1_000) | st.just(-1),
    durations,
    st.tuples(durations, durations),
    st.integers(0, 2**31 - 1),
)
attempts = st.integers(1, 10_000)


def test_googles_example() -> None:
    retrying = Retrying(100, 0, 10, 300, 3)
    assert [backoff_s(retry, retrying) for retry in range(1, 9)] == [10, 20, 40, 80, 160, 240, 300, 300]


def test_without_doublings_the_wait_grows_by_the_least() -> None:
    retrying = Retrying(100, 0, 10, 45, 0)
    assert [backoff_s(retry, retrying) for retry in range(1, 7)] == [10, 20, 30, 40, 45, 45]


def test_equal_bounds_make_it_fixed_whatever_the_doublings() -> None:
    for doublings in (0, 1, 16):
        assert {backoff_s(retry, Retrying(100, 0, 60, 60, doublings)) for retry in range(1, 200)} == {60}


@given(settings, attempts)
def test_a_wait_lies_within_its_bounds_and_never_shrinks(retrying: Retrying, retry: int) -> None:
    wait_s, next_s = backoff_s(retry, retrying), backoff_s(retry + 1, retrying)
    assert retrying.min_backoff_s <= wait_s <= retrying.max_backoff_s
    assert wait_s <= next_s
    assert math.isfinite(wait_s)


@given(settings, attempts, durations)
def test_once_exhausted_a_task_stays_so(retrying: Retrying, attempt: int, age_s: float) -> None:
    if is_exhausted(attempt, age_s, retrying):
        assert is_exhausted(attempt + 1, age_s, retrying)
        assert is_exhausted(attempt, age_s + 1, retrying)
        assert next_wait_s(attempt, age_s, retrying, 5.0) is None


@given(settings, attempts, durations, st.none() | st.floats(0, 1e9))
def test_a_wait_minds_retry_after_within_reason(
    retrying: Retrying, attempt: int, age_s: float, retry_after_s: float | None
) -> None:
    wait_s = next_wait_s(attempt, age_s, retrying, retry_after_s)
    if wait_s is None:
        assert is_exhausted(attempt, age_s, retrying)
    else:
        assert wait_s >= min(retry_after_s or 0, RETRY_AFTER_MAX_S)
        assert wait_s <= max(retrying.max_backoff_s, RETRY_AFTER_MAX_S)


@pytest.mark.parametrize(
    ("limits", "attempt", "age_s", "exhausted"),
    [
        ((3, 0), 2, 1e9, False),
        ((3, 0), 3, 0, True),
        ((3, 60), 3, 59, False),
        ((3, 60), 2, 61, False),
        ((3, 60), 3, 60, True),
        ((-1, 60), 1, 59, False),
        ((-1, 60), 1, 60, True),
        ((-1, 0), 10**6, 1e9, False),
    ],
)
def test_both_limits_must_be_reached(limits: tuple[int, float], attempt: int, age_s: float, exhausted: bool) -> None:
    assert is_exhausted(attempt, age_s, Retrying(*limits)) is exhausted


def test_the_burst_is_the_rate_and_at_least_one() -> None:
    assert [burst_of(rate) for rate in (0.01, 1, 2.5, 10, 500)] == [1, 1, 3, 10, 500]


def test_what_counts_as_success_and_as_execution() -> None:
    assert [status for status in range(100, 600) if is_success(status)] == list(range(200, 300))
    assert not is_success(None)
    assert [status for status in range(100, 600) if not counts_as_execution(status)] == list(range(500, 600))
    assert not counts_as_execution(None)


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        (None, None),
        ("0", 0),
        ("120", 120),
        (" 7 ", 7),
        ("-1", None),
        ("soon", None),
        ("", None),
        ("9" * 40, 9999999999),
    ],
)
def test_retry_after_in_seconds_or_nothing(said: str | None, seconds: float | None) -> None:
    assert retry_after_of(said) == seconds


def test_retry_after_as_a_date_of_the_past_is_at_once() -> None:
    assert retry_after_of("Wed, 21 Oct 2015 07:28:00 GMT") == 0
