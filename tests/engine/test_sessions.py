"""Every session has its settings, whatever the defaults of the role, the database and the server."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import asyncpg
import pytest

from payonce.engine.database.connections import Database
from payonce.engine.database.sessions import PlainConnection, connect, open_session
from payonce.kit.outcomes import Unavailable
from payonce.testing import ScratchDatabase


@asynccontextmanager
async def defaults(scratch: ScratchDatabase, **settings: str) -> AsyncIterator[None]:
    """Of the services' login in this database, as an administrator would set them."""
    superuser = await asyncpg.connect(scratch.superuser_url)
    try:
        for name, value in settings.items():
            for login in (urlsplit(scratch.service_url).username, urlsplit(scratch.owner_url).username):
                await superuser.execute(f"alter role {login} in database {scratch.name} set {name} = '{value}'")
        yield
    finally:
        await superuser.close()


async def shown(pool: asyncpg.Pool, setting: str) -> str:
    value: str = await pool.fetchval("select current_setting($1)", setting)
    return value


@pytest.mark.parametrize(
    ("chosen", "used"),
    [("off", "on"), ("local", "on"), ("remote_write", "on"), ("on", "on"), ("remote_apply", "remote_apply")],
)
async def test_every_session_commits_durably_and_keeps_what_is_stronger(
    scratch: ScratchDatabase, chosen: str, used: str
) -> None:
    async with defaults(scratch, synchronous_commit=chosen), Database.open(scratch.service_url) as database:
        plain = await open_session(scratch.service_url, timeout=10)
        owner = await connect(scratch.owner_url)
        own = await database.connect()
        try:
            for pool in (database.work, database.engine):
                assert await shown(pool, "synchronous_commit") == used
            for connection in (plain, owner, own):
                assert await connection.fetchval("show synchronous_commit") == used
        finally:
            for connection in (plain, owner, own):
                await connection.close()


async def test_a_default_that_is_changed_while_a_process_runs_changes_none_of_its_sessions(
    scratch: ScratchDatabase,
) -> None:
    async with Database.open(scratch.service_url) as database:
        superuser = await asyncpg.connect(scratch.superuser_url)
        await superuser.execute(f"alter database {scratch.name} set synchronous_commit = off")
        await superuser.execute(f"alter database {scratch.name} set idle_in_transaction_session_timeout = 0")
        await superuser.close()
        before = await database.work.fetchval("select pg_backend_pid()")
        await database.work.expire_connections()
        assert await database.work.fetchval("select pg_backend_pid()") != before
        assert await shown(database.work, "synchronous_commit") == "on"
        assert await shown(database.work, "idle_in_transaction_session_timeout") == "15s"


async def test_a_session_whose_setting_is_not_in_effect_is_refused(scratch: ScratchDatabase) -> None:
    """The server truncates long names itself: the one setting that it accepts in changed form."""
    name = "x" * 70
    with pytest.raises(Unavailable, match=f"application_name of a new session is '{'x' * 63}' although it was set to"):
        await connect(scratch.service_url, {"application_name": name})


async def test_a_session_is_set_up_when_it_is_opened_and_not_when_it_is_acquired(scratch: ScratchDatabase) -> None:
    begun = []

    class Counting(PlainConnection):
        async def begin_session(self, settings: Mapping[str, str]) -> None:
            begun.append(self)
            await super().begin_session(settings)

    async with Database.open(scratch.service_url, connection_class=Counting) as database:
        opened = len(begun)
        for _ in range(5):
            await database.work.fetchval("select 1")
        assert len(begun) == opened == len({*begun})
