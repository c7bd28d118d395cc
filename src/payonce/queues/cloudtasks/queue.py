"""Runs deliveries of the task service: begun with a token from PostgreSQL, settled there, and only then answered.

A task proves nothing by itself: the row decides whether its message may run now. So a task may come twice, late, early
or after the end without effect.
"""

from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

import asyncpg
import msgspec

from payonce.engine.database.connections import Connection, Database, is_transient
from payonce.engine.database.notifier import Notifier
from payonce.engine.messages.maintenance import Task, describe, synthetic_message, write_maintenance_run
from payonce.engine.messages.model import Claim, Ending, Message, SettleAnswer, Settlement
from payonce.engine.messages.policy import Policy
from payonce.engine.messages.ports import Exchange
from payonce.engine.messages.rows import UNREADABLE, message_of
from payonce.engine.outbox import hold_durable, wake_name
from payonce.engine.outbox.durable_copy import consumer
from payonce.engine.outbox.model import stored_reason
from payonce.kit.ids import random_token
from payonce.kit.log import get_logger
from payonce.queues.cloudtasks import deliveries as replies
from payonce.queues.cloudtasks.backoff import repeats_after_s
from payonce.queues.cloudtasks.deliveries import Delivery, DeliveryBuffer, Reply, answer_all
from payonce.queues.cloudtasks.names import RELAY
from payonce.queues.cloudtasks.statements import (
    ABSENT,
    BEGIN,
    ENDED,
    EXTEND,
    FREE,
    HOLD,
    MARK_ALONE,
    SETTLE,
    SETTLE_ONE,
)

EARLY_REST_S: Final = 5.0
"""A task that is early by up to this waits here, since the clocks of two services differ."""
LOCKED_REST_S: Final = 0.05
LOCKED_LOOKS: Final = 40
"""A locked row is checked this often, for two seconds; then the task service keeps the task."""
SAME_TIME_S: Final = 1.0
"""A retry is left to the task service if its own delay differs by less than this."""
AFTER_FAILURE_S: Final = 0.2
AHEAD_S: Final = 29 * 86_400.0
"""The task service keeps tasks for 30 days; what is due later waits in the outbox."""

_VERDICTS: Final = {
    "elsewhere": replies.ELSEWHERE,
    "over": replies.KNOWN,
    "parked": replies.PARKED,
    "died alone": replies.PARKED,
    "superseded": replies.SUPERSEDED,
    "held": replies.HELD,
    "paused": replies.PAUSED,
}

log = get_logger(__name__)


