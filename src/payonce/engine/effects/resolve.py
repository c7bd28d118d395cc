"""Resolves doubtful effects: asks the vendor, and sends again only what did not happen and no longer can."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from payonce.engine.effects import store
from payonce.engine.effects.declaration import (
    CannotTell,
    DidNot,
    Effect,
    Findable,
    Happened,
    Outcome,
    Request,
    decode,
    encode,
)
from payonce.engine.effects.model import Cause, EffectRecord, Event, Result, State
from payonce.engine.effects.send import BEGIN_SHARE, Run, send_again
from payonce.engine.monitoring import metrics
from payonce.kit.outcomes import Retry
from payonce.kit.redact import redact


@dataclass(frozen=True)
class Burnt:
    """It did not happen and never will: the vendor no longer accepts its reference."""

    stored: EffectRecord


async def resolve(run: Run, effect: Effect[Request, Outcome], stored: EffectRecord) -> Happened[Outcome] | Burnt | None:
    """Asks the vendor. Sends again only what did not happen and, after the vendor's fence, no longer can."""
    request = decode(stored.request, effect.request_type, f"the request of {stored.label}")
    answer, after = await _ask(run, effect, stored, request)
    if isinstance(answer, Happened):
        return answer
    if not _untouched(stored, after):
        return None
    if not isinstance(effect.safety, Findable):
        await open_review(run, after, Cause.KEY_EXPIRED)
        return None
    # Uses the time before the query: the vendor was not asked about anything later.
    if (wait_s := store.did_not_counts(stored, effect.safety.horizon_s)) > 0:
        raise Retry(f"the vendor does not show {stored.label}, which proves nothing yet", wait_s)
    if effect.safety.fence is None:
        if after.ruled_out:
            return await send_again(run, effect, after, State.INTENDED)
        await open_review(run, after, Cause.NO_FENCE)
        return None
    return await _fence_and_send(run, effect, after, request, effect.safety.fence, effect.safety.burns)


async def _fence_and_send(
    run: Run,
    effect: Effect[Request, Outcome],
    stored: EffectRecord,
    request: Request,
    fence: Callable[[Any], Awaitable[None]],
    burns: bool,
) -> Happened[Outcome] | Burnt | None:
    sent_at = time.monotonic()
    async with run.intent() as tx:
        # A fence changes the vendor's side too, and would be wasted if the send after it is held back.
        await run.check(tx, effect, stored.key, stored.scope, request, again=True, effect_id=stored.id)
        await store.check_earlier(tx.connection, stored.kind, stored.key, stored.generation)
        held = await store.hold_for_fencing(tx.connection, stored, effect.timeout_s)
    if held is None:
        return None
    if time.monotonic() > sent_at + effect.timeout_s * BEGIN_SHARE:
        raise Retry(f"{stored.label} was not fenced: the run was delayed")
    try:
        async with asyncio.timeout(sent_at + effect.timeout_s - time.monotonic()):
            with metrics.VENDOR_SECONDS.labels(effect.kind, "fence").time():
                await fence(request)
    except Exception as error:
        await run.record(held, Result(Event.CANNOT_TELL, f"the fence failed: {type(error).__name__}: {error}"))
        raise Retry(f"{stored.label} could not be fenced: {redact(str(error))}") from error
    await run.record(held, Result(Event.FENCED))
    # It may have happened between the first query and the fence.
    answer, after = await _ask(run, effect, held, request)
    if isinstance(answer, Happened):
        return answer
    if not _untouched(held, after):
        return None
    return Burnt(after) if burns else await send_again(run, effect, after, State.INTENDED)


async def _ask(
    run: Run, effect: Effect[Request, Outcome], stored: EffectRecord, request: Request
) -> tuple[Happened[Outcome] | DidNot, EffectRecord]:
    """One query to the vendor, and the effect after its answer was recorded. Raises Retry when the vendor
    cannot tell."""
    answer: Happened[Outcome] | DidNot | CannotTell
    try:
        async with asyncio.timeout(effect.timeout_s):
            with metrics.VENDOR_SECONDS.labels(effect.kind, "resolve").time():
                answer = await effect.resolve(request)
    except Exception as error:
        answer = CannotTell(f"{type(error).__name__}: {error}")
    if isinstance(answer, CannotTell):
        await run.record(stored, Result(Event.CANNOT_TELL, answer.reason))
        raise Retry(f"whether {stored.label} happened is not known: {redact(answer.reason)}")
    if isinstance(answer, DidNot):
        return answer, await run.record(stored, Result(Event.DID_NOT))
    document = encode(answer.value, effect.outcome_type, f"the outcome of {stored.label}")
    after = await run.record(stored, Result(Event.FOUND, None, document, effect.vendor_ref(answer.value)))
    if after.state is not State.PERFORMED:
        raise Retry(f"{after.label} waits for a person: {after.review_cause}")
    return answer, after


def _untouched(before: EffectRecord, after: EffectRecord) -> bool:
    """Whether nothing else attempted, held or ended the effect while the vendor was asked."""
    return (
        after.state in (State.INTENDED, State.UNKNOWN)
        and after.attempt == before.attempt
        and after.busy_until == before.busy_until
    )


async def open_review(run: Run, stored: EffectRecord, cause: Cause) -> None:
    """Opens a review unless the effect has changed. The next look waits for the answer or sees the change."""
    async with run.intent() as tx:
        result = Result(Event.GAVE_UP, cause)
        await store.move(tx.connection, stored, State.REVIEW, result, claim=run.claim, cause=cause)
