"""The rows and the log of their changes; each function contains its SQL."""

from uuid import UUID

from payonce import Invalid, Reader, Tx
from payonce.examples.tally.model import Outcome
from payonce.examples.tally.policies import CHANGES


async def row_exists(read: Reader, row_id: int) -> bool:
    return bool(await read.fetchval("select exists (select from tally.rows where id = $1)", row_id))


async def add_rows(tx: Tx, row_ids: list[int]) -> None:
    await tx.execute("insert into tally.rows (id) select unnest($1::bigint[])", row_ids)


async def add_one(tx: Tx, row_id: int, message_id: UUID) -> None:
    """Adds one and logs the addition in the same commit: a row changed twice would have two entries."""
    changed = await tx.fetchval(
        "update tally.rows set value = value + 1, changed_by = $2 where id = $1 returning true", row_id, message_id
    )
    if not changed:
        raise Invalid(f"there is no row {row_id} to change")
    await tx.execute(
        "insert into tally.changes (row_id, message_id, changed_at) values ($1, $2, payonce.due_now())",
        row_id,
        message_id,
    )


async def outcome(read: Reader) -> Outcome:
    """One statement, so that all figures are consistent."""
    row = await read.fetchrow(
        """
        with waiting as (
            select (payload->>'row_id')::bigint as row_id, state, last_error from payonce.messages where queue = $1
            union all
            select (payload->>'row_id')::bigint, state, last_error from payonce.outbox
            where relay = 'redis' and queue = $1
        ), changed as (
            select row_id, count(*) as times from tally.changes group by row_id
        )
        select count(*) as requested,
            count(*) filter (where changed.times >= 1) as applied,
            count(*) filter (where changed.times > 1 or (changed.times >= 1 and waiting.row_id is not null)) as doubled,
            count(*) filter (where waiting.state = 'parked') as parked,
            count(*) filter (where waiting.state <> 'parked') as unfinished,
            count(*) filter (where changed.times is null and waiting.row_id is null) as lost,
            coalesce(array_agg(rows.id) filter (where waiting.state = 'parked'), '{}') as parked_rows,
            (select count(*) from payonce.job_logs where queue = $1 and status = 'retry') as retries
        from tally.rows rows left join changed on changed.row_id = rows.id left join waiting on waiting.row_id = rows.id
        """,
        CHANGES.queue,
    )
    figures = {
        name: row[name] for name in ("requested", "applied", "doubled", "parked", "unfinished", "lost", "retries")
    }
    return Outcome(**figures, parked_rows=frozenset(row["parked_rows"]))


async def unfinished(read: Reader) -> int:
    """Messages that are neither applied nor parked."""
    left: int = await read.fetchval(
        "select count(*) from payonce.live_messages where queue = $1 and state <> 'parked'", CHANGES.queue
    )
    return left
