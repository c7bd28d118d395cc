"""The cycle of claim, handle and settle for one queue, until stopped."""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import asyncpg
from msgspec import structs

from payonce.engine.database.commits import outside_transactions
from payonce.engine.database.connections import Database, is_transient
from payonce.engine.effects.send import IntentCheck
from payonce.engine.messages.admission import admit
from payonce.engine.messages.model import Claim, Ending, Message, SettleAnswer, Settlement
from payonce.engine.messages.policy import DATABASE_RETRY_S, RELEASE_DELAY_S, Ended, Policy, Step, next_step
from payonce.engine.messages.ports import POLL_S, Exchange, PullQueue
from payonce.engine.messages.runs import Gate, Run, describe_error
from payonce.engine.messages.transaction import NotifyingFeed, Reader
from payonce.engine.messages.work import Work
from payonce.engine.monitoring import metrics
from payonce.kit.log import get_logger
from payonce.kit.outcomes import (
    Held,
    KeyReused,
    NotSent,
    QueueAway,
    Refused,
    Retry,
    Stale,
    Unavailable,
    Unknown,
    Unprocessable,
)
from payonce.kit.redact import redact

CLAIM_MAX: Final = 500
SETTLE_MAX: Final = 1_000
REFILL_SHARE: Final = 8
REFILL_LIMIT_S: Final = 0.05
"""In a backlog, free slots are refilled when an eighth of all slots is free, or after this time: a claim for each slot
would cost the store more than the runs do."""
RETRY_CONNECTION_S: Final = 0.2
RETRY_CONNECTION_MAX_S: Final = 2.0
FLUSH_LOOK_S: Final = 0.01
SUCCEEDED: Final = Ended(Ending.SUCCESS)
DATABASE_ERRORS: Final = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, Unavailable)
HOPELESS: Final = {KeyReused: "effect_key_reused", Unprocessable: "message_unprocessable"}
"""Errors that a retry does not cure: the message is parked at once, with these event names in the log."""
LEASE_MARGIN: Final = 0.1
"""Share of the lease left when an unrenewed run is cancelled: it must have ended before another worker begins."""

Bound = Callable[[Work], Awaitable[None]]

log = get_logger(__name__)


