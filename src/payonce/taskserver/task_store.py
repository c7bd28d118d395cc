"""The SQL of tasks: adding, reading, claiming, renewing and settling."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from asyncpg import Record

from payonce.engine.database.connections import Connection, Database
from payonce.taskserver.arithmetic import PACE_RECOVERY_S, is_success
from payonce.taskserver.queues import QueueRow
from payonce.taskserver.refusals import (
    QUEUE_NOT_FOUND,
    TASK_EXISTED,
    TASK_EXISTS,
    Refusal,
    exists,
    not_found,
)
from payonce.taskserver.tasks import SCHEDULE_MAX_DAYS, NewTask, too_late

_COLUMNS: Final = """id, request, retry, deadline_ms, created_at, schedule_at, dispatches, responses,
    first_dispatched_at, last_scheduled_at, last_dispatched_at, last_answered_at, last_code, last_reason"""


@dataclass(frozen=True, eq=False)
class Claim:
    """A task claimed for one attempt; compared by identity."""

    queue: QueueRow
    id: str
    request: bytes
    retry: bytes | None
    deadline_ms: int
    schedule_at: datetime
    token: int
    forced: bool
    attempts: int
    """Including this one."""
    executions: int
    age_s: float
    """Since the first attempt."""
    previous_status: int | None
    previous_reason: str | None

    @property
    def key(self) -> tuple[int, str, int]:
        return self.queue.id, self.id, self.token


@dataclass(frozen=True)
class Claims:
    tasks: Sequence[Claim]
    rests_s: Mapping[int, float | None]
    """By queue id, the delay until another task may be claimed; None until something changes. Missing queues are
    deleted."""


@dataclass(frozen=True)
class Ending:
    """The result of an attempt."""

    claim: Claim
    wait_s: float | None
    """Delay until the next attempt; None after the last."""
    status: int | None
    code: int
    reason: str
    is_execution: bool

    @property
    def succeeded(self) -> bool:
        return is_success(self.status)


@dataclass(frozen=True)
class TaskStore:
    database: Database

    async def put(self, tasks: Sequence[NewTask], within: Connection | None = None) -> list[datetime | Refusal]:
        """The time at which each task was added, or its refusal, in order. Of two with one name the first is added."""
        # All processes insert in this order, so that batches with common names cannot deadlock.
        by_name = {(task.queue, task.id): task for task in reversed(tasks)}
        ordered = [by_name[key] for key in sorted(by_name)]
        rows = await (within or self.database.engine).fetch(
            "select queue_name, id, at from cloudtasks.put($1, $2, $3, $4, $5, $6, $7)",
            [task.queue for task in ordered],
            [task.id for task in ordered],
            [task.named for task in ordered],
            [task.request for task in ordered],
            [task.retry for task in ordered],
            [task.deadline_ms for task in ordered],
            [task.wanted for task in ordered],
        )
        added = {(row["queue_name"], row["id"]): row["at"] for row in rows}
        return [self._outcome(task, by_name[task.queue, task.id] is task, added) for task in tasks]

    def _outcome(
        self, task: NewTask, is_first: bool, added: dict[tuple[str, str | None], datetime]
    ) -> datetime | Refusal:
        if (now := added.get((task.queue, None))) is None:
            return not_found(QUEUE_NOT_FOUND)
        if task.wanted is not None and task.wanted > now + timedelta(days=SCHEDULE_MAX_DAYS):
            return too_late(task.wanted)
        return added.get((task.queue, task.id), exists(TASK_EXISTS)) if is_first else exists(TASK_EXISTS)

    async def find(self, queue_id: int, task_id: str) -> Record | None:
        return await self.database.engine.fetchrow(
            f"select {_COLUMNS} from cloudtasks.tasks where queue_id = $1 and id = $2", queue_id, task_id
        )

    async def is_remembered(self, queue_id: int, task_id: str) -> bool:
        """Whether the name of a past task is still reserved."""
        return bool(
            await self.database.engine.fetchval(
                """
            select exists (select from cloudtasks.tombstones
                where queue_id = $1 and id = $2 and until > payonce.due_now())
            """,
                queue_id,
                task_id,
            )
        )

    async def page(self, queue_id: int, after: str, limit: int) -> list[Record]:
        return await self.database.engine.fetch(
            f"select {_COLUMNS} from cloudtasks.tasks where queue_id = $1 and id > $2 order by id limit $3",
            queue_id,
            after,
            limit,
        )

    async def delete(self, queue_id: int, ids: Sequence[str], within: Connection | None = None) -> set[str]:
        """Deletes tasks; returns the ids of those that existed. Unlike after an attempt, generated names are reserved,
        too: a caller knew them."""
        rows = await (within or self.database.engine).fetch(_DELETE, queue_id, sorted(set(ids)))
        return {row["id"] for row in rows}

    async def force(self, queue_id: int, task_id: str) -> Record | None:
        """Makes the task due at once, regardless of limits and pauses."""
        return await self.database.engine.fetchrow(
            f"""
            update cloudtasks.tasks set forced = true, schedule_at = payonce.due_now()
            where queue_id = $1 and id = $2 returning {_COLUMNS}
            """,
            queue_id,
            task_id,
        )

    async def claim(self, queues: Mapping[QueueRow, bool], limit: int, lease_s: float) -> Claims:
        """Claims up to `limit` tasks of each queue; thorough claims include expired leases and forced tasks."""
        # All processes lock in this order, so that claims cannot deadlock.
        ordered = sorted(queues, key=lambda queue: queue.id)
        rows = await self.database.engine.fetch(
            "select * from cloudtasks.claim_many($1, $2, $3, $4, $5)",
            [queue.id for queue in ordered],
            limit,
            lease_s,
            PACE_RECOVERY_S,
            [queues[queue] for queue in ordered],
        )
        by_id = {queue.id: queue for queue in ordered}
        tasks = [_claim_of(by_id[row["queue_id"]], row) for row in rows if row["id"] is not None]
        return Claims(tasks, {row["queue_id"]: row["rest_s"] for row in rows if row["id"] is None})

    async def extend(self, claims: Sequence[Claim], lease_s: float) -> tuple[set[Claim], set[Claim]]:
        """Renews leases. Returns the lost claims, and those past their deadline."""
        rows = await self.database.engine.fetch(
            _EXTEND,
            [claim.queue.id for claim in claims],
            [claim.id for claim in claims],
            [claim.token for claim in claims],
            lease_s,
        )
        kept = {(row["queue_id"], row["id"], row["token"]): row["is_late"] for row in rows}
        lost = {claim for claim in claims if claim.key not in kept}
        return lost, {claim for claim in claims if kept.get(claim.key)}

    async def settle(self, endings: Sequence[Ending]) -> set[tuple[int, str, int]]:
        """Settles results; returns the keys of those that counted. Stale claims change nothing."""
        # All processes lock in this order, so that batches with common tasks cannot deadlock.
        ordered = sorted(endings, key=lambda ending: ending.claim.key)
        settled: list[Record] = []
        if done := [ending.claim for ending in ordered if ending.wait_s is None]:
            settled += await self.database.engine.fetch(
                _SETTLE_DONE,
                [claim.queue.id for claim in done],
                [claim.id for claim in done],
                [claim.token for claim in done],
            )
        if again := [ending for ending in ordered if ending.wait_s is not None]:
            settled += await self.database.engine.fetch(
                _SETTLE_AGAIN,
                [ending.claim.queue.id for ending in again],
                [ending.claim.id for ending in again],
                [ending.claim.token for ending in again],
                [ending.wait_s for ending in again],
                [ending.status for ending in again],
                [ending.code for ending in again],
                [ending.reason for ending in again],
                [ending.is_execution for ending in again],
                [ending.claim.forced for ending in again],
            )
        return {(row["queue_id"], row["id"], row["token"]) for row in settled}


def name_taken(remembered: bool) -> Refusal:
    return exists(TASK_EXISTED if remembered else TASK_EXISTS)


def _claim_of(queue: QueueRow, row: Record) -> Claim:
    return Claim(
        queue,
        row["id"],
        row["request"],
        row["retry"],
        row["deadline_ms"],
        row["schedule_at"],
        row["token"],
        row["forced"],
        row["dispatches"],
        row["executions"],
        row["age_s"],
        row["last_status"],
        row["last_reason"],
    )


_DELETE: Final = """
    with gone as (
        delete from cloudtasks.tasks t using unnest($2::text[]) as asked (id)
        where t.queue_id = $1 and t.id = asked.id
        returning t.id
    ), kept as (
        insert into cloudtasks.tombstones (queue_id, id, until)
        select $1, id, payonce.due_now() + interval '1 day' from gone
        on conflict (queue_id, id) do update set until = excluded.until
    )
    select id from gone
