"""A database that may lose commits is refused at start-up, unless that was accepted explicitly."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import asyncpg
import pytest
from structlog.testing import capture_logs

from payonce.embedded import Server, reset, start
from payonce.engine.database.durability import check_durability, weaknesses
from payonce.engine.database.migrate import SERVICE_ROLE, known_migrations
from payonce.engine.database.sessions import PlainConnection, connect
from payonce.engine.monitoring.metrics import REGISTRY
from payonce.kit.outcomes import Unavailable
from payonce.testing import ScratchDatabase, ScratchServer
from payonce.testing.servers import MEMORY, NOT_DURABLE
from tests.embedded.conftest import open_folder
from tests.engine.test_sessions import defaults


@contextmanager
def own_server(**settings: str) -> Iterator[Server]:
    with open_folder(MEMORY or Path(tempfile.gettempdir())) as folder:
        yield start(folder / "pg", settings={"shared_buffers": "16MB", **settings}, tie_to_parent=True)
        reset(folder / "pg")


@pytest.fixture(scope="module")
def careless_server() -> Iterator[Server]:
    with own_server(**NOT_DURABLE) as server:
        yield server


@pytest.fixture(scope="module")
def postgres() -> Iterator[ScratchServer]:
    """Durable even if the servers of the other tests are not."""
    with own_server() as server:
        scratch = ScratchServer(server, known_migrations(()))
        yield scratch
        scratch.close()


async def refusal(connection: PlainConnection) -> str:
    with pytest.raises(Unavailable) as refused:
        await check_durability(connection, accepted=False)
    return str(refused.value)


async def test_a_durable_database_is_accepted(scratch: ScratchDatabase) -> None:
    connection = await connect(scratch.service_url)
    try:
        assert await weaknesses(connection) == []
        await check_durability(connection, accepted=False)
        assert REGISTRY.get_sample_value("payonce_database_weaknesses") == 0
    finally:
        await connection.close()


async def test_a_server_that_does_not_write_through_is_refused(careless_server: Server) -> None:
    connection = await connect(careless_server.service_url)
    try:
        said = await refusal(connection)
        assert "the server runs with fsync = off: a crash" in said
        assert "set fsync = on in postgresql.conf" in said
        assert said.endswith("or start anyway with PAYONCE_ACCEPT_DATA_LOSS=true")
        assert [weak.text.split(":")[0] for weak in await weaknesses(connection)] == [
            "the server runs with fsync = off",
            "the server runs with full_page_writes = off",
        ]
        assert REGISTRY.get_sample_value("payonce_database_weaknesses") == 2
    finally:
        await connection.close()


async def test_data_loss_that_is_accepted_is_named_in_a_warning(careless_server: Server) -> None:
    connection = await connect(careless_server.service_url)
    try:
        with capture_logs() as told:
            await check_durability(connection, accepted=True)
    finally:
        await connection.close()
    [line] = told
    assert (line["log_level"], line["event"]) == ("warning", "data_loss_accepted")
    assert line["setting"] == "PAYONCE_ACCEPT_DATA_LOSS"
    assert "fsync = off" in line["weaknesses"][0]


async def test_a_login_whose_sessions_begin_without_durable_commits_is_refused(scratch: ScratchDatabase) -> None:
    async with defaults(scratch, synchronous_commit="off"):
        connection = await connect(scratch.service_url)
        try:
            assert await connection.fetchval("show synchronous_commit") == "on"
            said = await refusal(connection)
        finally:
            await connection.close()
    assert "begin with synchronous_commit = off: a crash of the server loses acknowledged commits" in said
    assert "alter role … reset synchronous_commit" in said


async def test_a_session_that_does_not_commit_durably_is_found(scratch: ScratchDatabase) -> None:
    connection = await connect(scratch.service_url, {"synchronous_commit": "local"})
    try:
        assert "a session of payonce has synchronous_commit = local" in await refusal(connection)
    finally:
        await connection.close()


async def test_unlogged_tables_count_where_services_may_write(scratch: ScratchDatabase) -> None:
    owner = await asyncpg.connect(scratch.owner_url)
    try:
        await owner.execute("create unlogged table payonce.notes_of_a_day (id int)")
        await owner.execute("create schema elsewhere; create unlogged table elsewhere.cache (id int)")
        connection = await connect(scratch.service_url)
        try:
            said = await refusal(connection)
            assert "unlogged tables, which a crash of the server empties: payonce.notes_of_a_day;" in said
            assert "`alter table payonce.notes_of_a_day set logged`" in said
            await owner.execute(f"grant usage on schema elsewhere to {SERVICE_ROLE}")
            assert "empties: elsewhere.cache, payonce.notes_of_a_day;" in await refusal(connection)
            await owner.execute("alter table payonce.notes_of_a_day set logged; drop table elsewhere.cache")
            assert await weaknesses(connection) == []
        finally:
            await connection.close()
    finally:
        await owner.close()
