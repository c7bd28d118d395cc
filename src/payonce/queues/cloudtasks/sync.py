"""Makes the task service's queues match the policies: creates missing ones and updates differing ones."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Final

from payonce.engine.database.connections import Database
from payonce.engine.messages.policy import Policy
from payonce.kit.outcomes import Invalid
from payonce.queues.cloudtasks.backoff import backoff_bounds_s, doublings
from payonce.queues.cloudtasks.client import QueueNumbers, TaskService
from payonce.queues.cloudtasks.pushed import PushedQueue

RATE_MAX: Final = 500.0
CONCURRENCY_MAX: Final = 5_000
CONCURRENCY_DEFAULT: Final = 1_000
"""Google's limits, and its default for a queue that states none."""
UNLIMITED: Final = -1
SAME: Final = 1e-6


@dataclass(frozen=True)
class Difference:
    """One setting that differs; `there` is None if the task service lacks the queue."""

    queue: str
    field: str
    there: float | None
    here: float


def numbers_of(policy: Policy) -> QueueNumbers:
    """A policy in Google's terms. Attempts are unlimited there: Google counts an unreachable process like a failing
    handler, and would give a message up before its policy does."""
    least_s, most_s = backoff_bounds_s(policy.backoff)
    return QueueNumbers(
        rate=min(policy.rate or RATE_MAX, RATE_MAX),
        concurrency=min(policy.concurrency or CONCURRENCY_DEFAULT, CONCURRENCY_MAX),
        max_attempts=UNLIMITED,
        max_retry_s=policy.give_up_after_s or 0.0,
        min_backoff_s=least_s,
        max_backoff_s=most_s,
        max_doublings=doublings(policy.backoff),
    )


async def refuse_foreign(database: Database, service: TaskService) -> None:
    """Raises Invalid if the task server belongs to another installation. The two would overwrite each other's rates and
    pauses, and neither could verify its tasks: the server's keys are in the other's database."""
    owner = await service.installation()
    ours = await database.installation()
    if owner not in (None, ours):
        raise Invalid(
            f"the Cloud Tasks server at {service.config.endpoint} belongs to another payonce (installation {owner}, "
            f"this one is {ours}); set CLOUD_TASKS_ENDPOINT to this one's server, or start one on its database with: "
            "payonce cloudtasks --port 0"
        )


async def differences(service: TaskService, pushed: Sequence[PushedQueue]) -> list[Difference]:
    found: list[Difference] = []
    for each in sorted(pushed, key=lambda each: each.queue):
        there, wanted = await service.queue(each.remote_name), numbers_of(each.policy)
        for name in (field.name for field in fields(QueueNumbers)):
            here = getattr(wanted, name)
            if there is None:
                found.append(Difference(each.queue, name, None, here))
            elif not _same(name, getattr(there.numbers, name), here, wanted):
                found.append(Difference(each.queue, name, getattr(there.numbers, name), here))
    return found


async def sync(service: TaskService, pushed: Sequence[PushedQueue]) -> list[Difference]:
    """Creates and updates queues that differ; returns the differences it removed. Idempotent."""
    found = await differences(service, pushed)
    for each in pushed:
        missing = any(one.queue == each.queue and one.there is None for one in found)
        if missing:
            await service.create_queue(each.remote_name, numbers_of(each.policy))
        elif any(one.queue == each.queue for one in found):
            await service.update_queue(each.remote_name, numbers_of(each.policy))
    return found


async def repair_pauses(database: Database, service: TaskService, pushed: Sequence[PushedQueue]) -> list[str]:
    """Pauses and resumes the task service's queues as PostgreSQL has them; returns the queues it changed."""
    rows = await database.engine.fetch(
        "select name, paused from payonce.queues where name = any($1)", [each.queue for each in pushed]
    )
    paused = {row["name"]: row["paused"] for row in rows}
    repaired = []
    for each in pushed:
        there, here = await service.queue(each.remote_name), paused.get(each.queue, False)
        if there is not None and there.paused != here:
            await service.set_paused(each.remote_name, here)
            repaired.append(each.queue)
    return repaired


def _same(name: str, there: float, here: float, wanted: QueueNumbers) -> bool:
    if name == "max_doublings" and wanted.min_backoff_s == wanted.max_backoff_s:
        # Over gRPC zero and unset are the same, and Google may read zero as unset; with a single delay it makes no
        # difference.
        return True
    return abs(there - here) <= SAME
