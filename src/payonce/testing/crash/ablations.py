"""Safeguards removed one at a time: without each, the explorer must find damage, or it proves nothing about it.

An ablation is applied inside a forked child and ends with it; the explorer and its records are unaffected.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Final
from uuid import UUID

import msgspec

from payonce.engine import controls
from payonce.engine.controls import actions
from payonce.engine.database import commits
from payonce.engine.database.connections import Database
from payonce.engine.effects import resolve, send, store
from payonce.engine.effects import run as running
from payonce.engine.effects.declaration import Effect
from payonce.engine.effects.model import (
    OPEN,
    EffectRecord,
    Event,
    NextAction,
    Result,
    State,
    Step,
    next_action,
    state_after,
)
from payonce.engine.effects.send import Run
from payonce.engine.ledger import PostingId
from payonce.engine.messages.model import Claim, Ending, Settlement
from payonce.engine.messages.ports import Exchange, PullQueue
from payonce.engine.messages.transaction import Tx
from payonce.engine.messages.work import Work
from payonce.kit.ids import new_id
from payonce.kit.outcomes import Stale
from payonce.queues.postgres import PostgresQueue, statements
from payonce.testing.crash import child, crossings
from payonce.testing.crash.model import SENT_IN_QUARANTINE, Mode
from payonce.testing.crash.scenarios.client import BankClient, Order, Receipt, receipt_of

DAMAGE: Final = frozenset({"happened twice", "books differ", "ledger", "invariant"})


@dataclass(frozen=True)
class Ablation:
    """A safeguard, a function that removes it from this process, and where to look for damage first."""

    name: str
    apply: Callable[[], object]
    scenario: str
    mode: Mode
    shows: frozenset[str] = DAMAGE
    """The kinds of violation that count: an ablation that merely breaks the run proves nothing."""
    near: str = ""
    """Part of the site to try first."""


def put(target: object, name: str, replacement: Any) -> None:
    """Replaces an attribute. Fails if it does not exist: the ablation would remove nothing."""
    assert hasattr(target, name), f"{target!r} has no {name} any more: the ablation removes nothing"
    setattr(target, name, replacement)


def no_intent_on_record() -> None:
    """The statements of an intent run, but are rolled back."""

    @asynccontextmanager
    async def intent_rolled_back(run: Run) -> AsyncIterator[Tx]:
        async with run.database.handlers.acquire() as connection:
            transaction = connection.transaction()
            await transaction.start()
            try:
                yield Tx(connection, run.feed)
            finally:
                await transaction.rollback()

    put(Run, "intent", intent_rolled_back)
    put(Run, "record", _record_nowhere)


async def _record_nowhere(run: Run, stored: EffectRecord, result: Result) -> EffectRecord:
    return msgspec.structs.replace(stored, state=State.PERFORMED)


def no_fence_in_the_commit() -> None:
    """A run that lost its message commits nevertheless."""
    refusing = "payonce.refuse_stale($1, $7)"
    assert refusing in statements.SETTLE_WITHIN, "the fence has changed: the ablation removes nothing"
    # Every parameter stays in use: PostgreSQL refuses statements with unused ones, and no run could commit.
    put(
        statements,
        "SETTLE_WITHIN",
        statements.SETTLE_WITHIN.replace(refusing, "case when $7::text is not null then $6 end"),
    )


def acknowledged_before_the_work() -> None:
    """At most once: a claimed message is gone from the queue."""
    no_fence_in_the_commit()
    acknowledge_on_claim(PostgresQueue)


def acknowledge_on_claim(queue_class: Any) -> None:
    """Settles each message as it is claimed; runs hold it no longer, but go on."""
    exchange = queue_class.exchange

    async def claim_and_forget(queue: PullQueue, settlements: Sequence[Settlement], limit: int) -> Exchange:
        claimed: Exchange = await exchange(queue, settlements, limit)
        if claimed.claims:
            await exchange(queue, [Settlement(claim, Ending.SUCCESS) for claim in claimed.claims], 0)
        return claimed

    async def always(queue: PullQueue, connection: Any, claim: Claim) -> bool:
        return True

    put(queue_class, "exchange", claim_and_forget)
    put(queue_class, "hold_within", always)


def message_after_the_commit() -> None:
    """The next message is sent in a second transaction, as with any queue outside the database."""
    _after_the_commit("send", new_id)


def posting_after_the_commit() -> None:
    """The ledger is written in a second transaction."""
    _after_the_commit("post", lambda: PostingId(0))


def event_after_the_commit() -> None:
    """The event is published in a second transaction, as with a broker."""
    _after_the_commit("publish", new_id)


def _after_the_commit(method: str, result: Callable[[], object]) -> None:
    """Defers the calls of a method of Tx to a transaction after the commit; they return `result()`."""
    call, commit = getattr(Tx, method), Work.commit
    waiting: list[Callable[[Tx], Awaitable[object]]] = []

    async def defer(tx: Tx, *arguments: Any, **options: Any) -> object:
        waiting.append(lambda later: call(later, *arguments, **options))
        return result()

    put(Tx, method, defer)
    put(Work, "commit", _then(commit, waiting))


def _then(commit: Any, waiting: list[Callable[[Tx], Awaitable[object]]]) -> Any:
    @asynccontextmanager
    async def commit_and_then(work: Work, rejected: str | None = None) -> AsyncIterator[Tx]:
        async with commit(work, rejected) as tx:
            yield tx
        async with work._database.transaction() as connection:
            for each in waiting:
                await each(Tx(connection, work._feed))
            waiting.clear()

    return commit_and_then


def unknown_taken_for_not_sent() -> None:
    """The naive retry: no response is taken for no effect."""
    result_of = send._result_of

    def hopeful(error: BaseException, timeout_s: float) -> Result:
        result = result_of(error, timeout_s)
        return replace(result, event=Event.NOT_SENT) if result.event is Event.UNKNOWN else result

    put(send, "_result_of", hopeful)


def blind_effects_repeated() -> None:
    """An effect that can be neither queried nor repeated is repeated."""

    def again(stored: EffectRecord, *arguments: Any) -> NextAction:
        move = next_action(stored, *arguments)
        return NextAction(Step.REPLAY) if move.step is Step.REVIEW else move

    put(running, "next_action", again)


def horizon_ignored() -> None:
    """An effect that the vendor does not show yet is taken as not happened."""
    put(store, "did_not_counts", lambda stored, horizon_s: 0.0)


def vendors_fence_skipped() -> None:
    """An effect is sent again while an earlier request may still arrive."""
    fence_and_send = resolve._fence_and_send

    async def believe(request: object) -> None:
        return None

    async def unfenced(
        run: Run, effect: Effect[Any, Any], stored: EffectRecord, request: Any, fence: object, burns: bool
    ) -> Any:
        return await fence_and_send(run, effect, stored, request, believe, burns)

    put(resolve, "_fence_and_send", unfenced)


def new_key_with_every_try() -> None:
    """The vendor gets another key each time, and cannot recognise the request."""

    async def charge_anew(client: BankClient, order: Order) -> Receipt:
        answer = await client._http.request(
            "POST", "/charges", json=order, headers={"Idempotency-Key": f"{order.reference} {new_id()}"}
        )
        return receipt_of(answer)

    put(BankClient, "charge", charge_anew)


def outcomes_fenced_away() -> None:
    """The usual design: results of a run that lost its lease are ignored."""

    async def fenced(run: Run, stored: EffectRecord, result: Result) -> EffectRecord:
        try:
            async with run.database.transaction() as connection:
                if not await run.queue.hold_within(connection, run.claim):
                    raise Stale("not ours")
                return await store.record(connection, stored.id, stored.attempt, result, run.claim)
        except Stale:
            return await _record_nowhere(run, stored, result)

    put(Run, "record", fenced)


def contradictions_dropped() -> None:
    """Late results of a finished effect are ignored."""

    def ended_is_ended(stored: EffectRecord, attempt: int, result: Result) -> State:
        return state_after(stored, attempt, result) if stored.state in OPEN else stored.state

    put(store, "state_after", ended_is_ended)


def answers_wake_nothing() -> None:
    """A waiting or parked message is not woken by an answer."""

    async def asleep(connection: Any, message_id: UUID) -> str | None:
        return None

    put(actions, "wake_message", asleep)


def dead_leases_kept() -> None:
    """The leases of dead workers are not released."""

    async def nothing(queue: PostgresQueue) -> int:
        return 0

    put(PostgresQueue, "reap", nothing)


def commit_looked_up_by_its_id() -> None:
    """A lost COMMIT is looked up by transaction id, which may belong to another transaction by then. How the id is
    learned makes no difference: here the explorer provides it."""

    async def status_of_the_id(database: Database, *arguments: object) -> bool | None:
        try:
            connection = await database.connect()
        except commits.UNREACHABLE:
            return None
        try:
            status: str = await connection.fetchval("select txid_status($1)", crossings.transaction_id)
            return None if status == "in progress" else status == "committed"
        finally:
            connection.terminate()

    put(commits, "_find", status_of_the_id)


def sent_in_quarantine() -> None:
    """After a failover, processes continue as if nothing could be lost."""
    put(child, "SEND_CHECKS", controls.CHECKS)


LOST_COMMIT: Final = Ablation(
    "the fate of a lost COMMIT", commit_looked_up_by_its_id, "wire", Mode.SERVER_CRASH_BEFORE, near="Run.intent"
)
LOST_BY_A_FAILOVER: Final = replace(
    LOST_COMMIT, name="the fate of a COMMIT lost in a failover", mode=Mode.FAILOVER_UNREPLICATED
)
QUARANTINE: Final = Ablation(
    "the quarantine after a failover", sent_in_quarantine, "wire", Mode.FAILOVER_BEFORE, frozenset({SENT_IN_QUARANTINE})
)

ABLATIONS: Final = (
    Ablation("the intent on record", no_intent_on_record, "wire", Mode.AFTER),
    Ablation("the fence of the commit", no_fence_in_the_commit, "charge", Mode.STOPPED, near="store:payment"),
    Ablation("acknowledgement with the work", acknowledged_before_the_work, "transfer", Mode.BEFORE),
    Ablation("state and next message in one commit", message_after_the_commit, "charge", Mode.AFTER),
    Ablation("state and ledger in one commit", posting_after_the_commit, "charge", Mode.AFTER),
    Ablation("state and event in one commit", event_after_the_commit, "transfer", Mode.AFTER),
    Ablation("unknown is not unsent", unknown_taken_for_not_sent, "wire", Mode.AFTER),
    Ablation("a blind effect is tried once", blind_effects_repeated, "wire", Mode.AFTER),
    Ablation("the horizon", horizon_ignored, "purchase", Mode.AFTER),
    Ablation("the vendor's fence", vendors_fence_skipped, "purchase", Mode.STOPPED),
    Ablation("one key for all tries", new_key_with_every_try, "transfer", Mode.AFTER),
    Ablation("outcomes that no fence keeps out", outcomes_fenced_away, "wire", Mode.STOPPED),
    Ablation("contradictions", contradictions_dropped, "wire", Mode.STOPPED),
    Ablation("an answer wakes a parked message", answers_wake_nothing, "wire", Mode.AFTER),
    Ablation("an answer wakes a waiting message", answers_wake_nothing, "wire-redriven", Mode.AFTER),
    Ablation("the sweep of dead leases", dead_leases_kept, "charge", Mode.AFTER, frozenset({"stuck"})),
    LOST_COMMIT,
    LOST_BY_A_FAILOVER,
    QUARANTINE,
)
