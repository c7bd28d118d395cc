"""Policies: the decision after a run, invalid values, and overrides by the environment."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from payonce.engine.messages.model import DELAY_MAX_S, Ending, Message
from payonce.engine.messages.policy import (
    Ended,
    Exponential,
    Fixed,
    Policy,
    Step,
    Steps,
    environment_name,
    next_step,
    override,
    override_from_environment,
)
from payonce.kit.outcomes import Invalid

START = datetime(2026, 1, 1, tzinfo=UTC)
RETRIED = Ended(Ending.RETRY, "busy")


def after_run(policy: Policy, run: int, *, age_s: float = 0.0, ended: Ended = RETRIED, **fields: object) -> Step:
    """The decision after run number `run`."""
    message = Message(queue=policy.queue, attempts=run - 1, **fields)  # type: ignore[arg-type]
    return next_step(policy, message, START, START + timedelta(seconds=age_s), ended)


backoffs = st.builds(
    Exponential,
    base_delay_seconds=st.floats(0, 1e6),
    backoff_multiplier=st.floats(0, 100),
    max_delay_seconds=st.floats(0, 1e6),
    jitter_seconds=st.floats(0, 1e4),
    max_doublings=st.none() | st.integers(0, 2_000),
)
policies = st.builds(
    Policy,
    queue=st.just("work"),
    max_attempts=st.none() | st.integers(1, 10_000),
    give_up_after_s=st.none() | st.floats(0.001, 1e7),
    backoff=backoffs,
)
messages = st.builds(
    Message,
    queue=st.just("work"),
    id=st.uuids(),
    attempts=st.integers(0, 2**31 - 2),
    max_attempts=st.none() | st.integers(1, 100),
)
endings = st.builds(
    Ended,
    ending=st.sampled_from(Ending),
    reason=st.none() | st.text(max_size=20),
    after_s=st.none() | st.floats(allow_nan=True, allow_infinity=True),
)
ages_s = st.floats(-10, 1e8)


@given(policies, messages, ages_s, endings)
def test_there_is_always_a_next_step_and_always_the_same(
    policy: Policy, message: Message, age_s: float, ended: Ended
) -> None:
    now = START + timedelta(seconds=age_s)
    step = next_step(policy, message, START, now, ended)
    assert step == next_step(policy, message, START, now, ended)
    assert 0 <= step.delay_s <= DELAY_MAX_S, "a delay that the store cannot keep would never be settled"


@given(policies, messages, ages_s)
def test_a_retry_follows_its_backoff_within_the_limits(policy: Policy, message: Message, age_s: float) -> None:
    step = next_step(policy, message, START, START + timedelta(seconds=age_s), RETRIED)
    limit = message.max_attempts if message.max_attempts is not None else policy.max_attempts
    out_of_attempts = limit is not None and message.attempts + 1 >= limit
    if step.ending is Ending.RETRY:
        assert not out_of_attempts
        assert step.delay_s <= policy.backoff.max_delay_seconds + policy.backoff.jitter_seconds
        assert policy.give_up_after_s is None or age_s + step.delay_s <= policy.give_up_after_s
    else:
        assert (step.ending, step.give_up, step.delay_s) == (Ending.PARKED, True, 0.0)
        assert out_of_attempts or policy.give_up_after_s is not None


@given(policies, messages, st.sampled_from([Ending.SUCCESS, Ending.FAILED, Ending.PARKED]))
def test_a_definite_end_stays_as_it_is(policy: Policy, message: Message, ending: Ending) -> None:
    assert next_step(policy, message, START, START, Ended(ending, "so")) == Step(ending, "so")


@given(policies, messages)
def test_a_released_message_comes_back_whatever_its_limits(policy: Policy, message: Message) -> None:
    step = next_step(policy, message, START, START + timedelta(days=1_000), Ended(Ending.RELEASED, "unknown action"))
    assert step.ending is Ending.RELEASED
    assert step.delay_s > 0


@given(policies, messages, st.floats(0, 1e300))
def test_a_held_message_comes_back_when_its_brake_says_whatever_its_limits(
    policy: Policy, message: Message, after_s: float
) -> None:
    ended = Ended(Ending.RELEASED, "freeze 1", after_s)
    step = next_step(policy, message, START, START + timedelta(days=1_000), ended)
    assert (step.ending, step.delay_s) == (Ending.RELEASED, min(after_s, DELAY_MAX_S))


def test_doublings_are_counted_as_cloud_tasks_does() -> None:
    policy = Policy("work", max_attempts=None, backoff=Exponential(10, 2, 300, 0, max_doublings=3))
    assert [after_run(policy, run).delay_s for run in range(1, 8)] == [10, 20, 40, 80, 160, 240, 300]


def test_an_exponential_backoff_grows_to_its_maximum() -> None:
    policy = Policy("work", max_attempts=None, backoff=Exponential(60, 2, 3_600))
    assert [after_run(policy, run).delay_s for run in range(1, 9)] == [60, 120, 240, 480, 960, 1_920, 3_600, 3_600]


def test_a_fixed_backoff_stays() -> None:
    policy = Policy("work", max_attempts=None, backoff=Fixed(60))
    assert {after_run(policy, run).delay_s for run in (1, 2, 1_000_000)} == {60}


def test_steps_are_taken_one_after_the_other_and_the_last_one_stays() -> None:
    policy = Policy("work", max_attempts=None, backoff=Steps(5, 300, 1_800))
    assert [after_run(policy, run).delay_s for run in range(1, 6)] == [5, 300, 1_800, 1_800, 1_800]
    written = override(policy, {"steps_seconds": "1, 2.5"})
    assert written.backoff.steps_seconds == (1.0, 2.5)
    for bad in ("1,x", "-1", "nan"):
        with pytest.raises(Invalid, match="steps_seconds"):
            override(policy, {"steps_seconds": bad})


@pytest.mark.parametrize("retry", [2, 1_100, 10**6])
@pytest.mark.parametrize("max_doublings", [None, 2_000])
def test_no_delay_stays_no_delay(retry: int, max_doublings: int | None) -> None:
    assert Exponential(0.0, 2.0, 3_600.0, 0.0, max_doublings).delay_s(retry, 0.0) == 0


@given(st.uuids(), st.integers(1, 1_000))
def test_jitter_is_the_same_for_one_run_and_within_its_bound(message_id: UUID, run: int) -> None:
    policy = Policy("work", max_attempts=None, backoff=Fixed(10, jitter_s=5))
    step = after_run(policy, run, id=message_id)
    assert step == after_run(policy, run, id=message_id)
    assert 10 <= step.delay_s <= 15


def test_jitter_spreads_messages_that_failed_together() -> None:
    policy = Policy("work", backoff=Fixed(10, jitter_s=5))
    delays = sorted(after_run(policy, 1).delay_s for _ in range(200))
    assert delays[0] < 11
    assert delays[-1] > 14
    assert len(set(delays)) == 200


@pytest.mark.parametrize(("max_attempts", "runs"), [(1, 1), (3, 3)])
def test_max_attempts_counts_the_first_run(max_attempts: int, runs: int) -> None:
    policy = Policy("work", max_attempts=max_attempts)
    endings = [after_run(policy, run).ending for run in range(1, runs + 1)]
    assert endings == [Ending.RETRY] * (runs - 1) + [Ending.PARKED]
    assert after_run(policy, runs).give_up


def test_a_messages_own_limit_overrides_the_policys() -> None:
    policy = Policy("work", max_attempts=3)
    assert after_run(policy, 1, max_attempts=1).ending is Ending.PARKED
    assert after_run(policy, 9, max_attempts=10).ending is Ending.RETRY
    assert after_run(replace(policy, max_attempts=None), 5, max_attempts=5).ending is Ending.PARKED


def test_giving_up_by_age_counts_the_wait_before_the_next_run() -> None:
    policy = Policy("work", max_attempts=None, give_up_after_s=100, backoff=Fixed(60))
    assert after_run(policy, 1, age_s=40).ending is Ending.RETRY
    step = after_run(policy, 2, age_s=41)
    assert (step.ending, step.give_up) == (Ending.PARKED, True)
    assert step.reason is not None
    assert "busy" in step.reason


def test_a_handler_may_say_when() -> None:
    policy = Policy("work", give_up_after_s=1_000, backoff=Fixed(60))
    assert after_run(policy, 1, ended=Ended(Ending.RETRY, "busy", after_s=7)).delay_s == 7
    assert after_run(policy, 1, ended=Ended(Ending.RETRY, "busy", after_s=-7)).delay_s == 0
    assert after_run(policy, 1, ended=Ended(Ending.RETRY, "busy", after_s=2_000)).ending is Ending.PARKED


@pytest.mark.parametrize("after_s", [1e12, float("inf"), float("nan")])
def test_a_time_beyond_reason_is_bounded(after_s: float) -> None:
    """A vendor's Retry-After, read without care, must not make a settlement that the store refuses for ever."""
    step = after_run(Policy("work", max_attempts=None), 1, ended=Ended(Ending.RETRY, "busy", after_s))
    assert 0 <= step.delay_s <= DELAY_MAX_S


