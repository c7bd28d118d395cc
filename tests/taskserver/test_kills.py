"""Servers as real processes that die under load: nothing is lost, every repeat has its death, and the rate holds."""

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from google.api_core.exceptions import AlreadyExists, GoogleAPICallError

from payonce.kit.ports import reserved_ports
from payonce.taskserver.dispatch import LEASE_S
from payonce.testing import OpenStage, Stage, eventually
from payonce.testing.processes import Child, Processes
from payonce.testing.server import serving
from tests.taskserver.testbed import LOCATION, QUEUE, Worker, open_client

pytestmark = pytest.mark.timeout(300)

CONCURRENCY = 20


@dataclass
class Ground:
    s: Stage
    processes: Processes
    worker: Worker
    ports: list[int]
    leased_at_deaths: Counter[str] = field(default_factory=Counter)

    def begin(self, place: int = 0) -> Child:
        port = str(self.ports[place])
        command = (sys.executable, "-m", "payonce", "cloudtasks", "--port", port, "--without-token")
        return self.processes.start(*command, name="server", environment={"DATABASE_URL": self.s.scratch.service_url})

    async def kill(self, server: Child) -> None:
        """SIGKILL; notes which tasks it had in hand, which are the ones that may come again."""
        server.kill()
        await self.silent()
        rows = await self.s.owner.fetch("select id from cloudtasks.tasks where lease_until is not null")
        self.leased_at_deaths.update(row["id"] for row in rows)

    async def silent(self) -> None:
        """The store has ended what the dead process had asked for."""
        gone = "select not exists (select from pg_stat_activity where application_name = 'payonce cloudtasks')"

        async def is_silent() -> bool:
            return bool(await self.s.owner.fetchval(gone))

        await eventually(is_silent, what="the dead server's sessions have ended")

    async def put_all(self, client: Any, ids: list[str]) -> None:
        """As a caller does who minds what it creates: again until it is accepted, and a taken name is accepted."""
        for task_id in ids:
            task = {"name": f"{QUEUE}/tasks/{task_id}", "http_request": {"url": self.worker.url}}
            await eventually(lambda task=task: self._accepted(client, task), 80, "the task is accepted")  # type: ignore[misc]

    async def _accepted(self, client: Any, task: dict[str, Any]) -> bool:
        try:
            await client.create_task(parent=QUEUE, task=task, timeout=10)
        except AlreadyExists:
            return True
        except GoogleAPICallError:
            return False
        return True

    async def left(self) -> int:
        return int(await self.s.owner.fetchval("select count(*) from cloudtasks.tasks"))

    def each_came(self, ids: list[str]) -> None:
        """At least once, and again only if a server died with it in hand."""
        came = Counter(arrival.task for arrival in self.worker.arrived)
        assert set(came) == set(ids), f"lost: {sorted(set(ids) - set(came))[:5]}"
        unexplained = {task: times for task, times in came.items() if times > 1 + self.leased_at_deaths[task]}
        assert not unexplained, f"came more often than servers died with them: {unexplained}"

    def no_window_exceeds(self, rate: float, burst: int, concurrency: int) -> None:
        """However late a dispatch arrives: no more than run at once were under way when the second began."""
        times = sorted(arrival.at for arrival in self.worker.arrived)
        most = max(sum(1 for each in times if start <= each < start + 1) for start in times)
        assert most <= rate + burst + concurrency, f"{most} dispatches within one second"


@asynccontextmanager
async def open_ground(stage: OpenStage, folder: Path, servers: int = 1) -> AsyncIterator[Ground]:
    worker = Worker()
    async with stage() as s, serving(worker) as worker.url:
        with ExitStack() as stack:
            ports = stack.enter_context(reserved_ports(servers))
            processes = stack.enter_context(Processes(folder))
            yield Ground(s, processes, worker, ports)


async def make_queue(client: Any, rate: float, concurrency: int = CONCURRENCY, **settings: Any) -> None:
    limits = {"max_dispatches_per_second": rate, "max_concurrent_dispatches": concurrency}
    await client.create_queue(parent=LOCATION, queue={"name": QUEUE, "rate_limits": limits, **settings})


async def test_a_server_killed_under_load_and_restarted_loses_nothing(stage: OpenStage, tmp_path: Path) -> None:
    await die_under_load(stage, tmp_path, tasks=240, deaths=2)


@pytest.mark.full
@pytest.mark.timeout(600)
async def test_many_deaths_under_load_lose_nothing(stage: OpenStage, tmp_path: Path) -> None:
    await die_under_load(stage, tmp_path, tasks=900, deaths=8)