class CloudTasksQueue:
    """One pushed queue in one process that serves it."""

    mirrors = True

    def __init__(
        self, database: Database, notifier: Notifier, policy: Policy, worker: str, buffer: DeliveryBuffer
    ) -> None:
        self.policy = policy
        self._database = database
        self._notifier = notifier
        self._worker = worker
        self._buffer = buffer
        self._unanswered: dict[tuple[UUID, int], Delivery] = {}
        """Deliveries to answer when their run has ended, by message and token."""
        self._doubtful: list[tuple[UUID, int]] = []
        """Runs that may have begun in the store: the response was lost."""

    async def exchange(self, settlements: Sequence[Settlement], limit: int) -> Exchange:
        answers = await self._settle(settlements) if settlements else []
        deliveries = self._buffer.take(limit)
        if not deliveries:
            return Exchange(answers)
        try:
            return Exchange(answers, await self._begin(deliveries))
        except BaseException as error:
            answer_all(deliveries, replies.AWAY)
            if not settlements or not isinstance(error, Exception):
                raise
            # The settlements are committed: the caller must not repeat them because no run could begin.
            log.warning("runs_not_begun", queue=self.policy.queue, deliveries=len(deliveries), error=str(error))
            return Exchange(answers, (), AFTER_FAILURE_S)

    async def _begin(self, deliveries: Sequence[Delivery], *, alone: bool = False) -> list[Claim]:
        token = random_token()
        ordered = sorted(deliveries, key=lambda delivery: delivery.id)
        try:
            rows = await self._database.engine.fetch(
                BEGIN,
                RELAY,
                [delivery.id for delivery in ordered],
                [delivery.number for delivery in ordered],
                token,
                self.policy.lease_s,
                self.policy.queue,
                self._worker,
                alone,
                0.0,
            )
        except BaseException:
            self._doubtful += [(delivery.id, token) for delivery in ordered]
            raise
        found = {row["id"]: row for row in rows}
        claims: list[Claim] = []
        for delivery in ordered:
            row = found.get(delivery.id)
            if row is not None and (claim := await self._decide(delivery, row, token)) is not None:
                claims.append(claim)
        absent = [delivery for delivery in ordered if delivery.id not in found]
        return claims if not absent else claims + await self._absent(absent, token)

    async def _decide(self, delivery: Delivery, row: Any, token: int) -> Claim | None:
        verdict = row["verdict"]
        if verdict == "begun":
            return await self._begun(delivery, row, token)
        if verdict == "suspect":
            self._buffer.suspect(delivery)
        elif verdict == "early" and row["due_in_s"] <= EARLY_REST_S:
            self._buffer.rest(delivery, row["due_in_s"])
        else:
            delivery.answer(_VERDICTS.get(verdict, replies.EARLY))
        if verdict in ("elsewhere", "died alone"):
            log.error("message_not_run", queue=self.policy.queue, message_id=str(delivery.id), reason=verdict)
        return None

    async def _begun(self, delivery: Delivery, row: Any, token: int) -> Claim | None:
        self._unanswered[delivery.id, token] = delivery
        try:
            message = message_of(row)
        except UNREADABLE as error:
            reason = f"this message cannot be read: {error}"
            log.error("message_unreadable", queue=self.policy.queue, message_id=str(delivery.id), error=str(error))
            await self._record([_End(delivery.id, token, Ending.PARKED, reason)])
            self._answer(delivery.id, token, replies.PARKED)
            return None
        return Claim(message, token, row["crashed"], row["begun_at"], row["first_attempt_at"], first=row["first"])

    async def _absent(self, deliveries: Sequence[Delivery], token: int) -> list[Claim]:
        """Answers deliveries without a lockable row: settled, being settled or begun right now, or unknown."""
        rows = await self._database.engine.fetch(
            ABSENT, RELAY, [delivery.id for delivery in deliveries], consumer(self.policy.queue)
        )
        known = {row["id"]: row for row in rows}
        claims = []
        for delivery in deliveries:
            row = known[delivery.id]
            if row["over"]:
                delivery.answer(replies.KNOWN)
            elif row["there"] and delivery.looks < LOCKED_LOOKS:
                # The relay is recording the delivery, or a run is committing: retry shortly.
                delivery.looks += 1
                self._buffer.rest(delivery, LOCKED_REST_S)
            elif row["there"]:
                delivery.answer(replies.HELD)
            elif delivery.message is not None:
                claims += await self._adopt(delivery, delivery.message, token)
            else:
                # Deleted manually, or of another database: an operator must investigate before the task is given up.
                log.error(
                    "task_of_unknown_message", queue=self.policy.queue, message_id=str(delivery.id), task=delivery.task
                )
                delivery.answer(replies.UNKNOWN)
        return claims

    async def _adopt(self, delivery: Delivery, message: Message, token: int) -> list[Claim]:
        """Records a message whose sender keeps no record in this database, with its first run."""
        async with self._database.transaction() as connection:
            if await connection.fetchval("select paused from payonce.queues where name = $1", self.policy.queue):
                delivery.answer(replies.PAUSED)
                return []
            now = await connection.fetchval("select payonce.due_now()")
            named = msgspec.structs.replace(message, id=delivery.id, queue=self.policy.queue, created_at=now)
            claim = Claim(named, token, 0, now, now, first=True)
            if not await hold_durable(connection, RELAY, claim, self.policy.lease_s):
                delivery.answer(replies.HELD)
                return []
            await connection.execute(
                """
                update payonce.outbox set worker = $3, begun_at = payonce.due_now(), delivered_as = $4
                where relay = $1 and id = $2
                """,
                RELAY,
                delivery.id,
                self._worker,
                delivery.task or None,
            )
        self._unanswered[delivery.id, token] = delivery
        return [claim]

    async def _settle(self, settlements: Sequence[Settlement]) -> list[SettleAnswer]:
        """Settles runs in one statement; deliveries are answered only after its commit."""
        ends = {
            settlement.claim.message.id: self._end(settlement) for settlement in settlements if not settlement.recorded
        }
        recorded = await self._record(list(ends.values())) if ends else set()
        if any(end.anew for end in ends.values()) or any(
            each.recorded and each.ending is Ending.RETRY for each in settlements
        ):
            self._notifier.notify({wake_name(RELAY)})
        left = [message_id for message_id in ends if message_id not in recorded]
        gone = await self._ended(left) if left else set()
        answers = []
        for settlement in settlements:
            message_id, token = settlement.claim.message.id, settlement.claim.token
            if settlement.recorded or message_id in recorded:
                answers.append(SettleAnswer.SETTLED)
                anew = not settlement.recorded and ends[message_id].anew
                self._answer(message_id, token, self._reply(settlement, anew))
            else:
                answers.append(SettleAnswer.ALREADY if message_id in gone else SettleAnswer.STALE)
                self._answer(message_id, token, replies.KNOWN if message_id in gone else replies.STALE)
        return answers

    def _end(self, settlement: Settlement) -> "_End":
        claim = settlement.claim
        delivery = self._unanswered.get((claim.message.id, claim.token))
        anew = False
        if settlement.ending is Ending.RELEASED:
            anew = settlement.delay_s > 0
        elif settlement.ending is Ending.RETRY:
            repeats_s = None if delivery is None else repeats_after_s(self.policy.backoff, delivery.retries + 1)
            anew = repeats_s is None or abs(repeats_s - settlement.delay_s) > SAME_TIME_S
        return _End(claim.message.id, claim.token, settlement.ending, settlement.reason, settlement.delay_s, anew)

    async def _record(self, ends: Sequence["_End"]) -> set[UUID]:
        """Bisects the batch around a row that the store refuses, so that the others are settled."""
        try:
            rows = await self._settle_rows(self._database.engine, ends)
            return {row["id"] for row in rows}
        except asyncpg.PostgresError as error:
            if is_transient(error):
                raise
            if len(ends) == 1:
                log.error("row_refused", queue=self.policy.queue, message_id=str(ends[0].id), error=str(error))
                return set()
        middle = len(ends) // 2
        return await self._record(ends[:middle]) | await self._record(ends[middle:])

    async def _settle_rows(self, source: asyncpg.Pool | Connection, ends: Sequence["_End"]) -> list[Any]:
        ordered = sorted(ends, key=lambda end: end.id)
        rows: list[Any] = await source.fetch(
            SETTLE,
            RELAY,
            [end.id for end in ordered],
            [end.token for end in ordered],
            [end.ending.value for end in ordered],
            [end.delay_s for end in ordered],
            [None if end.reason is None else stored_reason(end.reason) for end in ordered],
            [end.anew for end in ordered],
            AHEAD_S,
            self.policy.log == "all",
        )
        return rows

    async def _ended(self, ids: Sequence[UUID]) -> set[UUID]:
        rows = await self._database.engine.fetch(ENDED, [str(each) for each in ids], consumer(self.policy.queue))
        return {UUID(row["id"]) for row in rows}

    async def claim_alone(self) -> Claim | None:
        delivery = self._buffer.take_suspect()
        if delivery is None:
            return None
        try:
            claims = await self._begin([delivery], alone=True)
        except BaseException:
            delivery.answer(replies.AWAY)
            raise
        return claims[0] if claims else None

    async def mark_alone(self, claim: Claim) -> bool:
        marked = await self._database.engine.fetchval(MARK_ALONE, RELAY, claim.message.id, claim.token)
        if not marked:
            self._answer(claim.message.id, claim.token, replies.STALE)
        return bool(marked)

    async def extend(self, claims: Sequence[Claim]) -> list[Claim]:
        if not claims:
            return []
        rows = await self._database.engine.fetch(
            EXTEND,
            RELAY,
            [claim.message.id for claim in claims],
            [claim.token for claim in claims],
            self.policy.lease_s,
        )
        lost = {(row["id"], row["token"]) for row in rows}
        for message_id, token in lost:
            self._answer(message_id, token, replies.STALE)
        return [claim for claim in claims if (claim.message.id, claim.token) in lost]

    async def give_back(self, running: Sequence[Claim]) -> int:
        doubtful, self._doubtful = self._doubtful, []
        try:
            rows = await self._database.engine.fetch(
                FREE, RELAY, [message_id for message_id, _ in doubtful], [token for _, token in doubtful]
            )
        except BaseException:
            self._doubtful = doubtful
            raise
        return len(rows)

    async def settle_within(self, connection: Connection, settlement: Settlement) -> bool:
        claim, end = settlement.claim, self._end(settlement)
        if end.ending in (Ending.SUCCESS, Ending.FAILED):
            tag = await connection.execute(
                SETTLE_ONE,
                RELAY,
                end.id,
                end.token,
                end.ending.value,
                None if end.reason is None else stored_reason(end.reason),
                end.ending is Ending.FAILED or self.policy.log == "all",
            )
            settled = tag == "SELECT 1"
        else:
            settled = bool(await self._settle_rows(connection, [end]))
        if not settled:
            self._answer(claim.message.id, claim.token, replies.STALE)
        return settled

    async def hold_within(self, connection: Connection, claim: Claim) -> bool:
        held = await connection.execute(HOLD, RELAY, claim.message.id, claim.token, self.policy.lease_s) == "UPDATE 1"
        if not held:
            self._answer(claim.message.id, claim.token, replies.STALE)
        return held

    async def reap(self) -> int:
        """Does nothing: the task service retries what a dead process left, and the next run finds the lease ended."""
        return 0

    async def log_maintenance(self, task: Task, moved: int) -> None:
        await write_maintenance_run(
            self._database, synthetic_message(self.policy.queue, task), describe(task, moved), self._worker
        )

    async def wait(self, timeout_s: float, room: int = 0) -> None:
        await self._buffer.wait(timeout_s)

    async def stop_waiting(self) -> None:
        """Does nothing: a wait claims nothing."""

    def wake(self) -> None:
        self._buffer.wakeup.set()

    def _reply(self, settlement: Settlement, anew: bool) -> Reply:
        match settlement.ending:
            case Ending.PARKED:
                return replies.PARKED
            case Ending.RETRY | Ending.RELEASED if anew:
                return replies.PUT_OFF
            case Ending.RETRY:
                return replies.RETRIED
            case Ending.RELEASED:
                return replies.CLOSING if self._buffer.closed else replies.GIVEN_BACK
            case _:
                return replies.DONE

    def _answer(self, message_id: UUID, token: int, reply: Reply) -> None:
        delivery = self._unanswered.pop((message_id, token), None)
        if delivery is not None:
            delivery.answer(reply)


class _End(msgspec.Struct, frozen=True, gc=False):
    """A settlement as the statement takes it."""

    id: UUID
    token: int
    ending: Ending
    reason: str | None = None
    delay_s: float = 0.0
    anew: bool = False
