"""Taking messages: batch claims with SKIP LOCKED, fused with the settling of finished ones."""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import asyncpg
import structlog
from asyncpg import Record

from payonce.engine.bell import Bell
from payonce.engine.database import Connection, Database, is_transient
from payonce.engine.model import Answer, Claim, Ending, Settlement, State, clean_text
from payonce.engine.policy import Policy
from payonce.engine.queue import POLL_S, Exchange
from payonce.queues.postgres import statements
from payonce.queues.postgres.limits import allowance, spend
from payonce.queues.postgres.rows import claim_of

REAP_BATCH: Final = 200

log = structlog.get_logger(__name__)


class PostgresQueue:
    """One queue as one worker process sees it."""

    def __init__(self, database: Database, bell: Bell, policy: Policy, worker: str) -> None:
        self.policy = policy
        self._database = database
        self._bell = bell
        self._worker = worker
        self._rung = asyncio.Event()
        self._lane_cursor = ""
        bell.subscribe(policy.queue, self._rung)

    async def exchange(self, settlements: Sequence[Settlement], limit: int) -> Exchange:
        async with self._database.engine.acquire() as connection:
            try:
                if self.policy.limit_name is None or limit == 0:
                    return await self._settle_and_claim(connection, settlements, limit)
                answers = (await self._settle_and_claim(connection, settlements, 0)).answers if settlements else ()
            except asyncpg.PostgresError as error:
                if is_transient(error) or not settlements:
                    raise
                log.warning("settle_bisected", queue=self.policy.queue, count=len(settlements), error=str(error))
                return Exchange(await self._bisect(connection, settlements))
            claimed = await self._claim_limited(connection, self.policy.limit_name, limit)
            return Exchange(answers, claimed.claims, claimed.rest_s)

    async def _claim_limited(self, connection: Connection, limit_name: str, limit: int) -> Exchange:
        """One claimer at a time per limit; what was settled before is already free."""
        async with connection.transaction():
            allowed = await allowance(connection, limit_name, limit)
            if not allowed.count:
                return Exchange(rest_s=allowed.rest_s)
            claimed = await self._settle_and_claim(connection, (), allowed.count)
            await spend(connection, limit_name, allowed, len(claimed.claims))
            return claimed

    async def _settle_and_claim(
        self, connection: Connection, settlements: Sequence[Settlement], limit: int
    ) -> Exchange:
        done = [settlement for settlement in settlements if settlement.ending is Ending.SUCCESS]
        settled: set[Any] = set()
        if len(done) < len(settlements):
            settled |= await self._settle_others(connection, settlements)
        rows, outcome = await self._fused(connection, done, limit)
        settled.update(outcome["settled"])
        if self.policy.lanes and limit:
            rows += await self._further_lanes(connection, limit - len(rows), outcome)
        answers = await self._answers(connection, settlements, settled)
        return Exchange(answers, [claim_of(row) for row in rows], POLL_S if outcome["paused"] else None)

    async def _fused(
        self, connection: Connection, done: Sequence[Settlement], limit: int, statement: str | None = None
    ) -> tuple[list[Record], Record]:
        """The claimed rows, and the row that says what was settled."""
        if statement is None:
            statement = statements.SETTLE_AND_CLAIM_LANES if self.policy.lanes else statements.SETTLE_AND_CLAIM
        rows = await connection.fetch(
            statement,
            [settlement.claim.message.id for settlement in done],
            [settlement.claim.token for settlement in done],
            self.policy.log == "all",
            self.policy.queue,
            limit,
            self.policy.lease_s,
            self._worker,
            *((self._lane_cursor,) if statement is statements.SETTLE_AND_CLAIM_LANES else ()),
        )
        return rows, rows.pop()

    async def _further_lanes(self, connection: Connection, wanted: int, outcome: Record) -> list[Record]:
        """Walks on from the last lane visited, at the end from the first lane again, until there is enough or every
        lane was visited: some may hold only messages that are not due yet."""
        rows: list[Record] = []
        begun_behind, self._lane_cursor, wrapped = self._lane_cursor, outcome["lane_cursor"], False
        while wanted > len(rows) and not outcome["paused"]:
            if self._lane_cursor == "" or (wrapped and self._lane_cursor >= begun_behind):
                if wrapped or begun_behind == "":
                    break
                wrapped = True
            more, outcome = await self._fused(connection, (), wanted - len(rows))
            rows += more
            self._lane_cursor = outcome["lane_cursor"]
        if wanted > len(rows):
            # Put by a process that did not know of the lanes yet.
            more, _ = await self._fused(connection, (), wanted - len(rows), statements.SETTLE_AND_CLAIM)
            rows += more
        return rows

    async def _settle_others(self, connection: Connection, settlements: Sequence[Settlement]) -> set[Any]:
        """Everything that is not a plain success: retries, parked, released, failed."""
        others = [settlement for settlement in settlements if settlement.ending is not Ending.SUCCESS]
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
        self, connection: Connection, settlements: Sequence[Settlement], settled: set[Any]
    ) -> list[Answer]:
        if len(settled) == len(settlements):
            return [Answer.SETTLED] * len(settlements)
        missed = [
            settlement.claim.message.id for settlement in settlements if settlement.claim.message.id not in settled
        ]
        rows = await connection.fetch("select id from payonce.messages where id = any($1)", missed)
        alive = {row["id"] for row in rows}
        return [
            Answer.SETTLED if message_id in settled else Answer.STALE if message_id in alive else Answer.ALREADY
            for message_id in (settlement.claim.message.id for settlement in settlements)
        ]

    async def _bisect(self, connection: Connection, settlements: Sequence[Settlement]) -> list[Answer]:
        """One row that the store refuses must not hold up the rest of its batch."""
        try:
            return list((await self._settle_and_claim(connection, settlements, 0)).answers)
        except asyncpg.PostgresError as error:
            if is_transient(error):
                raise
            if len(settlements) == 1:
                message_id = settlements[0].claim.message.id
                log.error("settle_refused", queue=self.policy.queue, message_id=str(message_id), error=str(error),
                          next="its lease ends, then it runs again")  # fmt: skip
                return [Answer.STALE]
        middle = len(settlements) // 2
        return await self._bisect(connection, settlements[:middle]) + await self._bisect(
            connection, settlements[middle:]
        )

    async def claim_alone(self) -> Claim | None:
        async with self._database.engine.acquire() as connection:
            row = await connection.fetchrow(
                statements.CLAIM_ALONE, self.policy.queue, self.policy.lease_s, self._worker
            )
        return None if row is None else claim_of(row)

    async def mark_alone(self, claim: Claim) -> bool:
        async with self._database.engine.acquire() as connection:
            return bool(await connection.fetchval(
                """
                update payonce.messages set running_alone = true
                where id = $1 and token = $2 and state = 'leased'
                returning true
                """,
                claim.message.id, claim.token,
            ))  # fmt: skip

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
        lost_ids = {row["id"] for row in lost}
        return [claim for claim in claims if claim.message.id in lost_ids]

    async def give_back(self, running: Sequence[Claim]) -> int:
        async with self._database.engine.acquire() as connection:
            rows = await connection.fetch(
                statements.GIVE_BACK, self.policy.queue, self._worker, [claim.message.id for claim in running]
            )
        return len(rows)

    async def settle_within(self, connection: Connection, settlement: Settlement) -> str | None:
        xact_id: str | None = await connection.fetchval(
            statements.SETTLE_WITHIN,
            settlement.claim.message.id,
            settlement.claim.token,
            settlement.ending.value,
            None if settlement.reason is None else clean_text(settlement.reason),
            self.policy.log == "all",
        )
        return xact_id

    async def reap(self) -> int:
        async with self._database.engine.acquire() as connection:
            rows = await connection.fetch(statements.REAP, self.policy.queue, REAP_BATCH)
        for row in rows:
            log.warning("lease_ended", queue=self.policy.queue, message_id=str(row["id"]), worker=row["worker"],
                        crashes=row["crashes"], now=row["state"])  # fmt: skip
        if any(row["state"] != State.PARKED for row in rows):
            self._bell.ring({self.policy.queue})
        return len(rows)

    async def wait(self, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await self._rung.wait()
        except TimeoutError:
            pass
        self._rung.clear()

    def wake(self) -> None:
        self._rung.set()
