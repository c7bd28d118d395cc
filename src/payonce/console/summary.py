"""Shown on every page: queue depths and alerts."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from payonce.console.context import Context
from payonce.engine.messages.ports import Admin, Depth
from payonce.engine.monitoring.alerts import Alerts, alerts
from payonce.kit.outcomes import Invalid, QueueAway

AT_ONCE: Final = 4
"""Concurrent reads: the engine has few connections, and workers need them more."""


@dataclass(frozen=True)
class Summary:
    depths: Sequence[Depth]
    alerts: Alerts


async def load_summary(context: Context) -> Summary:
    deep, away = await depths(context.admin)
    return Summary(deep, await alerts(context.read, deep, away))


async def depths(admin: Admin) -> tuple[list[Depth], str | None]:
    """The depth of every queue, and the error if the queue server is unavailable and some are missing."""
    turns, away = asyncio.Semaphore(AT_ONCE), list[str]()

    async def one(queue: str) -> Depth | None:
        async with turns:
            if away:
                # Each further read could block for as long as the first.
                return None
            try:
                return await admin.depth(queue)
            except QueueAway as error:
                away.append(str(error))
            except Invalid:
                # The queue was removed after it was listed.
                pass
            return None

    found = await asyncio.gather(*(one(queue) for queue in await admin.queues()))
    return [depth for depth in found if depth is not None], away[0] if away else None