NONSENSE: list[tuple[str, object]] = [
    ("max_attempts", 0),
    ("give_up_after_s", 0),
    ("lease_s", 0.5),
    ("lease_s", float("inf")),
    ("run_limit_s", -1),
    ("concurrency", 0),
    ("rate", 0),
    ("rate", float("nan")),
    ("burst", 0),
    ("log", "some"),
    ("on_give_up", "drop"),
]


@pytest.mark.parametrize(("name", "value"), NONSENSE)
def test_a_policy_that_makes_no_sense_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(Invalid, match=name):
        replace(Policy("work"), **{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("field", ["base_delay_seconds", "backoff_multiplier", "max_delay_seconds", "jitter_seconds"])
@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_a_backoff_that_makes_no_sense_is_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(Invalid, match=field):
        Policy("work", backoff=replace(Exponential(), **{field: value}))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["", "with space", "q:ü", "x" * 201, "a\nb", "work\n"])
def test_a_queue_name_that_operators_cannot_type_is_refused(name: str) -> None:
    with pytest.raises(Invalid, match="queue name"):
        Policy(name)


def test_a_queue_without_a_limit_has_no_limit_name() -> None:
    assert Policy("work").limit_name is None
    assert Policy("work", limit="vendor").limit_name == "vendor", "the numbers may be stated by another queue"
    assert Policy("work", rate=5).limit_name == "work"
    assert Policy("work", concurrency=5, limit="vendor").limit_name == "vendor"


def test_the_environment_changes_a_policy_by_the_queues_name() -> None:
    environ = {
        "QUEUE_POLICY__SUB_PAYMENT_INITIATION__MAX_RETRIES": "7",
        "QUEUE_POLICY__SUB_PAYMENT_INITIATION__LOCK_TTL_SECONDS": "45",
        "QUEUE_POLICY__SUB_PAYMENT_INITIATION__BASE_DELAY_SECONDS": "2.5",
        "QUEUE_POLICY__SUB_PAYMENT_INITIATION__LANES": "true",
        "QUEUE_POLICY__SUB_PAYMENT__MAX_RETRIES": "1",
        "QUEUE_POLICY__OTHER__MAX_RETRIES": "2",
    }
    policy = override_from_environment(Policy("q:sub:payment_initiation"), environ)
    assert (policy.max_attempts, policy.lease_s, policy.backoff.base_delay_seconds, policy.lanes) == (8, 45, 2.5, True)


def test_without_an_override_the_policy_stays() -> None:
    policy = Policy("q:sub:payment_initiation", max_attempts=2)
    assert override_from_environment(policy, {"QUEUE_POLICY__SUB_PAYMENT__MAX_RETRIES": "1", "HOME": "x"}) == policy


@pytest.mark.parametrize(
    ("queue", "name"),
    [("q:sub:payment_initiation", "SUB_PAYMENT_INITIATION"), ("eth-client.swap-queue", "ETH_CLIENT_SWAP_QUEUE")],
)
def test_a_queues_name_in_the_environment(queue: str, name: str) -> None:
    assert environment_name(queue) == name


def test_an_unknown_field_is_refused_by_name() -> None:
    with pytest.raises(Invalid, match=r"'max_retrys'.*max_retries"):
        override_from_environment(Policy("work"), {"QUEUE_POLICY__WORK__MAX_RETRYS": "7"})
    for name in ("on_give_up", "payload", "contract"):
        with pytest.raises(Invalid, match=f"'{name}'"):
            override(Policy("work"), {name: "park"})


@pytest.mark.parametrize(
    ("name", "value"),
    [("max_retries", "seven"), ("max_retries", "7.5"), ("rate", "fast"), ("lanes", "perhaps"), ("max_retries", "-1")],
)
def test_a_value_of_the_wrong_kind_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(Invalid, match="max_attempts" if value == "-1" else name):
        override(Policy("work"), {name: value})


@pytest.mark.parametrize("name", ["lease_s", "run_limit_s", "burst", "base_delay_seconds", "jitter_seconds", "log"])
@pytest.mark.parametrize("value", ["", "none"])
def test_a_field_that_must_have_a_value_cannot_be_emptied(name: str, value: str) -> None:
    """An empty variable in a deployment file is a common slip."""
    with pytest.raises(Invalid, match=name):
        override(Policy("work"), {name: value})


@pytest.mark.parametrize("name", ["max_retries", "max_attempts", "give_up_after_s", "concurrency", "rate"])
def test_a_limit_can_be_taken_off(name: str) -> None:
    limited = Policy("work", max_attempts=3, give_up_after_s=60, concurrency=5, rate=5)
    field = "max_attempts" if name == "max_retries" else name
    assert getattr(override(limited, {name: "none"}), field) is None


def test_a_described_policy_can_be_read_back() -> None:
    policy = Policy("work", max_attempts=3, rate=2.5, backoff=Exponential(1, 3, 9, 2, 4), lanes=True)
    described = policy.described()
    assert Policy(**{**described, "backoff": Exponential(**described["backoff"])}) == policy  # type: ignore[arg-type]
