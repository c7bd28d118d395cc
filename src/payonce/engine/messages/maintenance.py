"""Queue maintenance, under the names by which operators look for it in the job log, the console and the metrics.

Every worker does it continuously, so no message waits for a tick. Nothing is logged when there was nothing to do.
"""

from enum import StrEnum
from typing import Final

from payonce.engine.database.connections import Connection, Database
from payonce.engine.messages.job_log import EndedRun, Status, write_runs
from payonce.engine.messages.model import Message


class Task(StrEnum):
    PUMP = "pump_delayed_queues"
    """Messages that waited for another attempt were claimed. In PostgreSQL they stay in place until they are due; in
    Redis every script moves due messages first. Both are counted in the same way, when they are claimed."""
    SWEEP = "sweep_processing_queues"
    """Messages of workers with an expired lease were returned, or parked if they had run isolated."""


DESCRIPTIONS: Final = {
    Task.PUMP: ("{} message came from the delayed ones", "{} messages came from the delayed ones"),
    Task.SWEEP: ("{} message taken from dead or stopped workers", "{} messages taken from dead or stopped workers"),
}


def synthetic_message(queue: str, task: Task) -> Message:
    """A message that stands for a maintenance run in the log. The task's name is also the correlation id, for which the
    log has an index, so the runs of a task are found however long the log is."""
    return Message(queue=queue, action=task.value, correlation_id=task.value)


def describe(task: Task, moved: int) -> str:
    one, many = DESCRIPTIONS[task]
    return (one if moved == 1 else many).format(moved)


async def write_maintenance_run(source: Database | Connection, entry: Message, info: str, worker: str) -> None:
    """Logs one maintenance run as a success."""
    await write_runs(source, [EndedRun(entry, Status.SUCCESS, 1, info=info, worker=worker)])
