"""The work given to handlers, and the declaration of handlers."""

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Concatenate, Final, Generic, ParamSpec, cast, get_args, get_type_hints
from uuid import UUID

from msgspec.structs import replace

from payonce.engine.database.commits import settled_transaction, transaction_of
from payonce.engine.database.connections import Database, is_transient
from payonce.engine.effects.declaration import Effect, Outcome, Request
from payonce.engine.effects.open_effects import has_loose_ends, hold_effects, left_open
from payonce.engine.effects.review import give_up_effects
from payonce.engine.effects.run import Intent, run_effect
from payonce.engine.effects.send import IntentCheck
from payonce.engine.effects.send import Run as EffectRun
from payonce.engine.effects.wakeup import answered_since, may_be_answered
from payonce.engine.messages.declarations import pause_loudly
from payonce.engine.messages.model import Claim, Ending, Message, Settlement
from payonce.engine.messages.policy import PayloadT, Policy
from payonce.engine.messages.ports import PullQueue
from payonce.engine.messages.transaction import NotifyingFeed, Reader, Tx
from payonce.kit.log import get_logger
from payonce.kit.outcomes import Invalid, Refused, Stale
from payonce.kit.redact import redact

FIRST_TOKEN: Final = 1
"""The token of a message's first claim. Attempts do not show it: they restart after a redrive, and stay while a message
is held."""

Function = Callable[..., Awaitable[None]]
Needs = ParamSpec("Needs")

log = get_logger(__name__)


