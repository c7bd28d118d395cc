"""The queues at the task service, from the policies here: what is missing is made, what differs is put right."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Final

from payonce.engine.database.connections import Database
from payonce.engine.messages.policy import Policy
from payonce.kit.outcomes import Invalid
from payonce.queues.cloudtasks.backoff import backoff_bounds_s, doublings
from payonce.queues.cloudtasks.client import QueueNumbers, TaskService
from payonce.queues.cloudtasks.pushed import Pushed

RATE_MAX: Final = 500.0
CONCURRENCY_MAX: Final = 5_000
CONCURRENCY_DEFAULT: Final = 1_000
"""Google's limits, and what it takes for a queue that states none."""
UNLIMITED: Final = -1
SAME: Final = 1e-6


@dataclass(frozen=True)
class Difference:
    """One number of one queue; `there` None: the queue is missing."""

    queue: str
    field: str
    there: float | None
    here: float


def numbers_of(policy: Policy) -> QueueNumbers:
    """A policy in Google's terms. Attempts are without limit there: it counts a process that is down as it counts a
    handler that fails, and would give a message up before its policy does."""
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
    """Two installations at one task server would set each other's rates and pauses, and neither could verify the tasks
    that it gets: the server's keys are in the other's database."""
    owner = await service.installation()
    ours = await database.installation()
    if owner not in (None, ours):
        raise Invalid(
            f"the Cloud Tasks server at {service.config.endpoint} belongs to another payonce (installation {owner}, "
            f"this one is {ours}); name this one's in CLOUD_TASKS_ENDPOINT, or start one on its database with: "
            "payonce cloudtasks --port 0"
        )


async def differences(service: TaskService, pushed: Sequence[Pushed]) -> list[Difference]:
    found: list[Difference] = []
    for each in sorted(pushed, key=lambda each: each.queue):
        there, wanted = await service.queue(each.there), numbers_of(each.policy)
        for name in (field.name for field in fields(QueueNumbers)):
            here = getattr(wanted, name)
            if there is None:
                found.append(Difference(each.queue, name, None, here))
            elif not _same(name, getattr(there.numbers, name), here, wanted):
                found.append(Difference(each.queue, name, getattr(there.numbers, name), here))
    return found


async def sync(service: TaskService, pushed: Sequence[Pushed]) -> list[Difference]:
    """Puts right what differs; answers with what did. Doing it twice changes nothing."""
    found = await differences(service, pushed)
    for each in pushed:
        missing = any(one.queue == each.queue and one.there is None for one in found)
        if missing:
            await service.create_queue(each.there, numbers_of(each.policy))
        elif any(one.queue == each.queue for one in found):
            await service.update_queue(each.there, numbers_of(each.policy))
    return found


async def repair_pauses(database: Database, service: TaskService, pushed: Sequence[Pushed]) -> list[str]:
    """Queues are paused there if and only if they are here. Answers with those that were not."""
    rows = await database.engine.fetch(
        "select name, paused from payonce.queues where name = any($1)", [each.queue for each in pushed]
    )
    paused = {row["name"]: row["paused"] for row in rows}
    repaired = []
    for each in pushed:
        there, here = await service.queue(each.there), paused.get(each.queue, False)
        if there is not None and there.paused != here:
            await service.set_paused(each.there, here)
            repaired.append(each.queue)
    return repaired


def _same(name: str, there: float, here: float, wanted: QueueNumbers) -> bool:
    if name == "max_doublings" and wanted.min_backoff_s == wanted.max_backoff_s:
        # Zero and unset are the same over gRPC, and Google may read zero as unset; with one delay it means nothing.
        return True
    return abs(there - here) <= SAME