"""

# Rows locked by another transaction are skipped: they are being settled, or are renewed next time.
_EXTEND: Final = """
    with asked as (
        select t.queue_id, t.id, t.token
        from unnest($1::bigint[], $2::text[], $3::bigint[]) as asked (queue_id, id, token)
        join cloudtasks.tasks t on t.queue_id = asked.queue_id and t.id = asked.id and t.token = asked.token
        where t.lease_until is not null
    ), kept as (
        select t.queue_id, t.id from cloudtasks.tasks t join asked on t.queue_id = asked.queue_id and t.id = asked.id
        where t.token = asked.token and t.lease_until is not null
        for no key update of t skip locked
    ), extended as (
        update cloudtasks.tasks t set lease_until = payonce.lease_now() + make_interval(secs => $4::float8)
        from kept where t.queue_id = kept.queue_id and t.id = kept.id
    )
    select asked.queue_id, asked.id, asked.token,
           t.last_dispatched_at + make_interval(secs => t.deadline_ms / 1000.0) <= payonce.due_now() as is_late
    from asked join cloudtasks.tasks t on t.queue_id = asked.queue_id and t.id = asked.id
"""

_SETTLE_DONE: Final = """
    with gone as (
        delete from cloudtasks.tasks t
        using unnest($1::bigint[], $2::text[], $3::bigint[]) as ended (queue_id, id, token)
        where t.queue_id = ended.queue_id and t.id = ended.id and t.token = ended.token
        returning t.queue_id, t.id, t.token, t.named
    ), kept as (
        insert into cloudtasks.tombstones (queue_id, id, until)
        select queue_id, id, payonce.due_now() + interval '1 day' from gone where named
        on conflict (queue_id, id) do update set until = excluded.until
    )
    select queue_id, id, token from gone
"""

_SETTLE_AGAIN: Final = """
    update cloudtasks.tasks t
    set lease_until = null, last_answered_at = payonce.due_now(),
        schedule_at = case when ended.forced then t.last_dispatched_at else payonce.due_now() end
            + make_interval(secs => ended.wait_s),
        responses = t.responses + (ended.status is not null)::integer,
        executions = t.executions + ended.is_execution::integer,
        last_status = ended.status, last_code = ended.code, last_reason = ended.reason
    from unnest($1::bigint[], $2::text[], $3::bigint[], $4::float8[], $5::integer[], $6::integer[], $7::text[],
                $8::boolean[], $9::boolean[])
             as ended (queue_id, id, token, wait_s, status, code, reason, is_execution, forced)
    where t.queue_id = ended.queue_id and t.id = ended.id and t.token = ended.token and t.lease_until is not null
    returning t.queue_id, t.id, t.token
"""
