"""Who is woken when a message was put: the relay of this process where it can make the task, all others where not."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from payonce.engine.database.notifier import Notifier
from payonce.engine.outbox import wake_name
from payonce.queues.cloudtasks.assembly import open_cloud_tasks
from payonce.queues.cloudtasks.client import Config
from payonce.queues.cloudtasks.names import LOCAL_ACCOUNT, RELAY
from payonce.testing import OpenStage
from tests.cloudtasks.testbed import NOBODY, PLACE, QUEUE, pushed

ADDRESS = "http://127.0.0.1:9"
AGAIN_S = 0.05


@asynccontextmanager
async def listening(notifier: Notifier) -> AsyncIterator[asyncio.Event]:
    """As a relay waits."""
    heard = asyncio.Event()
    notifier.subscribe(wake_name(RELAY), heard)
    try:
        yield heard
    finally:
        notifier.unsubscribe(wake_name(RELAY), heard)


@pytest.mark.parametrize(
    ("address", "has_a_relay", "queue", "wakes_others"),
    [
        pytest.param(ADDRESS, True, QUEUE, False, id="reached from here"),
        pytest.param(None, True, QUEUE, True, id="served where this process does not know"),
        pytest.param(ADDRESS, True, "another", True, id="an unknown queue"),
        pytest.param(ADDRESS, False, QUEUE, True, id="no relay here"),
    ],
)
async def test_others_are_woken_where_this_process_cannot_make_the_task(
    stage: OpenStage, address: str | None, has_a_relay: bool, queue: str, wakes_others: bool
) -> None:
    async with (
        stage() as s,
        Notifier.open(s.database) as elsewhere,
        Notifier.open(s.database, listen=False) as notifier,
    ):
        config = Config(PLACE, LOCAL_ACCOUNT, NOBODY)
        async with (
            open_cloud_tasks(s.database, notifier, config, [pushed()]) as tasks,
            listening(elsewhere) as heard_elsewhere,
            listening(notifier) as heard_here,
        ):
            if not has_a_relay:
                notifier.unsubscribe(wake_name(RELAY), heard_here)
            tasks.address = address
            await _listens(elsewhere, notifier)
            tasks.feed.notify({queue})
            await _listens(elsewhere, notifier)
            assert heard_elsewhere.is_set() == wakes_others
            assert heard_here.is_set() != wakes_others


async def _listens(listener: Notifier, ringer: Notifier) -> None:
    """Wakeups arrive in order: when this one has, those before it have."""
    mark = asyncio.Event()
    listener.subscribe("mark", mark)
    async with asyncio.timeout(20):
        while not mark.is_set():
            ringer.notify(["mark"])
            with suppress(TimeoutError):
                async with asyncio.timeout(AGAIN_S):
                    await mark.wait()
    listener.unsubscribe("mark", mark)