class Work(Generic[PayloadT]):
    """One run of one message."""

    __slots__ = (
        "_called",
        "_checks",
        "_claim",
        "_commit_error",
        "_database",
        "_ended",
        "_feed",
        "_queue",
        "_seen",
        "_service",
        "_under_way",
        "cause",
        "payload",
        "read",
        "settlement",
    )

    def __init__(
        self,
        claim: Claim,
        queue: PullQueue,
        database: Database,
        feed: NotifyingFeed,
        read: Reader,
        service: str = "",
        checks: Sequence[IntentCheck] = (),
    ) -> None:
        self._claim = claim
        self._queue = queue
        self._database = database
        self._feed = feed
        self._service = service
        self._checks = checks
        self.read = read
        self.payload: PayloadT = cast(PayloadT, None)
        """An instance of the type that the queue's contract declares for the message's action."""
        self.settlement: Settlement | None = None
        """How the run ended, once a transaction of its own has committed that."""
        self.cause: str | None = None
        """For the policy's on_give_up: how the last run ended."""
        self._called = False
        self._commit_error: str | None = None
        self._under_way: list[str] = []
        """Effects being performed right now, including those that are not on record yet."""
        self._ended: set[tuple[str, str]] = set()
        """Effects, by kind and key, whose end this run knows."""
        self._seen: dict[UUID, int] = {}
        """The revision at which this run last read each effect."""

    @property
    def message(self) -> Message:
        return self._claim.message

    @property
    def settled_as(self) -> Ending | None:
        return None if self.settlement is None else self.settlement.ending

    @asynccontextmanager
    async def commit(self, rejected: str | None = None) -> AsyncIterator[Tx]:
        """Commits the fence, state, next messages, job log and acknowledgement together; at most once per run.

        Raises Stale when the lease was lost, at the latest with the first statement of the transaction, which is then
        not executed.
        """
        if self.settled_as is not None:
            raise RuntimeError("commit() was already used in this run; put everything into one transaction")
        self._refuse_inside_a_transaction("commit()")
        settlement = Settlement(self._claim, Ending.SUCCESS if rejected is None else Ending.FAILED, rejected)
        self._commit_error = "it did not end"
        try:
            async with (
                self._database.handlers.acquire() as connection,
                settled_transaction(self._database, connection),
            ):
                if not await self._queue.settle_within(connection, settlement):
                    raise Stale(
                        f"message {self.message.id} of {self.message.queue} no longer belongs to this "
                        "run, which cannot settle it"
                    )
                tx = Tx(connection, self._feed, self.message.trace)
                # After the fence no intent of this message can be committed any more.
                if (label := await self.open_effect(tx)) is not None:
                    raise RuntimeError(
                        f"commit() although the outcome of {label} is unknown; do not swallow what effect() raised"
                    )
                yield tx
                await tx.check_alive()
        except BaseException as error:
            self._commit_error = redact(f"{type(error).__name__}: {error}")
            raise
        self._commit_error = None
        self.settlement = settlement
        if tx.sent_to:
            self._feed.notify(tx.sent_to)
        tx.write_lines()

    def _refuse_inside_a_transaction(self, call: str) -> None:
        if transaction_of(self._database) is not None:
            raise RuntimeError(
                f"{call} inside a transaction of the same database: call it before or after the transaction; a "
                "vendor is never called inside one, and a second transaction would wait for the first"
            )

    async def effect(
        self, effect: Effect[Request, Outcome], *, key: str, intent: Intent | None = None, scope: str | None = None
    ) -> Outcome:
        """Changes the outside world once per key: answers from the record, or records, performs and records again.

        `intent` moves the business state in the commit that records the request; it runs once per key and generation
        that the handler began. Of the effects of one `scope` only one may be open. Raises Refused for a definite
        refusal, and Retry or Unknown while the outcome is unknown; the next run then resolves before it acts. Raises
        KeyReused when the key is on record with another request, amount or service.
        """
        if self.settled_as is not None:
            raise RuntimeError(
                "effect() after commit(): the message is settled, and nothing would find the effect again"
            )
        self._refuse_inside_a_transaction(f"effect() {effect.kind} {key}")
        run = EffectRun(
            self._claim, self._queue, self._database, self._feed, self.read, self._service, self._checks, self._seen
        )
        self._called = True
        self._under_way.append(f"{effect.kind} {key}")
        try:
            outcome = await run_effect(run, effect, key, intent, scope)
        except Refused:
            self._ended.add((effect.kind, key))
            raise
        finally:
            self._under_way.remove(f"{effect.kind} {key}")
        self._ended.add((effect.kind, key))
        return outcome

    async def unfinished(self) -> str | None:
        """Why the run has not ended although its handler returned; None when it has."""
        if self._commit_error is not None:
            return f"its commit() failed: {self._commit_error}"
        label = await self.open_effect()
        return None if label is None else f"the outcome of {label} is unknown"

    async def open_effect(self, read: Reader | Tx | None = None) -> str | None:
        """An effect of the message that may have been sent and whose outcome is unknown; the message must not end
        before it is resolved.

        Reads the record, since one call knows nothing about others or about earlier runs. Only the first run of a
        message that called no effect() need not read it.
        """
        if self._under_way:
            return self._under_way[0]
        if not self._may_have_effects():
            return None
        found = await left_open(self.read if read is None else read, self.message.id)
        return None if found is None else found.label

    def _may_have_effects(self) -> bool:
        """Whether the message may have effects on record, of this run or of an earlier one."""
        return self._called or not (self._claim.first or self._claim.token <= FIRST_TOKEN)

    async def pause(self, reason: str, by: str) -> None:
        """Pauses the queue of this message at once, until a person has intervened. Where an effect of the message is
        open, commit() cannot be used for that."""
        async with self._database.transaction() as connection:
            await pause_loudly(connection, self.message.queue, reason, by)

    async def put_off(self, settlement: Settlement) -> Settlement | None:
        """Ends a run that is to be retried. While an effect of its message is in review, even if this run did not call
        effect(), it settles by itself after a last check of the effects: an answer given during the run makes the next
        run due at once, and a later answer finds the message waiting. None when it is settled, or no longer this run's.
        """
        message, since = self.message, self._claim.effects_since
        try:
            if self._may_have_effects() and await may_be_answered(self.read, message.id, since, self._seen):
                await self._put_off(settlement)
                return None
        except Stale:
            return None
        except Exception as error:
            if not is_transient(error):
                raise
            # Without the last check, an answer given during the run is seen after the policy's delay.
            log.warning("effects_not_looked_at", message_id=str(message.id), error=redact(str(error)))
        return settlement

    async def _put_off(self, settlement: Settlement) -> None:
        message, since = self.message, self._claim.effects_since
        async with (
            self._database.handlers.acquire() as connection,
            settled_transaction(self._database, connection),
        ):
            if not await self._queue.hold_within(connection, self._claim):
                raise Stale(
                    f"message {message.id} of {message.queue} no longer belongs to this run, which cannot put it off"
                )
            if await answered_since(Tx(connection, self._feed, message.trace), message.id, since, self._seen):
                settlement = replace(settlement, delay_s=0.0)
            if not await self._queue.settle_within(connection, settlement):
                raise Stale(
                    f"message {message.id} of {message.queue} no longer belongs to this run, which cannot put it off"
                )
        self.settlement = settlement

    async def give_up(self, why: str) -> Ending | None:
        """Ends a run that will not be retried, as far as its effects go; None when they need nothing.

        PARKED: what may still be under way is in review, and the message is parked in the same commit, so that no
        answer falls in between. RETRY: this run has not seen a recent outcome or answer, and another run must.
        """
        message, since = self.message, self._claim.effects_since
        if not await has_loose_ends(self.read, message.id, since):
            return None
        async with (
            self._database.handlers.acquire() as connection,
            settled_transaction(self._database, connection),
        ):
            if not await self._queue.hold_within(connection, self._claim):
                raise Stale(
                    f"message {message.id} of {message.queue} no longer belongs to this run, which cannot give it up"
                )
            tx = Tx(connection, self._feed, message.trace)
            still_open, news = await hold_effects(tx, message.id, since, self._ended)
            if news or still_open is None:
                return Ending.RETRY if news else None
            await give_up_effects(tx, message.id, why)
            waits = f"{still_open.label} waits for a person"
            reason = why if waits in why else f"{why}; {waits}"
            settlement = Settlement(self._claim, Ending.PARKED, reason)
            if not await self._queue.settle_within(connection, settlement):
                raise Stale(
                    f"message {message.id} of {message.queue} no longer belongs to this run, which cannot give it up"
                )
        self.settlement = settlement
        return Ending.PARKED


