"""What the server's metrics tell: tasks taken, requests sent for them and how these ended, and what waits.

By the id of the queue, whatever its project: that is what it is called in a request's headers, too.
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
"""A queue's waiting tasks are counted up to this: looking at millions every few seconds is work of its own."""
OBSERVE_EVERY_S: Final = 5.0
LATE: Final = "late"
UNREACHABLE: Final = "unreachable"
ANSWERS: Final = ("1xx", "2xx", "3xx", "4xx", "5xx", LATE, UNREACHABLE)

log = get_logger(__name__)


def count_created(queue: str, tasks: int) -> None:
    CLOUDTASKS_CREATED.labels(_id_of(queue)).inc(tasks)


def count_sent(queue: str, answer: "Answer") -> None:
    """One request; `late` had no answer before its deadline, `unreachable` none for another reason."""
    if answer.status is not None:
        said = ANSWERS[min(max(answer.status // 100, 1), 5) - 1]
    else:
        said = LATE if answer.code.name == "DEADLINE_EXCEEDED" else UNREACHABLE
    CLOUDTASKS_DISPATCHES.labels(_id_of(queue), said).inc()
    CLOUDTASKS_DISPATCH_SECONDS.observe(_id_of(queue), (answer.took_s,))


def count_settled(endings: "Iterable[Ending]") -> None:
    """Those alone that the store took: whoever has the task now tells of the others."""
    for ending in endings:
        queue = _id_of(ending.claim.queue.name)
        if ending.wait_s is not None:
            CLOUDTASKS_RETRIES.labels(queue).inc()
        elif not ending.succeeded:
            CLOUDTASKS_GIVEN_UP.labels(queue).inc()


def forget(queue: str) -> None:
    """Of a queue that is gone: on one's own machine they come and go, and each would be shown for ever."""
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
    # What is no longer there must not be shown as it was last.
    CLOUDTASKS_WAITING.clear()
    for row in rows:
        CLOUDTASKS_WAITING.labels(_id_of(row["name"])).inc(row["waiting"])


async def observe_for_ever(database: Database) -> None:
    """For a process that is nothing but a server; in others a janitor does it."""
    while True:
        try:
            await observe_tasks(database)
        except Exception as error:
            say = log.warning if is_transient(error) else log.error
            say("cloudtasks_observe_failed", error=f"{type(error).__name__}: {error}")
        await asyncio.sleep(OBSERVE_EVERY_S)


def _id_of(queue: str) -> str:
    return queue.rpartition("/")[2]
