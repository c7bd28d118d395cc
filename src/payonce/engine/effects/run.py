"""The course of an effect within one run: prepare, record the intent, perform, record the outcome; or resolve first."""

import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from payonce.engine.effects import store
from payonce.engine.effects.declaration import (
    SEND_MAX_S,
    Effect,
    Findable,
    Happened,
    Outcome,
    Request,
    decode,
)
from payonce.engine.effects.identity import check_same, prepare
from payonce.engine.effects.model import (
    REVIEW_LOOK_S,
    UNDONE,
    Cause,
    EffectRecord,
    Event,
    NextAction,
    Result,
    State,
    Step,
    next_action,
)
from payonce.engine.effects.resolve import Burnt, open_review, resolve
from payonce.engine.effects.send import Run, send, send_again
from payonce.engine.messages.model import NAME_MAX_LENGTH
from payonce.engine.messages.transaction import Tx
from payonce.kit.outcomes import Invalid, Refused, Retry

TURNS_MAX: Final = 8
"""How often a run looks again after another run changed the effect meanwhile."""

BURNT: Final = NextAction(Step.REGENERATE, "it did not happen, and its reference was burnt at the vendor", burnt=True)

Intent = Callable[[Tx], Awaitable[object]]


async def run_effect(
    run: Run, effect: Effect[Request, Outcome], key: str, intent: Intent | None, scope: str | None
) -> Outcome:
    """The outcome, from the record or from the vendor. Raises Refused, Retry, Unknown, Stale or KeyReused."""
    _check(run, effect, key, scope)
    for _ in range(TURNS_MAX):
        found = await store.generations(run.read, effect.kind, key)
        run.seen.update((each.id, each.revision) for each in found)
        earlier, newest = found[:-1], found[-1] if found else None
        if newest is None or (newest.superseded and newest.state in UNDONE and not earlier):
            outcome = await _first(run, effect, key, newest, intent, scope)
        elif earlier and newest.state is not State.PERFORMED:
            outcome = await _after_all(run, effect, newest, earlier, intent)
        else:
            outcome = await _follow(run, effect, newest, intent)
        if outcome is not None:
            return outcome.value
    raise Retry(f"{effect.kind} {key} is being changed by other runs")


async def _follow(
    run: Run, effect: Effect[Request, Outcome], stored: EffectRecord, intent: Intent | None
) -> Happened[Outcome] | None:
    """The next step of an effect on record; None to look again."""
    await _check_record(run, effect, stored)
    move = next_action(stored, effect.safety, effect.timeout_s, effect.can_resolve)
    match move.step:
        case Step.RETURN | Step.REFUSE if stored.intent_due:
            await _catch_up(run, stored, intent)
            return None
        case Step.RETURN:
            assert stored.outcome is not None
            return Happened(decode(stored.outcome, effect.outcome_type, f"the outcome of {stored.label}"))
        case Step.REFUSE:
            raise Refused(move.reason)
        case Step.WAIT:
            raise Retry(move.reason, move.after_s)
        case Step.SEND:
            return await send_again(run, effect, stored, State.INTENDED)
        case Step.REPLAY:
            return await send_again(run, effect, stored, State.UNKNOWN)
        case Step.REGENERATE:
            return await _regenerate(run, effect, stored, move)
        case Step.RESOLVE:
            found = await resolve(run, effect, stored)
            if isinstance(found, Burnt):
                return await _regenerate(run, effect, found.stored, BURNT)
            return found
        case Step.REVIEW:
            assert move.cause is not None
            await open_review(run, stored, move.cause)
            return None


async def _check_record(run: Run, effect: Effect[Any, Any], stored: EffectRecord) -> None:
    """Checks that this run can read the record and requests the same effect."""
    if stored.version > effect.version:
        raise Retry(f"{stored.label} has version {stored.version}, but this worker knows {effect.version}")
    effect.reference = f"{stored.key}:{stored.generation}"
    await check_same(effect, stored, run.service)


async def _catch_up(run: Run, stored: EffectRecord, intent: Intent | None) -> None:
    """Runs the intent of an effect that ended without it, so that the handler continues from the intended state."""
    async with run.intent() as tx:
        if await store.take_intent(tx.connection, stored.kind, stored.key) and intent is not None:
            await intent(tx)


