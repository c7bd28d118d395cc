"""Real processes with a pushed queue: started with no set-up, killed in the middle, and nothing lost or doubled."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from payonce.engine.messages.model import Message
from payonce.examples.tally import CHANGES, INVARIANTS
from payonce.kit.ports import reserved_ports
from payonce.queues.cloudtasks.feed import CloudTasksFeed
from payonce.testing import OpenStage, Stage, eventually
from payonce.testing.processes import Child, Processes
from tests.locks import waits_for_a_lock

pytestmark = pytest.mark.timeout(300)

MANY = 150
KEPT_BACK = 3
"""Each holds a connection while it waits; the others need some too."""


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    with Processes(tmp_path) as running:
        yield running


@pytest.fixture
def port() -> Iterator[str]:
    with reserved_ports(1) as [held]:
        yield str(held)


def environment(s: Stage, tmp_path: Path, **more: str) -> dict[str, str]:
    # The example's lease is short for people who watch; a busy machine renews it too late.
    lease = {"QUEUE_POLICY__TALLY_CHANGES__LEASE_S": "30"}
    return {"DATABASE_URL": s.scratch.service_url, "PAYONCE_DATA_DIR": str(tmp_path / "data"), **lease, **more}


def start(processes: Processes, variables: dict[str, str], *arguments: str) -> Child:
    command = (sys.executable, "-m", "tests.cloudtasks.pushing", *arguments)
    return processes.start(*command, name="payonce", cwd=Path.cwd(), environment=variables)


async def make_rows(s: Stage) -> None:
    await s.owner.execute("insert into tally.rows (id) select generate_series(0, $1 - 1)", MANY)


async def put_changes(s: Stage) -> None:
    messages = [Message(queue=CHANGES.queue, payload={"row_id": row}) for row in range(MANY)]
    await CloudTasksFeed(s.database, s.notifier).put(messages)


async def applied(s: Stage) -> int:
    return int(await s.owner.fetchval("select count(*) from tally.changes"))


async def ended(s: Stage, count: int, within_s: float = 80.0) -> None:
    async def all_are() -> bool:
        return await applied(s) == count and not await s.owner.fetchval(
            "select count(*) from payonce.outbox where relay = 'cloudtasks' and state <> 'parked'"
        )

    await eventually(all_are, within_s, f"{count} changes are applied")
    for name, query in INVARIANTS.items():
        assert not await s.owner.fetch(query), name


async def test_up_brings_and_serves_with_no_set_up(stage: OpenStage, processes: Processes, tmp_path: Path) -> None:
    async with stage() as s:
        variables = environment(s, tmp_path)
        up = start(processes, variables, "up", "--port", "0")
        await up.says("worker_started", 60)
        await make_rows(s)
        await put_changes(s)
        await ended(s, MANY)
        backends = await s.owner.fetch("select backend from payonce.queues where name = $1", CHANGES.queue)
        assert [row["backend"] for row in backends] == ["cloudtasks"]
        up.terminate()
        assert await up.ended(60) == 0


async def test_killed_in_the_middle_and_started_again_nothing_is_lost_or_doubled(
    stage: OpenStage, processes: Processes, tmp_path: Path, port: str
) -> None:
    async with stage() as s:
        variables = environment(s, tmp_path)
        first = start(processes, variables, "up", "--port", port)
        await first.says("worker_started", 60)
        await make_rows(s)

        async def some_are_and_some_wait() -> bool:
            return await applied(s) >= MANY // 4 and await waits_for_a_lock(s)

        async with s.owner.transaction():
            # However fast it is, it does not get to the end.
            await s.owner.execute("select from tally.rows where id >= $1 for update", MANY - KEPT_BACK)
            await put_changes(s)
            await eventually(some_are_and_some_wait, 60, "some changes are applied, and others under way")
            first.kill()
        assert await applied(s) <= MANY - KEPT_BACK, "it was killed in the middle"
        # Of those who died: their runs, the server's dispatches and the relay's claims.
        await s.clock.advance_leases(60)
        start(processes, variables, "up", "--port", port)
        await ended(s, MANY)
