"""Explains the state of a message and the time of its next attempt, in words derived from the policy and the log."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from payonce.engine.messages.job_log import Entry, Status
from payonce.engine.messages.model import State
from payonce.engine.messages.policy import Exponential, Policy, planned_delay_s
from payonce.engine.messages.ports import QueuedMessage
from payonce.kit.words import counted

ROUNDING_S: Final = 2.0
"""The end of a run is recorded a moment after its delay was computed."""


def why_next(
    stored: QueuedMessage, policy: Policy | None, runs: Sequence[Entry], now: datetime, paused_reason: str | None = None
) -> list[str]:
    """Sentences, the most important first. `runs` are the ended runs of the message in time order."""
    match stored.state:
        case State.PARKED:
            sentences = ["It is parked: nothing runs it again until somebody redrives it."]
            if stored.last_error:
                sentences.append("The last error gives the reason; repair that first, then redrive.")
        case State.LEASED:
            sentences = [_leased(stored, policy)]
        case State.ALONE:
            sentences = [f"Its workers died {_times(stored.crashes)} while it ran, so its next run is isolated."]
            sentences.append("If a worker dies again, it is parked.")
        case State.READY:
            sentences = [_due(stored, now)]
            if stored.message.attempts:
                sentences.append(_delay(stored, policy, runs))
    if stored.state is not State.PARKED:
        if paused_reason is not None:
            sentences.insert(0, f"The queue is paused ({paused_reason}), so nothing starts until it is resumed.")
        if policy is not None:
            sentences.append(_limits(stored, policy, runs))
        if stored.state is not State.ALONE and stored.crashes:
            sentences.append(f"Its workers died {_times(stored.crashes)}; that does not count as an attempt.")
    return sentences


def _leased(stored: QueuedMessage, policy: Policy | None) -> str:
    who = stored.worker or "a worker"
    limit = f" A run is cancelled after {_duration(policy.run_limit_s)}." if policy is not None else ""
    return f"{who} is running it now. If that worker dies, another takes over when the lease ends.{limit}"


def _due(stored: QueuedMessage, now: datetime) -> str:
    if not stored.due_known:
        return "It was pushed directly, so its due time is not known yet. It waits for a worker with a free slot."
    wait_s = (stored.ready_at - now).total_seconds()
    if wait_s > 0:
        return (
            f"It is retried in {_duration(wait_s)}, at {_moment(stored.ready_at)}."
            if (stored.message.attempts)
            else f"It was put with a delay: it falls due in {_duration(wait_s)}, at {_moment(stored.ready_at)}."
        )
    return f"It has been due for {_duration(-wait_s)}, and waits for a worker with a free slot."


def _delay(stored: QueuedMessage, policy: Policy | None, runs: Sequence[Entry]) -> str:
    """Whether the policy chose the delay, or the handler or the vendor requested another one."""
    last = next((run for run in reversed(runs) if run.status is Status.RETRY and run.next_retry_at), None)
    if last is None or last.next_retry_at is None or policy is None:
        return "The log of its last run is gone, so the reason for the delay is not known."
    chosen_s = (last.next_retry_at - last.created_at).total_seconds()
    run = stored.message.attempts
    planned_s = planned_delay_s(policy, stored.message.id, run)
    if abs(chosen_s - planned_s) > ROUNDING_S:
        return (
            f"Run {run} requested {_duration(chosen_s)} itself, or a control held it; by the policy it would have "
            f"waited {_duration(planned_s)}."
        )
    return f"After run {run} the policy waits {_formula(policy.backoff, run)} = {_duration(planned_s)}."


def _formula(backoff: Exponential, run: int) -> str:
    if backoff.backoff_multiplier == 1 or run == 1:
        words = f"{backoff.base_delay_seconds:g} s"
    elif backoff.max_doublings is not None:
        words = f"{backoff.base_delay_seconds:g} s, doubled up to {backoff.max_doublings} times"
    else:
        words = f"{backoff.base_delay_seconds:g} s · {backoff.backoff_multiplier:g}^{run - 1}"
    words += f", at most {_duration(backoff.max_delay_seconds)}" if backoff.backoff_multiplier > 1 else ""
    return words + (f", plus up to {backoff.jitter_seconds:g} s of jitter" if backoff.jitter_seconds else "")


def _limits(stored: QueuedMessage, policy: Policy, runs: Sequence[Entry]) -> str:
    limit = stored.message.max_attempts or policy.max_attempts
    done = stored.message.attempts
    first = next((run.started_at for run in runs if run.started_at is not None), None)
    ends = []
    if limit is not None:
        ends.append(f"after {counted(limit, 'run', 'runs')}, of which {done} {'has' if done == 1 else 'have'} ended")
    if policy.give_up_after_s is not None:
        age = f" ({_moment(first + timedelta(seconds=policy.give_up_after_s))})" if first is not None else ""
        ends.append(f"{_duration(policy.give_up_after_s)} after the first attempt{age}")
    return f"It is given up {', or '.join(ends)}." if ends else "It is retried for ever: its policy has no limit."


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _moment(value: datetime) -> str:
    return value.strftime("%Y-%m-%d %H:%M:%S UTC")


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s".replace(".0 s", " s")
    left, parts = round(seconds), []
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s")):
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2])
