"""Work through a real PgBouncer: in session mode it goes on as without, in the other modes nothing starts."""

import asyncio
from contextlib import AsyncExitStack

import asyncpg
import pytest

from payonce.engine.database import sessions
from payonce.engine.database.connections import Database
from payonce.engine.database.notifier import Notifier
from payonce.kit.outcomes import Unavailable
from payonce.testing import ScratchDatabase, eventually
from tests.poolers.conftest import OpenPgBouncer
from tests.processes.test_stops import stopped_while_holding
from tests.processes.testbed import ProcessTestbed

IGNORED = "extra_float_digits, lock_timeout, idle_in_transaction_session_timeout, jit, role, synchronous_commit"
SETTINGS = (
    "timezone",
    "lock_timeout",
    "idle_in_transaction_session_timeout",
    "jit",
    "synchronous_commit",
    "application_name",
    "enable_seqscan",
    "plan_cache_mode",
)
SHARED = "shares server connections between sessions .* set pool_mode = session"


async def settings_of(pool: asyncpg.Pool) -> list[str]:
    return [await pool.fetchval("select current_setting($1)", name) for name in SETTINGS]


async def test_a_worker_behind_session_pooling_handles_every_message_once(
    testbed: ProcessTestbed, pgbouncer: OpenPgBouncer
) -> None:
    async with pgbouncer(pool_mode="session") as pooler:
        worker = await testbed.worker(url=pooler.url(testbed.scratch.service_url))
        await testbed.put(range(300), takes_s=0.01)
        await testbed.drained()
        await testbed.each_applied_once()
        worker.terminate()
        assert await worker.ended() == 0, worker.last_lines()


@pytest.mark.parametrize("ignored", ["", IGNORED], ids=["refusing", "ignoring"])
async def test_sessions_behind_a_pooler_have_the_settings_of_direct_ones(
    scratch: ScratchDatabase, pgbouncer: OpenPgBouncer, ignored: str
) -> None:
    async with (
        pgbouncer(ignore_startup_parameters=ignored) as pooler,
        Database.open(scratch.service_url, shortest_lease_s=3.0) as direct,
        Database.open(pooler.url(scratch.service_url), shortest_lease_s=3.0) as pooled,
    ):
        assert await settings_of(pooled.engine) == await settings_of(direct.engine)
        assert await settings_of(pooled.work) == await settings_of(direct.work)
        assert await pooled.work.fetchval("show idle_in_transaction_session_timeout") == "1500ms"


@pytest.mark.parametrize("ignored", ["", IGNORED], ids=["refusing", "ignoring"])
async def test_a_worker_stopped_inside_a_commit_behind_a_pooler_cannot_hold_up_its_successor(
    testbed: ProcessTestbed, pgbouncer: OpenPgBouncer, ignored: str
) -> None:
    """Guards idle_in_transaction_session_timeout behind a pooler, which keeps the server's connection open."""
    async with pgbouncer(ignore_startup_parameters=ignored) as pooler:
        url = pooler.url(testbed.scratch.service_url)
        stopped = await testbed.worker(url=url)
        await testbed.put([1], deed="hold_in_commit")
        await stopped_while_holding(testbed, stopped)
        testbed.journal.let_go(1)
        await testbed.worker(url=url)
        await testbed.drained()
        await testbed.each_applied_once()
        stopped.resume()
        await testbed.put([2])
        await testbed.drained()
        await testbed.each_applied_once()
        assert stopped.running, stopped.last_lines()


async def test_notifications_arrive_through_session_pooling(scratch: ScratchDatabase, pgbouncer: OpenPgBouncer) -> None:
    async with (
        pgbouncer() as pooler,
        Database.open(pooler.url(scratch.service_url)) as database,
        Notifier.open(database) as listener,
        Notifier.open(database, listen=False) as sender,
    ):
        heard = asyncio.Event()
        listener.subscribe("q", heard)

        async def rung() -> bool:
            sender.notify(["q"])
            return heard.is_set()

        await eventually(rung, what="a notification arrives")


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"server_round_robin": "1"},
        {"server_reset_query_always": "1"},
        {"server_reset_query_always": "1", "server_round_robin": "1"},
        {"server_reset_query_always": "1", "default_pool_size": "1"},
    ],
)
async def test_transaction_pooling_is_refused(
    scratch: ScratchDatabase, pgbouncer: OpenPgBouncer, more: dict[str, str]
) -> None:
    async with pgbouncer(pool_mode="transaction", **more) as pooler:
        with pytest.raises(Unavailable, match=SHARED):
            async with Database.open(pooler.url(scratch.service_url)):
                pass


@pytest.mark.parametrize("round_robin", ["0", "1"])
async def test_transaction_pooling_is_refused_while_others_use_the_pool(
    scratch: ScratchDatabase, pgbouncer: OpenPgBouncer, round_robin: str
) -> None:
    """Other clients take and return server connections between the turns of the probe."""
    always = {"server_reset_query_always": "1", "server_round_robin": round_robin}
    async with pgbouncer(pool_mode="transaction", **always) as pooler, AsyncExitStack() as stack:
        url = pooler.url(scratch.service_url)

        async def keep_busy(connection: asyncpg.Connection) -> None:
            while True:
                await connection.execute("select pg_sleep(0.001)")

        async with asyncio.TaskGroup() as tasks:
            busy = []
            for _ in range(10):
                connection = await asyncpg.connect(url)
                stack.callback(connection.terminate)
                busy.append(tasks.create_task(keep_busy(connection)))
            for _ in range(20):
                with pytest.raises(Unavailable, match=SHARED):
                    await sessions.session_settings(url, 30.0, "probe")
            for task in busy:
                task.cancel()


async def test_statement_pooling_is_refused(scratch: ScratchDatabase, pgbouncer: OpenPgBouncer) -> None:
    async with pgbouncer(pool_mode="statement", server_reset_query_always="1") as pooler:
        with pytest.raises(Unavailable, match=SHARED):
            async with Database.open(pooler.url(scratch.service_url)):
                pass


async def test_a_pooler_that_does_not_reset_sessions_is_refused(
    scratch: ScratchDatabase, pgbouncer: OpenPgBouncer
) -> None:
    """What a session left behind, such as a LISTEN or a prepared statement, would be the next one's."""
    async with pgbouncer(pool_mode="session", server_reset_query="") as pooler:
        url = pooler.url(scratch.service_url)
        first = await sessions.connect(url)
        await first.close()
        with pytest.raises(Unavailable, match=r"another session's settings.*server_reset_query = DISCARD ALL"):
            await sessions.connect(url)


async def test_a_pool_without_a_free_connection_says_so(
    scratch: ScratchDatabase, pgbouncer: OpenPgBouncer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "CONNECT_TIMEOUT_S", 0.5)
    async with pgbouncer(pool_mode="session", default_pool_size="1") as pooler:
        url = pooler.url(scratch.service_url)
        first = await sessions.connect(url)
        with pytest.raises(Unavailable, match="its pool is exhausted: raise its pool_size"):
            await sessions.connect(url)
        await first.close()
