"""Deletes expired rows: commit tokens, freed names, tasks past their age or without a queue, old operations."""

from typing import Final

from payonce.engine.database.commits import forget_tokens
from payonce.engine.database.connections import Database
from payonce.taskserver.operations import OPERATION_KEPT_S
from payonce.taskserver.queue_store import NAME_LOCK_S

PRUNE_BATCH: Final = 5_000
PRUNE_EVERY_S: Final = 30.0
RETENTION_DAYS: Final = 31
"""Age at which tasks are deleted, dispatched or not, as at Google's."""


async def prune(database: Database) -> int:
    """Deletes one batch of each kind; returns the number of rows. Names must outlive the lock on them."""
    gone = await forget_tokens(database)
    for statement, arguments in (
        (_FREE_NAMES, (PRUNE_BATCH,)),
        (_DROP_TASKS_OF_DELETED_QUEUES, (PRUNE_BATCH,)),
        (_DROP_OLD_TASKS, (PRUNE_BATCH, RETENTION_DAYS)),
        (_FORGET_OPERATIONS, (PRUNE_BATCH, OPERATION_KEPT_S)),
        (_FORGET_QUEUES, (NAME_LOCK_S,)),
    ):
        # The handlers' pool, where the planner may choose the scans that these statements need.
        answered = await database.work.execute(statement, *arguments)
        gone += int(answered.rpartition(" ")[2])
    return gone


_FREE_NAMES: Final = """
    delete from cloudtasks.tombstones where ctid = any (array(
        select ctid from cloudtasks.tombstones where until <= payonce.due_now() limit $1))
"""

_DROP_TASKS_OF_DELETED_QUEUES: Final = """
    delete from cloudtasks.tasks where ctid = any (array(
        select t.ctid from cloudtasks.queues q join cloudtasks.tasks t on t.queue_id = q.id
        where q.deleted_at is not null limit $1 for update of t skip locked))
"""

_DROP_OLD_TASKS: Final = """
    with old as (
        delete from cloudtasks.tasks where ctid = any (array(
            select ctid from cloudtasks.tasks
            where schedule_at <= payonce.due_now() and created_at <= payonce.due_now() - make_interval(days => $2)
            limit $1 for update skip locked))
        returning queue_id, id, named
    )
    insert into cloudtasks.tombstones (queue_id, id, until)
    select queue_id, id, payonce.due_now() + interval '1 day' from old where named
    on conflict (queue_id, id) do update set until = excluded.until
"""

_FORGET_OPERATIONS: Final = """
    delete from cloudtasks.operations where name = any (array(
        select name from cloudtasks.operations
        where created_at <= payonce.due_now() - make_interval(secs => $2::float8) limit $1))
"""

_FORGET_QUEUES: Final = """
    delete from cloudtasks.queues q
    where deleted_at <= payonce.due_now() - make_interval(secs => $1::float8)
      and not exists (select from cloudtasks.tasks t where t.queue_id = q.id)
"""