@dataclass
class QueueServer:
    """One queue's loop: acknowledgements go out as soon as the previous ones returned, together with the next claim."""

    queue: PullQueue
    handlers: Mapping[str | None, Bound]
    database: Database
    feed: NotifyingFeed
    gate: Gate
    slots: int
    service: str = ""
    checks: Sequence[IntentCheck] = ()
    """Freezes and limits, checked before anything is sent to a vendor."""
    read: Reader = field(init=False)
    runs: dict[int, Run] = field(default_factory=dict)
    ended: list[Settlement] = field(default_factory=list)
    durations_s: list[float] = field(default_factory=list)
    settling: int = 0
    claiming: int = 0
    rest_until: float = 0.0
    refill_at: float = 0.0
    pumped: int = 0
    """Claims of retried messages that are not logged yet."""

    def __post_init__(self) -> None:
        self.read = Reader(self.database, self.database.handlers)
        # While the store settles and claims one half, the handlers of the other half run.
        self.claim_max = min(CLAIM_MAX, max(1, self.slots // 2))

    @property
    def policy(self) -> Policy:
        return self.queue.policy

    @property
    def idle(self) -> bool:
        return not (self.runs or self.ended or self.settling or self.claiming)

    async def serve(self) -> None:
        """Keeps one round trip in flight, and a second one during a backlog, so that neither side waits."""
        turns: set[asyncio.Task[bool | Exception]] = set()
        failures, busy = 0, False
        while turns or not (self.gate.stopping and self.idle):
            if not (turns or busy) and (self.ended or self._room()):
                # In this task itself: for a message that reaches an idle worker, starting another task would only add
                # delay.
                results = [await self._try_turn()]
            else:
                while len(turns) < (2 if busy else 1) and (self.ended or self._room()):
                    turns.add(asyncio.create_task(self._try_turn()))
                    await asyncio.sleep(0)
                if not turns:
                    await self.queue.wait(self._wait_limit_s(), self._room())
                    continue
                results, turns = await _first_of(turns)
            if errors := [each for each in results if isinstance(each, Exception)]:
                failures, busy = failures + 1, False
                await self._recover(errors[0], failures)
                continue
            failures, busy = 0, any(results)
            if not (busy or turns or self.ended):
                await self.queue.wait(self._wait_limit_s(), self._room())
        await self.queue.stop_waiting()

    async def _try_turn(self) -> bool | Exception:
        try:
            return await self._turn()
        except Exception as error:
            return error

    async def _turn(self) -> bool:
        """One round trip. True when the queue gave everything requested, so that there is more."""
        batch, room = self.ended[:SETTLE_MAX], self._room()
        del self.ended[: len(batch)]
        self.settling += len(batch)
        self.claiming += room
        sent_at = time.monotonic()
        try:
            exchange = await self.queue.exchange(batch, room)
        except BaseException:
            self.ended[:0] = batch
            raise
        finally:
            self.settling -= len(batch)
            self.claiming -= room
        self._count(batch, exchange)
        if exchange.rest_s is not None:
            self.rest_until = time.monotonic() + exchange.rest_s
        leased_at = sent_at if exchange.asked_at is None else exchange.asked_at
        if self.gate.stopping or time.monotonic() > leased_at + self.policy.lease_s * (1 - LEASE_MARGIN):
            # Too late to begin: the process ends, or another worker may begin any moment.
            self.ended += [Settlement(claim, Ending.RELEASED) for claim in exchange.claims]
            return False
        for claim in exchange.claims:
            self.start(claim, leased_at, sent_at)
        more = exchange.more or len(exchange.claims) == room > 0
        if room:
            self.refill_at = time.monotonic() + REFILL_LIMIT_S if more else 0.0
        return more

    async def step(self) -> bool:
        """Claims, runs and settles one message with nothing beside it. False when none could be claimed.

        For callers that control each step; serve() must not run meanwhile.
        """
        sent_at = time.monotonic()
        exchange = await self.queue.exchange([], 1)
        self._count((), exchange)
        claims = exchange.claims
        claim = claims[0] if claims else await self.queue.claim_alone()
        if claim is None or (not claims and not await self.queue.mark_alone(claim)):
            return False
        run = Run(claim, sent_at, sent_at)
        self.runs[id(run)] = run
        await self._run(run)
        await self._settle_all()
        return True

    async def _settle_all(self) -> None:
        while self.ended:
            batch, self.ended = self.ended, []
            self._count(batch, await self.queue.exchange(batch, 0))

    def start(self, claim: Claim, leased_at: float, started_at: float) -> Run:
        run = Run(claim, leased_at, started_at)
        self.runs[id(run)] = run
        run.task = asyncio.create_task(self._run(run))
        return run

    async def run_alone(self, claim: Claim, sent_at: float, quiet: Callable[[], Awaitable[None]]) -> None:
        """Waits until nothing else runs in this process, records that, and only then runs the message."""
        waiting = Run(claim, sent_at, sent_at)
        self.runs[id(waiting)] = waiting
        try:
            await quiet()
            alone = not (waiting.lost or self.gate.stopping) and await self.queue.mark_alone(claim)
        finally:
            del self.runs[id(waiting)]
        if alone:
            run = self.start(claim, waiting.renewed_at, waiting.renewed_at)
            assert run.task is not None
            await asyncio.wait([run.task])
        await self.flushed()

    async def flushed(self) -> None:
        """Returns when everything that ended is settled."""
        while self.ended or self.settling:
            self.queue.wake()
            await asyncio.sleep(FLUSH_LOOK_S)

    async def _run(self, run: Run) -> None:
        work = Work(run.claim, self.queue, self.database, self.feed, self.read, self.service, self.checks)
        begun = time.monotonic()
        settlement = None
        try:
            ended = await self._handle(run, work)
            if work.settled_as is None and ended is not None:
                if ended is SUCCEEDED and not run.claim.message.attempts:
                    settlement = Settlement(run.claim, Ending.SUCCESS)
                else:
                    settlement = await self._settlement(run, work, ended)
        finally:
            self.runs.pop(id(run), None)
            self.durations_s.append(time.monotonic() - begun)
        if settlement is not None:
            self.ended.append(settlement)
        elif work.settlement is not None:
            metrics.SETTLES.labels(self.policy.queue, work.settlement.ending.value).inc()
            if work.settlement.ending is Ending.SUCCESS and run.claim.message.attempts:
                self._record_retry_latency(run)
            if self.queue.mirrors:
                self.ended.append(structs.replace(work.settlement, recorded=True))
        if self.ended or self._room() or not self.runs:
            self.queue.wake()

    async def _handle(self, run: Run, work: Work) -> Ended | None:
        """The result of the run; None when the message is no longer this worker's."""
        message = run.claim.message
        try:
            handler, work.payload = await admit(self.policy.contract, self.handlers, run, self.read)
            with outside_transactions():
                await handler(work)
            if work.settled_as is None and (why := await work.unfinished()) is not None:
                return Ended(Ending.RETRY, f"the handler returned although {why}")
            return SUCCEEDED
        except (Held, QueueAway) as outcome:
            # A freeze or an unavailable server may last longer than any policy and must not make a queue give up.
            return Ended(Ending.RELEASED, redact(str(outcome)), outcome.after_s if isinstance(outcome, Held) else None)
        except Retry as outcome:
            return Ended(Ending.RETRY, redact(outcome.reason), outcome.after_s)
        except (Unknown, NotSent, Refused) as outcome:
            return Ended(Ending.RETRY, redact(f"{type(outcome).__name__.lower()}: {outcome.reason}"))
        except Stale:
            metrics.STALE_SETTLES.labels(self.policy.queue).inc()
            return None
        except asyncio.CancelledError:
            if run.cancelled_because is None and not _being_cancelled():
                return Ended(Ending.RETRY, "CancelledError: something that the handler awaited was cancelled")
            if run.passed_on or run.cancelled_because is None:
                return None
            # The lease runs out before the retry, since whatever was in flight may still arrive.
            return Ended(Ending.RETRY, run.cancelled_because, max(self._lease_left_s(run), self._backoff_s(run)))
        except Exception as error:
            return await self._failed(message, error)

    async def _failed(self, message: Message, error: Exception) -> Ended:
        """An unavailable store is retried. A reused key and an unprocessable message do not go away, and on_give_up
        knows neither."""
        if isinstance(error, DATABASE_ERRORS) and is_transient(error):
            await self.database.leave_read_only_sessions(error)
            return Ended(Ending.RETRY, redact(f"database: {error}"))
        event = next((name for kind, name in HOPELESS.items() if isinstance(error, kind)), None)
        # Not log.exception: a logger may be set up to show local values, which are customers' data.
        error_text = redact(describe_error(error) if event is None else str(error))
        log.error(
            event or "handler_failed",
            queue=message.queue,
            message_id=str(message.id),
            trace_id=message.trace,
            error=error_text,
        )
        return Ended(Ending.RETRY if event is None else Ending.PARKED, error_text)

    async def _settlement(self, run: Run, work: Work, ended: Ended) -> Settlement | None:
        claim, now = run.claim, run.store_now
        step = next_step(self.policy, claim.message, claim.first_attempt_at, now, ended)
        if step.give_up:
            return await self._give_up(run, work, step)
        if step.ending is Ending.SUCCESS and claim.message.attempts:
            self._record_retry_latency(run)
        settlement = Settlement(claim, step.ending, step.reason, step.delay_s)
        return settlement if step.ending is not Ending.RETRY else await work.put_off(settlement)

    async def _give_up(self, run: Run, work: Work, step: Step) -> Settlement | None:
        """Parks the message, or lets the policy's handler end the business object; never while money may be
        under way."""
        claim, reason, ending = run.claim, step.reason, step.ending
        try:
            match await work.give_up(reason or ""):
                case Ending.PARKED:
                    return None
                case Ending.RETRY:
                    news = f"{reason}; but its effects have changed"
                    return await work.put_off(Settlement(claim, Ending.RETRY, news, self._backoff_s(run)))
            if callable(self.policy.on_give_up):
                work.cause = step.cause
                await self.policy.on_give_up(work)
                ending = Ending.FAILED
        except Stale:
            return None
        except QueueAway as error:
            return Settlement(claim, Ending.RELEASED, redact(f"{reason}; but {error}"), RELEASE_DELAY_S)
        except Retry as refusal:
            # There is no business object to end; a person finds the message itself.
            reason = redact(f"{reason}; {refusal.reason}")
        except asyncio.CancelledError:
            reason = f"{reason}; and giving up was cancelled: {run.cancelled_because or 'by itself'}"
        except Exception as error:
            if isinstance(error, DATABASE_ERRORS) and is_transient(error) and work.settled_as is None:
                # Its effects are not in review: parked now, it would wait for an answer that nobody is asked for.
                return Settlement(claim, Ending.RELEASED, redact(f"{reason}; but database: {error}"), DATABASE_RETRY_S)
            reason = redact(f"{reason}; and giving up failed: {describe_error(error)}")
        return None if work.settled_as is not None else Settlement(claim, ending, reason)

    def _record_retry_latency(self, run: Run) -> None:
        latency = run.store_now - run.claim.first_attempt_at
        metrics.RETRY_LATENCY_SECONDS.labels(self.policy.queue).observe(latency.total_seconds())

    def _room(self) -> int:
        now = time.monotonic()
        if not self.gate.open or now < self.rest_until:
            return 0
        free = self.slots - len(self.runs) - self.claiming
        if free < self.slots // REFILL_SHARE and now < self.refill_at:
            return 0
        return max(0, min(self.claim_max, free))

    def _wait_limit_s(self) -> float:
        now = time.monotonic()
        return min(POLL_S, *(until - now for until in (self.rest_until, self.refill_at) if until > now), POLL_S)

    def _lease_left_s(self, run: Run) -> float:
        return max(0.0, run.renewed_at + self.policy.lease_s - time.monotonic())

    def _backoff_s(self, run: Run) -> float:
        return self.policy.backoff.delay_s(run.claim.message.attempts + 1, 0.0)

    def _count(self, batch: Sequence[Settlement], exchange: Exchange) -> None:
        queue = self.policy.queue
        for (ending, answer), count in Counter(
            (settlement.ending, answer)
            for settlement, answer in zip(batch, exchange.answers, strict=True)
            if not settlement.recorded
        ).items():
            if answer is SettleAnswer.STALE:
                metrics.STALE_SETTLES.labels(queue).inc(count)
            elif answer is SettleAnswer.SETTLED:
                metrics.SETTLES.labels(queue, ending.value).inc(count)
                if ending is Ending.RETRY:
                    metrics.RETRIES.labels(queue).inc(count)
        if exchange.claims:
            metrics.CLAIMS.labels(queue).inc(len(exchange.claims))
            self.pumped += sum(1 for claim in exchange.claims if claim.message.attempts)
        if batch or exchange.claims:
            metrics.DB_WRITES.labels("messages", "ok").inc()
        durations_s, self.durations_s = self.durations_s, []
        metrics.HANDLER_SECONDS.observe(queue, durations_s)

    async def _recover(self, error: BaseException, failures: int) -> None:
        """The store is unavailable or refuses: keeps the settlements and retries, less often each time."""
        metrics.DB_WRITES.labels("messages", "error").inc()
        level = log.warning if is_transient(error) else log.error
        level("store_unavailable", queue=self.policy.queue, error=redact(str(error)), failures=failures)
        await self.database.leave_read_only_sessions(error)
        await asyncio.sleep(min(RETRY_CONNECTION_S * 2 ** min(failures - 1, 8), RETRY_CONNECTION_MAX_S))
        if self.gate.stopping and not self.runs and failures > 3:
            # Leases end by themselves; a stopping process does not wait for a database that is gone.
            self.ended.clear()
            return
        try:
            # An answer may have been lost: whatever the store assigns to this worker but it does not run is returned.
            held = [run.claim for run in self.runs.values()] + [settlement.claim for settlement in self.ended]
            await self.queue.give_back(held)
        except Exception as again:
            log.debug("still_unavailable", queue=self.policy.queue, error=redact(str(again)))


async def _first_of(
    turns: set[asyncio.Task[bool | Exception]],
) -> tuple[list[bool | Exception], set[asyncio.Task[bool | Exception]]]:
    """The results of the ended turns, and the remaining turns. If one failed, all are awaited: the claims of the other
    are not known yet, and recovery returns unknown claims."""
    done, left = await asyncio.wait(turns, return_when=asyncio.FIRST_COMPLETED)
    if left and any(isinstance(turn.result(), Exception) for turn in done):
        done, left = turns, set()
        await asyncio.wait(done)
    return [turn.result() for turn in done], left


def _being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
