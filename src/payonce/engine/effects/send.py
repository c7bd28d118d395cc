"""The vendor call between two commits: the attempt is recorded before it, the result after it.

A lease does not protect a vendor: a stopped process may wake up and send. So the process checks its own monotonic clock
before it sends. What remains is the time between that check and the request's arrival at the vendor.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeVar
from uuid import UUID

from payonce.engine.audit import Severity, note
from payonce.engine.database.commits import settled_transaction
from payonce.engine.database.connections import Database, is_transient
from payonce.engine.effects import store
from payonce.engine.effects.declaration import Effect, Happened, Outcome, Request, decode, encode
from payonce.engine.effects.model import EffectRecord, Event, Result, State
from payonce.engine.messages.model import Claim
from payonce.engine.messages.ports import PullQueue
from payonce.engine.messages.transaction import NotifyingFeed, Reader, Tx
from payonce.engine.monitoring import metrics
from payonce.kit.log import get_logger
from payonce.kit.money import Amount
from payonce.kit.outcomes import NotSent, Refused, Retry, Stale, Unknown
from payonce.kit.redact import redact

BEGIN_SHARE: Final = 0.5
"""Share of the time-out that must be left when a send begins; with less, the answer would hardly arrive in time."""
RECORD_LIMIT_S: Final = 60.0
"""How long an outcome waits for an unavailable store; after that the next run resolves the effect."""
RECORD_WAIT_S: Final = 0.2

Anything = TypeVar("Anything")

log = get_logger(__name__)

_writing: Final[set[asyncio.Task[Any]]] = set()
"""Strong references, because an event loop does not keep its tasks alive."""


@dataclass(frozen=True)
class Sending:
    """The send that is about to begin, for the checks that may forbid it."""

    kind: str
    vendor: str
    key: str
    scope: str | None
    request: Any
    amount: Amount | None
    service: str
    tenant: str | None
    again: bool
    """A further attempt of an effect that passed the checks before."""
    effect_id: UUID | None = None
    """The effect on record that is attempted again; None if it is not on record yet."""
    replay: bool = False
    """An earlier attempt may have been sent, so its amount has been counted already."""
    others: tuple[str, ...] = ()
    """Further tenants whose money it moves."""


class IntentCheck(Protocol):
    """A freeze or limit: runs inside the intent transaction, and raises Retry or Refused to prevent the send."""

    async def __call__(self, tx: Tx, sending: Sending) -> None: ...


@dataclass(frozen=True)
class Run:
    """The run of a message as far as effects need it."""

    claim: Claim
    queue: PullQueue
    database: Database
    feed: NotifyingFeed
    read: Reader
    service: str = ""
    checks: Sequence[IntentCheck] = ()
    seen: dict[UUID, int] = field(default_factory=dict)
    """The revision at which the run last read each effect."""

    @property
    def tenant(self) -> str | None:
        return self.claim.message.lane

    @asynccontextmanager
    async def intent(self) -> AsyncIterator[Tx]:
        """A transaction that begins with the fence."""
        async with (
            self.database.handlers.acquire() as connection,
            settled_transaction(self.database, connection),
        ):
            if not await self.queue.hold_within(connection, self.claim):
                message = self.claim.message
                raise Stale(f"message {message.id} of {message.queue} no longer belongs to this run; nothing was sent")
            tx = Tx(connection, self.feed, self.claim.message.trace)
            yield tx
            await tx.check_alive()
        if tx.sent_to:
            self.feed.notify(tx.sent_to)
        tx.write_lines()

    async def check(
        self,
        tx: Tx,
        effect: Effect[Request, Outcome],
        key: str,
        scope: str | None,
        request: Request,
        *,
        again: bool,
        effect_id: UUID | None = None,
        replay: bool = False,
    ) -> None:
        """Runs the checks, which raise Retry or Refused to prevent the send."""
        amount, kind, vendor = effect.amount(request), effect.kind, effect.vendor_name
        sending = Sending(
            kind,
            vendor,
            key,
            scope,
            request,
            amount,
            self.service,
            self.tenant,
            again,
            effect_id,
            replay,
            tuple(effect.tenants),
        )
        for check in self.checks:
            await check(tx, sending)

    async def record(self, stored: EffectRecord, result: Result) -> EffectRecord:
        try:
            after = await store.record_performed(self.database.handlers, stored.id, stored.attempt, result, self.claim)
            if after is None:
                async with self.database.transaction() as connection:
                    after = await store.record(connection, stored.id, stored.attempt, result, self.claim)
        except store.ForgottenError:
            await self._note_forgotten(stored, result)
            raise
        except Exception:
            metrics.DB_WRITES.labels("effects", "error").inc()
            raise
        metrics.DB_WRITES.labels("effects", "ok").inc()
        metrics.EFFECT_EVENTS.labels(stored.kind, result.event.value).inc()
        return after

    async def _note_forgotten(self, stored: EffectRecord, result: Result) -> None:
        """Keeps the vendor's answer in the audit log for reconciliation; it is recorded nowhere else."""
        named = "" if result.vendor_ref is None else f" as {result.vendor_ref}"
        text = (
            f"{stored.label}, effect {stored.id} of message {stored.message_id}, ended as {result.event}{named} "
            "but is no longer on record after a failover that lost commits; reconcile the vendor before you "
            "release"
        )
        async with self.database.transaction() as connection:
            await note(connection, "effects.forgotten", stored.label, text, actor="payonce", severity=Severity.ERROR)


