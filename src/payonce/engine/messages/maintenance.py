"""What keeps queues moving, under the names by which operators look for it in job log, console and metrics.

Every worker does both all the time, so there is no tick that a message waits for. Whoever finds nothing to do says
nothing.
"""

from enum import StrEnum
from typing import Final

from payonce.engine.database.connections import Connection, Database
from payonce.engine.messages.job_log import INFO_MAX_LENGTH
from payonce.engine.messages.model import Message


class Task(StrEnum):
    PUMP = "pump_delayed_queues"
    """Messages that waited for another attempt were taken up. In PostgreSQL they lie where they are until their time
    has come; in Redis every script moves those first. They are counted where both are alike: when they are claimed."""
    SWEEP = "sweep_processing_queues"
    """Messages of workers whose lease ended went back, or were parked when they had run alone."""


DESCRIPTIONS: Final = {
    Task.PUMP: ("{} message came from the delayed ones", "{} messages came from the delayed ones"),
    Task.SWEEP: ("{} message taken from dead or stopped workers", "{} messages taken from dead or stopped workers"),
}


def synthetic_message(queue: str, task: Task) -> Message:
    """No message was there: this one gives its run an id. The name is also the correlation, by which the log has an
    index: the runs of a task are found in a log of any length."""
    return Message(queue=queue, action=task.value, correlation_id=task.value)


def describe(task: Task, moved: int) -> str:
    one, many = DESCRIPTIONS[task]
    return (one if moved == 1 else many).format(moved)


async def write_maintenance_run(source: Database | Connection, entry: Message, info: str, worker: str) -> None:
    """One row of the job log, as of a run that succeeded."""
    await (source.engine if isinstance(source, Database) else source).execute(
        """
        insert into payonce.job_logs (queue, message_id, correlation_id, status, attempts, info, action, worker,
                                      created_at, updated_at)
        values ($1, $2, $3, 'success', 1, $4, $5, $6, payonce.due_now(), payonce.due_now())
        """,
        entry.queue,
        entry.id,
        entry.correlation_id,
        info[:INFO_MAX_LENGTH],
        entry.action,
        worker,
    )