async def die_under_load(stage: OpenStage, folder: Path, tasks: int, deaths: int) -> None:
    rate = 60.0
    ids = [f"t{number}" for number in range(tasks)]
    async with open_ground(stage, folder) as ground:
        server = ground.begin()
        await server.says("cloudtasks_listening", 60)
        async with open_client(f"127.0.0.1:{ground.ports[0]}") as client:
            await make_queue(client, rate)
            putting = [asyncio.create_task(ground.put_all(client, ids[place::4])) for place in range(4)]
            for death in range(1, deaths + 1):
                reached = death * tasks // (deaths + 2)
                await eventually(lambda reached=reached: len(ground.worker.arrived) >= reached, 60)  # type: ignore[misc]
                ground.worker.open.clear()
                await eventually(lambda: ground.worker.held == CONCURRENCY, 60, "all slots are taken")
                await ground.kill(server)
                ground.worker.open.set()
                await ground.s.clock.advance_leases(LEASE_S)
                server = ground.begin()
                await server.says("cloudtasks_listening", 60)
            await asyncio.gather(*putting)
        await eventually(emptied(ground), 60, "every task is done")
        ground.each_came(ids)
        ground.no_window_exceeds(rate, burst=60, concurrency=CONCURRENCY)
        assert ground.leased_at_deaths.total() == deaths * CONCURRENCY, "every server died with all slots in its hands"


async def test_two_servers_share_limits_and_the_survivor_takes_over(stage: OpenStage, tmp_path: Path) -> None:
    rate = 60.0
    ids = [f"t{number}" for number in range(300)]
    async with open_ground(stage, tmp_path, servers=2) as ground:
        servers = [ground.begin(0), ground.begin(1)]
        for server in servers:
            await server.says("cloudtasks_listening", 60)
        async with (
            open_client(f"127.0.0.1:{ground.ports[0]}") as first,
            open_client(f"127.0.0.1:{ground.ports[1]}") as second,
        ):
            await make_queue(first, rate, concurrency=10)
            await asyncio.gather(ground.put_all(first, ids[:50]), ground.put_all(second, ids[50:100]))
            await eventually(emptied(ground), 60, "both are idle")
            ground.worker.open.clear()
            # Each gets half of the slots: the survivor needs some to go on with.
            servers[1].stop()
            await ground.put_all(first, ids[100:105])
            await eventually(lambda: ground.worker.held == 5, 60, "one has its half")
            servers[1].resume()
            servers[0].stop()
            await ground.put_all(second, ids[105:110])
            await eventually(lambda: ground.worker.held == 10, 60, "all slots are taken")
            servers[0].resume()
            await asyncio.gather(ground.put_all(first, ids[110:200]), ground.put_all(second, ids[200:]))
            held = await ground.s.owner.fetch("select id from cloudtasks.tasks where lease_until is not null")
            assert len(held) == 10, "two servers together keep the concurrency"
            servers[0].kill()
            ground.leased_at_deaths.update(ids[100:105])
            ground.worker.open.set()
            await eventually(only_the_dead_hold(ground, 5), 60)
            await ground.s.clock.advance_leases(LEASE_S)
            await eventually(emptied(ground), 60, "every task is done")
        ground.each_came(ids)
        ground.no_window_exceeds(rate, burst=60, concurrency=10)


async def test_a_server_that_stood_still_changes_nothing_when_it_wakes(stage: OpenStage, tmp_path: Path) -> None:
    async with open_ground(stage, tmp_path, servers=2) as ground:
        stopped = ground.begin(0)
        await stopped.says("cloudtasks_listening", 60)
        async with open_client(f"127.0.0.1:{ground.ports[0]}") as client:
            far = {"min_backoff": {"seconds": 3_600}, "max_backoff": {"seconds": 3_600}}
            await make_queue(client, rate=60, concurrency=1, retry_config=far)
            ground.worker.open.clear()
            ground.worker.answers(200)
            await ground.put_all(client, ["one"])
            await eventually(lambda: ground.worker.arrived, 60)
        stopped.stop()
        await ground.s.clock.advance_leases(LEASE_S)
        # Its answer, a success, is on the way to the one that stands still; the next gets an error.
        ground.worker.answers(500)
        ground.worker.open.set()
        survivor = ground.begin(1)
        await eventually(lambda: len(ground.worker.arrived) == 2, 60, "the survivor has dispatched it again")
        async with open_client(f"127.0.0.1:{ground.ports[1]}") as client:
            name = f"{QUEUE}/tasks/one"

            async def is_settled() -> bool:
                return bool((await client.get_task(name=name)).last_attempt.response_time)

            await eventually(is_settled, 60)
            before = await client.get_task(name=name)
            stopped.resume()
            await eventually(lambda: any(words in stopped.output for words in ("late_answer", "lease_lost")), 60)
            assert await client.get_task(name=name) == before
            assert survivor.running


def emptied(ground: Ground) -> Any:
    async def is_empty() -> bool:
        return await ground.left() == 0

    return is_empty


def only_the_dead_hold(ground: Ground, count: int) -> Any:
    """The survivor has done all it could: the rest died with the other."""

    async def so() -> bool:
        return await ground.left() <= count

    return so
