"""Claims messages in batches with SKIP LOCKED, in one statement with the settlement of finished ones."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Final, TypeVar
from uuid import UUID

import asyncpg
from asyncpg import Record

from payonce.engine.database.commits import token_to_write
from payonce.engine.database.connections import Connection, Database, is_transient
from payonce.engine.database.notifier import Notifier
from payonce.engine.database.sessions import plain
from payonce.engine.messages.maintenance import Task, describe, synthetic_message, write_maintenance_run
from payonce.engine.messages.model import Claim, Ending, SettleAnswer, Settlement, State, clean_text
from payonce.engine.messages.policy import Policy
from payonce.engine.messages.ports import POLL_S, Exchange
from payonce.engine.messages.rows import UNREADABLE
from payonce.kit.log import get_logger
from payonce.queues.postgres import statements
from payonce.queues.postgres.rows import claim_of

CLOCK_STEP_MIN_S: Final = 1.0
"""How much longer a lease may appear than it is, if it was granted while the checking statement was under way."""
REAP_BATCH: Final = 200

T = TypeVar("T")

log = get_logger(__name__)


class PostgresQueue:
    """One queue in one worker process."""

    mirrors = False

    def __init__(self, database: Database, notifier: Notifier, policy: Policy, worker: str) -> None:
        self.policy = policy
        self._database = database
        self._notifier = notifier
        self._worker = worker
        self._wakeup = asyncio.Event()
        self._lane_cursor: str | None = None
        notifier.subscribe(policy.queue, self._wakeup)

    async def exchange(self, settlements: Sequence[Settlement], limit: int) -> Exchange:
        # All processes lock in this order, so that batches with common messages cannot deadlock.
        ordered = sorted(settlements, key=_lock_order)
        done = [settlement for settlement in ordered if settlement.ending is Ending.SUCCESS]
        others = [settlement for settlement in ordered if settlement.ending is not Ending.SUCCESS]
        async with self._database.engine.acquire() as connection:
            settled = await self._bisect(others, partial(self._settle_others, connection))
            if done and limit and self.policy.limit_name is not None:
                # Slots freed by this exchange can be claimed under the limit only after the commit.
                settled |= await self._bisect(done, partial(self._settle_done, connection))
                done = []
            try:
                claimed, just_settled = await self._settle_and_claim(connection, done, limit)
                settled |= just_settled
            except asyncpg.PostgresError as error:
                if is_transient(error) or not done:
                    raise
                settled |= await self._bisect(done, partial(self._settle_done, connection))
                claimed = Exchange()
            return replace(claimed, answers=await self._answers(connection, settlements, settled))

    async def _settle_and_claim(
        self, connection: Connection, done: Sequence[Settlement], limit: int
    ) -> tuple[Exchange, set[UUID]]:
        rows, outcome = await self._fused(connection, done, limit)
        settled = set(outcome["settled"])
        if self.policy.lanes and limit:
            rows += await self._further_lanes(connection, limit - len(rows), outcome)
        rest_s = POLL_S if outcome["paused"] else outcome["rest_s"]
        return Exchange((), await self._readable(connection, rows), rest_s), settled

    async def _readable(self, connection: Connection, rows: Sequence[Record]) -> list[Claim]:
        """Converts claimed rows. An unreadable message is parked with the reason and does not block the others."""
        claims = []
        for row in rows:
            try:
                claims.append(claim_of(row))
            except UNREADABLE as error:
                reason = clean_text(f"this message cannot be read: {error}")
                log.error("message_unreadable", queue=self.policy.queue, message_id=str(row["id"]), error=str(error))
                await connection.fetch(
                    statements.SETTLE_OTHERS, [row["id"]], [row["token"]], [Ending.PARKED.value], [reason], [0.0]
                )
        return claims

    async def _fused(
        self, connection: Connection, done: Sequence[Settlement], limit: int, statement: str | None = None
    ) -> tuple[list[Record], Record]:
        """Returns the claimed rows, and the row that lists the settled ids."""
        if statement is None:
            statement = statements.SETTLE_AND_CLAIM_LANES if self.policy.lanes else statements.SETTLE_AND_CLAIM
        arguments = (
            [settlement.claim.message.id for settlement in done],
            [settlement.claim.token for settlement in done],
            self.policy.log == "all",
            self.policy.queue,
            limit,
            self.policy.lease_s,
            self._worker,
            self.policy.limit_name if limit else None,
            *((self._lane_cursor,) if statement is statements.SETTLE_AND_CLAIM_LANES else ()),
        )
        try:
            rows = await connection.fetch(statement, *arguments)
        except asyncpg.DeadlockDetectedError:
            # The statement was rolled back and the other one has finished. A claim with an older snapshot locks a row
            # that another claim has leased meanwhile, and the settlement of that waits for it; the reverse dependency
            # is unknown.
            log.warning("exchange_deadlocked", queue=self.policy.queue, worker=self._worker)
            rows = await connection.fetch(statement, *arguments)
        return rows, rows.pop()

    async def _further_lanes(self, connection: Connection, wanted: int, outcome: Record) -> list[Record]:
        """Continues from the last lane visited, wrapping around once, until there are enough claims or every lane was
        visited: some may hold only messages that are not due yet."""
        rows: list[Record] = []
        begun_behind, self._lane_cursor, wrapped = self._lane_cursor, outcome["lane_cursor"], False
        while wanted > len(rows) and not outcome["paused"] and outcome["rest_s"] is None:
            at_end = self._lane_cursor is None
            if wrapped and (at_end or (begun_behind is not None and self._lane_cursor >= begun_behind)):
                break
            if at_end:
                if begun_behind is None:
                    break
                wrapped = True
            more, outcome = await self._fused(connection, (), wanted - len(rows))
            rows += more
            self._lane_cursor = outcome["lane_cursor"]
        if wanted > len(rows) and outcome["rest_s"] is None:
            # Messages put by a process that did not know the lanes yet.
            more, _ = await self._fused(connection, (), wanted - len(rows), statements.SETTLE_AND_CLAIM)
            rows += more
        return rows

    async def _settle_done(self, connection: Connection, done: Sequence[Settlement]) -> set[UUID]:
        return (await self._settle_and_claim(connection, done, 0))[1]

    async def _settle_others(self, connection: Connection, others: Sequence[Settlement]) -> set[UUID]:
        """Settles all endings but success: retries, parked, released, failed."""
        rows = await connection.fetch(
            statements.SETTLE_OTHERS,
            [settlement.claim.message.id for settlement in others],
            [settlement.claim.token for settlement in others],
            [settlement.ending.value for settlement in others],
            [None if settlement.reason is None else clean_text(settlement.reason) for settlement in others],
            [settlement.delay_s for settlement in others],
        )
        return {row["id"] for row in rows}

    async def _answers(
        self, connection: Connection, settlements: Sequence[Settlement], settled: set[UUID]
    ) -> list[SettleAnswer]:
        if len(settled) == len(settlements):
            return [SettleAnswer.SETTLED] * len(settlements)
        ids = [settlement.claim.message.id for settlement in settlements]
        missed = [message_id for message_id in ids if message_id not in settled]
        alive = {row["id"] for row in await connection.fetch(statements.ALIVE, missed)}
        return [
            SettleAnswer.SETTLED
            if message_id in settled
            else SettleAnswer.STALE
            if message_id in alive
            else SettleAnswer.ALREADY
            for message_id in ids
        ]

    async def _bisect(self, batch: Sequence[T], act: Callable[[Sequence[T]], Awaitable[set[UUID]]]) -> set[UUID]:
        """Bisects the batch around a row that the store refuses, so that the others are settled."""
        if not batch:
            return set()
        try:
            return await act(batch)
        except asyncpg.PostgresError as error:
            if is_transient(error):
                raise
            if len(batch) == 1:
                row = batch[0].claim.message.id if isinstance(batch[0], Settlement) else batch[0]
                log.error("row_refused", queue=self.policy.queue, message_id=str(row), error=str(error))
                return set()
        middle = len(batch) // 2
        return await self._bisect(batch[:middle], act) | await self._bisect(batch[middle:], act)

    async def claim_alone(self) -> Claim | None:
        async with self._database.engine.acquire() as connection:
            rows, _ = await self._fused(connection, (), 1, statements.CLAIM_ALONE)
            claims = await self._readable(connection, rows)
        return claims[0] if claims else None

    async def mark_alone(self, claim: Claim) -> bool:
        async with self._database.engine.acquire() as connection:
            return bool(await connection.fetchval(statements.MARK_ALONE, claim.message.id, claim.token))

    async def extend(self, claims: Sequence[Claim]) -> list[Claim]:
        if not claims:
            return []
        async with self._database.engine.acquire() as connection:
            lost = await connection.fetch(
                statements.EXTEND,
                [claim.message.id for claim in claims],
                [claim.token for claim in claims],
                self.policy.lease_s,
            )
        lost_claims = {(row["id"], row["token"]) for row in lost}
        return [claim for claim in claims if (claim.message.id, claim.token) in lost_claims]

    async def give_back(self, running: Sequence[Claim]) -> int:
        async with self._database.engine.acquire() as connection:
            rows = await connection.fetch(
                statements.GIVE_BACK, self.policy.queue, self._worker, [claim.message.id for claim in running]
            )
        return len(rows)

    async def settle_within(self, connection: Connection, settlement: Settlement) -> bool:
        if settlement.ending not in (Ending.SUCCESS, Ending.FAILED):
            return bool(await self._settle_others(connection, [settlement]))
        await plain(connection).send_ahead(
            statements.SETTLE_WITHIN,
            settlement.claim.message.id,
            settlement.claim.token,
            settlement.ending.value,
            None if settlement.reason is None else clean_text(settlement.reason),
            self.policy.log == "all",
            token_to_write(connection),
            self.policy.queue,
        )
        return True

    async def hold_within(self, connection: Connection, claim: Claim) -> bool:
        tag = await connection.execute(statements.HOLD_WITHIN, claim.message.id, claim.token, self.policy.lease_s)
        return tag == "UPDATE 1"

    async def reap(self) -> int:
        async with self._database.engine.acquire() as connection:
            lease_s = self.policy.lease_s
            longest = timedelta(seconds=lease_s + CLOCK_STEP_MIN_S)
            rows = await connection.fetch(statements.DEAD, self.policy.queue, REAP_BATCH, longest)
            if beyond := [row["id"] for row in rows if not row["dead"]]:
                await connection.execute(statements.SHORTEN, beyond, lease_s)
                log.warning("leases_shortened", queue=self.policy.queue, count=len(beyond), reason="a clock set back")
            if not (dead := [row["id"] for row in rows if row["dead"]]):
                return 0
            reaped = await self._bisect(dead, partial(self._reap, connection))
        return len(reaped)

    async def _reap(self, connection: Connection, dead: Sequence[UUID]) -> set[UUID]:
        rows = await connection.fetch(statements.REAP, dead)
        for row in rows:
            log.warning(
                "lease_ended",
                queue=self.policy.queue,
                message_id=str(row["id"]),
                worker=row["worker"],
                crashes=row["crashes"],
                now=row["state"],
            )
        if any(row["state"] != State.PARKED for row in rows):
            self._notifier.notify({self.policy.queue})
        return {row["id"] for row in rows}

    async def log_maintenance(self, task: Task, moved: int) -> None:
        await write_maintenance_run(
            self._database, synthetic_message(self.policy.queue, task), describe(task, moved), self._worker
        )

    async def wait(self, timeout_s: float, room: int = 0) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await self._wakeup.wait()
        except TimeoutError:
            pass
        self._wakeup.clear()

    async def stop_waiting(self) -> None:
        """Does nothing: a wait claims nothing."""

    def wake(self) -> None:
        self._wakeup.set()


def _lock_order(settlement: Settlement) -> tuple[UUID, int]:
    return settlement.claim.message.id, settlement.claim.token