@dataclass(frozen=True)
class Handler:
    """A function that serves a queue, for one action or for all."""

    policy: Policy
    action: str | None
    function: Function
    needs: Mapping[str, Any]
    """Parameters after `work`, by name, with the type that the composition root must supply; `Type | None` where it may
    supply none."""
    service: str = ""
    """The service of the handler, set by the composition root."""

    def bind(self, resources: Sequence[object]) -> Callable[[Work], Awaitable[None]]:
        """The function with its needs supplied by type."""
        found: dict[str, object] = {}
        for name, wanted in self.needs.items():
            matching = [resource for resource in resources if isinstance(resource, wanted)]
            if not matching and type(None) in get_args(wanted):
                found[name] = None
                continue
            if len(matching) != 1:
                raise Invalid(
                    f"handler {self.function.__qualname__} needs {name}: {getattr(wanted, '__name__', wanted)}, and "
                    f"{len(matching)} things fit; supply exactly one where the service is built"
                )
            found[name] = matching[0]
        if not found:
            return self.function
        function = self.function

        async def bound(work: Work) -> None:
            await function(work, **found)

        return bound


def handles(
    policy: Policy[PayloadT], action: str | None = None
) -> Callable[[Callable[Concatenate[Work[PayloadT], Needs], Awaitable[None]]], Handler]:
    """Declares a function as the handler of a queue's messages, or of one action among them."""

    def declare(function: Callable[Concatenate[Work[PayloadT], Needs], Awaitable[None]]) -> Handler:
        if not inspect.iscoroutinefunction(function):
            raise Invalid(f"handler {function.__qualname__} must be an async function")
        parameters = list(inspect.signature(function).parameters)
        if not parameters:
            raise Invalid(f"handler {function.__qualname__} must take the work as its first parameter")
        hints: dict[str, Any] = get_type_hints(function)
        needs = {name: hints.get(name, object) for name in parameters[1:]}
        return Handler(policy, action, function, needs)

    return declare