async def send_again(
    run: Run, effect: Effect[Request, Outcome], stored: EffectRecord, to: State
) -> Happened[Outcome] | None:
    """A further attempt with the request on record."""
    request = decode(stored.request, effect.request_type, f"the request of {stored.label}")
    sent_at = time.monotonic()
    async with run.intent() as tx:
        await run.check(
            tx, effect, stored.key, stored.scope, request, again=True, effect_id=stored.id, replay=to is State.UNKNOWN
        )
        await store.check_earlier(tx.connection, stored.kind, stored.key, stored.generation)
        begun = await store.begin_again(tx.connection, run.claim, stored, to, effect.safety, effect.timeout_s)
    return None if begun is None else await send(run, effect, begun, request, sent_at)


async def send(
    run: Run, effect: Effect[Request, Outcome], stored: EffectRecord, request: Request, sent_at: float
) -> Happened[Outcome]:
    """Performs within the time given by the record; the store counts the same time-out from a later moment."""
    left_s = sent_at + effect.timeout_s - time.monotonic()
    if left_s < effect.timeout_s * BEGIN_SHARE:
        await _shielded(
            _record_with_retries(run, stored, Result(Event.NOT_SENT, "the run was delayed before it could send"))
        )
        raise Retry(f"{stored.label} was not sent: the run was delayed")
    try:
        async with asyncio.timeout(left_s):
            with metrics.VENDOR_SECONDS.labels(effect.kind, "perform").time():
                outcome = await effect.perform(request)
        result = Result(
            Event.PERFORMED,
            outcome=encode(outcome, effect.outcome_type, f"the outcome of {stored.label}"),
            vendor_ref=effect.vendor_ref(outcome),
        )
    except BaseException as error:
        result = _result_of(error, effect.timeout_s)
        after = await _shielded(_record_with_retries(run, stored, result))
        if not isinstance(error, Exception):
            raise
        raise _to_raise(error, result, after) from error
    after = await _shielded(_record_with_retries(run, stored, result))
    if after.state is not State.PERFORMED:
        raise Retry(f"{after.label} waits for a person: {after.review_cause}")
    return Happened(outcome)


def _result_of(error: BaseException, timeout_s: float) -> Result:
    if isinstance(error, Refused):
        return Result(Event.REFUSED, error.reason)
    if isinstance(error, NotSent):
        return Result(Event.NOT_SENT, error.reason)
    if isinstance(error, TimeoutError):
        return Result(Event.UNKNOWN, f"no answer within {timeout_s:g} s")
    return Result(Event.UNKNOWN, f"{type(error).__name__}: {error}")


def _to_raise(error: Exception, result: Result, after: EffectRecord) -> Exception:
    if isinstance(error, Refused) and after.state is State.REFUSED:
        return Refused(error.reason)
    if isinstance(error, NotSent):
        return Retry(f"{after.label} was not sent: {redact(error.reason)}")
    return Unknown(f"{after.label}: {redact(result.detail or '')}")


async def _record_with_retries(run: Run, stored: EffectRecord, result: Result) -> EffectRecord:
    """Records an outcome, retrying while the store is unavailable."""
    give_up_at = time.monotonic() + RECORD_LIMIT_S
    while True:
        try:
            return await run.record(stored, result)
        except Exception as error:
            log.warning(
                "outcome_not_recorded", effect=stored.label, outcome=result.event.value, error=redact(str(error))
            )
            if not is_transient(error) or time.monotonic() > give_up_at:
                raise
            await asyncio.sleep(RECORD_WAIT_S)


async def _shielded(writing: Coroutine[Any, Any, Anything]) -> Anything:
    """Finishes writing even if this run is cancelled meanwhile, and only then lets the cancellation through. It ends
    because the writer gives up eventually."""
    task = asyncio.create_task(writing)
    _writing.add(task)
    task.add_done_callback(_writing.discard)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is None:
        return task.result()
    if not task.cancelled() and (lost := task.exception()) is not None:
        log.error("outcome_lost", error=redact(str(lost)))
    raise cancelled


async def outcomes_written() -> None:
    """Returns when no outcome of this process waits to be written, at the latest when each writer has given up. A
    worker abandons runs that do not end, and what they learnt from a vendor must not be lost with the process."""
    if _writing:
        await asyncio.wait(set(_writing), timeout=RECORD_LIMIT_S)
