"""What keeps queues moving, under the names by which operators look for it in job log, console and metrics.

Every worker does both all the time, so there is no tick that a message waits for. Whoever finds nothing to do says
nothing.
"""

from enum import StrEnum
from typing import Final

from payonce.engine.database.connections import Connection, Database
from payonce.engine.messages.job_log import EndedRun, Status, write_runs
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
    """Logs one maintenance run as a success."""
    await write_runs(source, [EndedRun(entry, Status.SUCCESS, 1, info=info, worker=worker)])
