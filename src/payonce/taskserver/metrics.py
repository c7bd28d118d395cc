"""The server's metrics: tasks created, requests sent and their results, and waiting tasks.

Labelled by queue id, whatever its project, as in a request's headers.
"""

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from payonce.engine.database.connections import Database, is_transient
from payonce.engine.monitoring.metrics import (
    CLOUDTASKS_CREATED,
    CLOUDTASKS_DISPATCH_SECONDS,
    CLOUDTASKS_DISPATCHES,
    CLOUDTASKS_GIVEN_UP,
    CLOUDTASKS_RETRIES,
    CLOUDTASKS_WAITING,
)
from payonce.kit.log import get_logger

if TYPE_CHECKING:
    from payonce.taskserver.delivery import Answer
    from payonce.taskserver.task_store import Ending

COUNT_MAX: Final = 100_000
"""Limit of counting a queue's waiting tasks: counting millions every few seconds would be a load of its own."""
OBSERVE_EVERY_S: Final = 5.0
LATE: Final = "late"
UNREACHABLE: Final = "unreachable"
ANSWERS: Final = ("1xx", "2xx", "3xx", "4xx", "5xx", LATE, UNREACHABLE)

log = get_logger(__name__)


def count_created(queue: str, tasks: int) -> None:
    CLOUDTASKS_CREATED.labels(_id_of(queue)).inc(tasks)


def count_sent(queue: str, answer: "Answer") -> None:
    """Counts one request; `late` had no response before its deadline, `unreachable` none for another reason."""
    if answer.status is not None:
        answered = ANSWERS[min(max(answer.status // 100, 1), 5) - 1]
    else:
        answered = LATE if answer.code.name == "DEADLINE_EXCEEDED" else UNREACHABLE
    CLOUDTASKS_DISPATCHES.labels(_id_of(queue), answered).inc()
    CLOUDTASKS_DISPATCH_SECONDS.observe(_id_of(queue), (answer.took_s,))


def count_settled(endings: "Iterable[Ending]") -> None:
    """Counts results that the store accepted; another process counts the others."""
    for ending in endings:
        queue = _id_of(ending.claim.queue.name)
        if ending.wait_s is not None:
            CLOUDTASKS_RETRIES.labels(queue).inc()
        elif not ending.succeeded:
            CLOUDTASKS_GIVEN_UP.labels(queue).inc()


def forget(queue: str) -> None:
    """Removes a deleted queue's metrics: on a developer's machine queues come and go, and each would stay."""
    name = _id_of(queue)
    for metric in (CLOUDTASKS_CREATED, CLOUDTASKS_RETRIES, CLOUDTASKS_GIVEN_UP, CLOUDTASKS_DISPATCH_SECONDS):
        metric.remove(name)
    for answer in ANSWERS:
        CLOUDTASKS_DISPATCHES.remove(name, answer)


async def observe_tasks(database: Database) -> None:
    rows = await database.work.fetch(
        """
        select q.name, (select count(*) from (select from cloudtasks.tasks t
            where t.queue_id = q.id and t.lease_until is null limit $1) counted) as waiting
        from cloudtasks.queues q where q.deleted_at is null
        """,
        COUNT_MAX,
    )
    # Deleted queues must not keep their last value.
    CLOUDTASKS_WAITING.clear()
    for row in rows:
        CLOUDTASKS_WAITING.labels(_id_of(row["name"])).inc(row["waiting"])


async def observe_for_ever(database: Database) -> None:
    """Updates the gauges in a process that only runs a server; elsewhere a janitor does."""
    while True:
        try:
            await observe_tasks(database)
        except Exception as error:
            write = log.warning if is_transient(error) else log.error
            write("cloudtasks_observe_failed", error=f"{type(error).__name__}: {error}")
        await asyncio.sleep(OBSERVE_EVERY_S)


def _id_of(queue: str) -> str:
    return queue.rpartition("/")[2]