async def _after_all(
    run: Run, effect: Effect[Request, Outcome], newest: EffectRecord, earlier: list[EffectRecord], intent: Intent | None
) -> Happened[Outcome] | None:
    """Handles an earlier generation that happened, or may have happened, after all: nothing goes out under the key.
    None to look again."""
    await _check_record(run, effect, newest)
    happened = next((each for each in earlier if each.state is State.PERFORMED), None)
    if happened is None:
        raise Retry(f"{newest.label} waits until it is known whether {earlier[0].label} happened", REVIEW_LOOK_S)
    if newest.state in UNDONE:
        return await _follow(run, effect, happened, intent)
    move = next_action(newest, effect.safety, effect.timeout_s, effect.can_resolve)
    if move.step is Step.WAIT:
        raise Retry(move.reason, move.after_s)
    if move.step is not Step.SEND:
        await open_review(run, newest, Cause.CONTRADICTION)
        return None
    reason = f"generation {happened.generation} happened after all"
    async with run.intent() as tx:
        result = Result(Event.ABANDONED, reason)
        await store.move(tx.connection, newest, State.ABANDONED, result, claim=run.claim, reason=reason)
    return None


async def _first(
    run: Run,
    effect: Effect[Request, Outcome],
    key: str,
    before: EffectRecord | None,
    intent: Intent | None,
    scope: str | None,
    abandoning: NextAction | None = None,
) -> Happened[Outcome] | None:
    """The first attempt of a generation. The intent moves the business state in the commit that records the request."""
    generation = 1 if before is None else before.generation + 1
    effect.reference = f"{key}:{generation}"
    prepared = await prepare(effect)
    request = prepared.request
    sent_at = time.monotonic()
    async with run.intent() as tx:
        ended = generation if abandoning is None else generation - 1
        await store.check_earlier(tx.connection, effect.kind, key, ended)
        if abandoning is not None and before is not None:
            result = Result(Event.ABANDONED, abandoning.reason)
            abandoned = await store.move(
                tx.connection,
                before,
                State.ABANDONED,
                result,
                claim=run.claim,
                reason=abandoning.reason,
                burnt=abandoning.burnt,
            )
            if not abandoned:
                return None
        await run.check(tx, effect, key, scope, request, again=abandoning is not None)
        stored = await store.insert(
            tx.connection,
            run.claim,
            effect,
            key=key,
            generation=generation,
            request=prepared.document,
            identity=prepared.identity,
            scope=scope,
            amount=effect.amount(request),
            service=run.service,
        )
        if stored is None:
            if abandoning is None:
                return None
            raise Retry(f"another run is performing {effect.kind} {key}:{generation}")
        if abandoning is None and before is not None:
            await store.take_intent(tx.connection, effect.kind, key)
        if intent is not None:
            await intent(tx)
    return await send(run, effect, stored, request, sent_at)


async def _regenerate(
    run: Run, effect: Effect[Request, Outcome], stored: EffectRecord, move: NextAction
) -> Happened[Outcome] | None:
    # The intent was committed with the first generation and must not move the business state twice.
    return await _first(run, effect, stored.key, stored, None, stored.scope, move)


def _check(run: Run, effect: Effect[Any, Any], key: str, scope: str | None) -> None:
    for what, text in (("kind", effect.kind), ("key", key), ("scope", scope)):
        if text is not None and (not 1 <= len(text) <= NAME_MAX_LENGTH or "\x00" in text):
            raise Invalid(f"{what} {text[:40]!r} of an effect must have 1 to {NAME_MAX_LENGTH} characters and no NUL")
    lease_s = run.queue.policy.lease_s
    if not 0 < effect.timeout_s < lease_s:
        raise Invalid(
            f"timeout_s of {effect.kind} is {effect.timeout_s:g}; it must be positive and below the queue's lease of "
            f"{lease_s:g} s, or another run could begin while this one waits for an answer"
        )
    if effect.timeout_s > SEND_MAX_S:
        raise Invalid(
            f"timeout_s of {effect.kind} is {effect.timeout_s:g}, the limit is {SEND_MAX_S:g}, the time for which "
            "a quarantine waits for earlier sends; let the call start the work at the vendor, and resolve() "
            "query its end"
        )
    if isinstance(effect.safety, Findable) and not effect.can_resolve:
        raise Invalid(f"{effect.kind} is declared findable and has no resolve(); write one, or declare it blind")
