"""What a handler is given, and how handlers are declared."""

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, get_type_hints

from payonce.engine.database import Database, settled_transaction
from payonce.engine.effects.declaration import Effect, Outcome, Request
from payonce.engine.effects.review import give_up_effects, open_effects
from payonce.engine.effects.run import Intent, run_effect
from payonce.engine.effects.send import IntentCheck
from payonce.engine.effects.send import Run as EffectRun
from payonce.engine.model import Claim, Ending, Message, Settlement
from payonce.engine.policy import Policy
from payonce.engine.queue import PullQueue
from payonce.engine.transaction import Reader, RingingFeed, Tx
from payonce.kit.outcomes import Invalid, Refused, Stale

Function = Callable[..., Awaitable[None]]


class Work:
    """One run of one message."""

    __slots__ = (
        "_checks",
        "_claim",
        "_database",
        "_effect_left_open",
        "_feed",
        "_queue",
        "_service",
        "read",
        "settled_as",
    )

    def __init__(
        self,
        claim: Claim,
        queue: PullQueue,
        database: Database,
        feed: RingingFeed,
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
        self.settled_as: Ending | None = None
        self._effect_left_open = False

    @property
    def message(self) -> Message:
        return self._claim.message

    @asynccontextmanager
    async def commit(self, rejected: str | None = None) -> AsyncIterator[Tx]:
        """Fence, state, next messages, job log and acknowledgement in one commit; at most once per run.

        Raises Stale before anything is written when the lease has passed to somebody else.
        """
        if self.settled_as is not None:
            raise RuntimeError("commit() was already used in this run; put everything into one transaction")
        if (label := await self.open_effect()) is not None:
            raise RuntimeError(f"commit() although the end of {label} is not known; let what effect() raised pass")
        ending = Ending.SUCCESS if rejected is None else Ending.FAILED
        async with (
            self._database.work.acquire() as connection,
            settled_transaction(self._database, connection) as opened,
        ):
            opened.xact_id = await self._queue.settle_within(connection, Settlement(self._claim, ending, rejected))
            if opened.xact_id is None:
                raise Stale(f"message {self.message.id} of {self.message.queue} is no longer this run's to settle")
            tx = Tx(connection, self._feed, self.message.trace)
            yield tx
            await tx.check_alive()
        self.settled_as = ending
        if tx.sent_to:
            self._feed.ring(tx.sent_to)

    async def effect(
        self, effect: Effect[Request, Outcome], *, key: str, intent: Intent | None = None, scope: str | None = None
    ) -> Outcome:
        """Changes the outside world once per key: answers from the record, or records, performs and records again.

        `intent` moves the business state in the commit that records the request; it runs once per key and generation
        that the handler began. Of the effects of one `scope` only one may be open. Raises Refused for a definite no,
        Retry or Unknown when it is not known yet; the next run then finds out before it acts.
        """
        if self.settled_as is not None:
            raise RuntimeError(
                "effect() after commit(): the message is settled, and nobody would find the effect again"
            )
        run = EffectRun(self._claim, self._queue, self._database, self._feed, self.read, self._service, self._checks)
        self._effect_left_open = True
        try:
            outcome = await run_effect(run, effect, key, intent, scope)
        except Refused:
            self._effect_left_open = False
            raise
        self._effect_left_open = False
        return outcome

    async def open_effect(self) -> str | None:
        """An effect whose end this run did not learn and which may have been sent: the message must not end on it."""
        if not self._effect_left_open:
            return None
        found = await open_effects(self.read, self.message.id)
        return found[0].label if found else None

    async def give_up(self, why: str) -> str | None:
        """Puts what may still be under way before a person. Answers with its label, or None when there is nothing."""
        found = await open_effects(self.read, self.message.id)
        if not found:
            return None
        async with self._database.work.acquire() as connection, settled_transaction(self._database, connection):
            if not await self._queue.hold_within(connection, self._claim):
                raise Stale(f"message {self.message.id} of {self.message.queue} is no longer this run's to give up")
            await give_up_effects(Tx(connection, self._feed, self.message.trace), self.message.id, why)
        return found[0].label


@dataclass(frozen=True)
class Handler:
    """A function that serves a queue, for one action or for all."""

    policy: Policy
    action: str | None
    function: Function
    needs: Mapping[str, type]
    """Parameters behind `work`, by name, with the type that the composition root must supply."""
    service: str = ""
    """Whose handler it is; the composition root says so."""

    def bind(self, resources: Sequence[object]) -> Callable[[Work], Awaitable[None]]:
        """The function with its needs filled in by type."""
        found: dict[str, object] = {}
        for name, wanted in self.needs.items():
            matching = [resource for resource in resources if isinstance(resource, wanted)]
            if len(matching) != 1:
                raise Invalid(
                    f"handler {self.function.__qualname__} needs {name}: {wanted.__name__}, and {len(matching)} things "
                    "fit; supply exactly one where the service is built"
                )
            found[name] = matching[0]
        if not found:
            return self.function
        function = self.function

        async def bound(work: Work) -> None:
            await function(work, **found)

        return bound


def handles(policy: Policy, action: str | None = None) -> Callable[[Function], Handler]:
    """Declares a function as the handler of a queue's messages, or of one action among them."""

    def declare(function: Function) -> Handler:
        if not inspect.iscoroutinefunction(function):
            raise Invalid(f"handler {function.__qualname__} must be an async function")
        parameters = list(inspect.signature(function).parameters)
        if not parameters:
            raise Invalid(f"handler {function.__qualname__} must take the work as its first parameter")
        hints: dict[str, Any] = get_type_hints(function)
        needs = {name: hints.get(name, object) for name in parameters[1:]}
        return Handler(policy, action, function, needs)

    return declare
