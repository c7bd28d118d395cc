"""Why the next attempt is when it is: the words agree with the step that the policy takes."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from payonce.engine.messages.explanation import why_next
from payonce.engine.messages.job_log import Entry, Status
from payonce.engine.messages.model import Ending, Message, State
from payonce.engine.messages.policy import Ended, Exponential, Policy, next_step, planned_delay_s, policy_as_described
from payonce.engine.messages.ports import QueuedMessage

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
ID = UUID("0199a3c4-7d1e-7c3b-9a1f-2f6f1f0e8a11")
POLICY = Policy("work", max_attempts=6, backoff=Exponential(60.0, 2.0, 3_600.0, 10.0))


def entry(attempts: int, delay_s: float) -> Entry:
    return Entry(
        1,
        NOW,
        "work",
        ID,
        str(ID),
        Status.RETRY,
        attempts,
        "",
        None,
        None,
        "no",
        None,
        NOW + timedelta(seconds=delay_s),
        "worker-1",
        NOW - timedelta(seconds=1),
        NOW,
        NOW,
    )


def stored(state: State = State.READY, attempts: int = 0, in_s: float = 0.0, crashes: int = 0) -> QueuedMessage:
    message = Message(id=ID, queue="work", attempts=attempts)
    return QueuedMessage(message, state, NOW + timedelta(seconds=in_s), crashes, worker="worker-7", last_error="no")


def words(found: QueuedMessage, *runs: Entry, policy: Policy | None = POLICY, paused: str | None = None) -> str:
    return " ".join(why_next(found, policy, runs, NOW, paused))


@given(
    st.integers(1, 5),
    st.builds(
        Exponential,
        st.floats(0, 1e4),
        st.floats(1, 4),
        st.floats(0, 1e5),
        st.floats(0, 1e3),
        st.none() | st.integers(0, 8),
    ),
)
def test_a_delay_that_the_policy_chose_is_told_as_the_policys(run: int, backoff: Exponential) -> None:
    policy = Policy("work", max_attempts=6, backoff=backoff)
    message = Message(id=ID, queue="work", attempts=run - 1)
    step = next_step(policy, message, NOW, NOW, Ended(Ending.RETRY, "no"))
    said = words(stored(attempts=run, in_s=step.delay_s), entry(run, step.delay_s), policy=policy)
    assert f"After run {run} the policy waits" in said


def test_the_formula_has_the_numbers_of_the_policy() -> None:
    delay_s = planned_delay_s(POLICY, ID, 3)
    said = words(stored(attempts=3, in_s=delay_s), entry(3, delay_s))
    assert "the policy waits 60 s · 2^2, at most 1 h, plus up to 10 s of jitter = 4 min" in said
    assert "It is retried in 4 min" in said
    assert "after 6 runs, of which 3 have ended" in said


def test_a_delay_that_somebody_asked_for_is_not_told_as_the_policys() -> None:
    said = words(stored(attempts=1, in_s=1_800), entry(1, 1_800))
    assert "Run 1 requested 30 min itself" in said
    assert "the policy waits" not in said


def test_without_the_log_or_the_policy_nothing_is_invented() -> None:
    assert "is not known" in words(stored(attempts=2, in_s=60))
    assert "is not known" in words(stored(attempts=2, in_s=60), entry(2, 60), policy=None)


def test_each_state_says_what_happens_next() -> None:
    assert "nothing runs it again until somebody redrives it" in words(stored(State.PARKED))
    assert "worker-7 is running it now" in words(stored(State.LEASED))
    assert "died twice" not in words(stored(State.ALONE, crashes=2))
    assert "died 2 times while it ran" in words(stored(State.ALONE, crashes=2))
    assert "It was put with a delay: it falls due in 1 h" in words(stored(in_s=3_600))
    assert "It has been due for 5 s" in words(stored(in_s=-5))
    assert "died once; that does not count as an attempt" in words(stored(crashes=1))


def test_a_paused_queue_is_said_first() -> None:
    assert words(stored(), paused="the bank is down").startswith("The queue is paused (the bank is down)")
    assert "paused" not in words(stored(State.PARKED), paused="the bank is down")


def test_giving_up_is_told_by_count_by_age_by_both_or_never() -> None:
    by_age = Policy("work", max_attempts=None, give_up_after_s=86_400)
    first = NOW - timedelta(seconds=1) + timedelta(days=1)
    assert f"1 d after the first attempt ({first:%Y-%m-%d %H:%M:%S} UTC)" in words(
        stored(attempts=1), entry(1, 60), policy=by_age
    )
    assert "It is retried for ever" in words(stored(), policy=Policy("work", max_attempts=None))


@given(st.integers(1, 100), st.floats(1, 3_600))
def test_a_policy_comes_back_from_its_description(attempts: int, lease_s: float) -> None:
    policy = Policy("work", max_attempts=attempts, lease_s=lease_s, lanes=True, rate=5.0, log="failures")
    assert policy_as_described(policy.described()) == policy
