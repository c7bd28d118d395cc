"""A DATABASE_URL with several hosts leads to the one that takes writes, whatever the others do."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, cast
from urllib.parse import parse_qs, urlsplit

import asyncpg
import pytest

from payonce.engine.database import hosts
from payonce.engine.database.connections import Database
from payonce.engine.database.sessions import connect, described, open_session
from payonce.kit.outcomes import Unavailable
from payonce.testing import ScratchDatabase

LIMIT_S = 2.0


@contextmanager
def silent_server() -> Iterator[int]:
    """A machine that disappeared silently: connections to it are accepted and never answered. Yields its port."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@asynccontextmanager
async def forwarded(scratch: ScratchDatabase) -> AsyncIterator[int]:
    """The scratch database behind a TCP port."""
    query = parse_qs(urlsplit(scratch.service_url).query)
    path = f"{query['host'][0]}/.s.PGSQL.{query['port'][0]}"
    pumps: set[asyncio.Task[None]] = set()

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65_536):
                writer.write(data)
        finally:
            writer.transport.abort()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_unix_connection(path)
        for each in (pump(reader, server_writer), pump(server_reader, writer)):
            pumps.add(asyncio.create_task(each))

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in pumps:
            task.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


async def test_a_silent_host_does_not_use_up_the_time_of_the_others(
    scratch: ScratchDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards the share of each host: the driver's own limit is for all of them, and the second would never be tried."""
    monkeypatch.setattr("payonce.engine.database.connections.CONNECT_TIMEOUT_S", LIMIT_S)
    monkeypatch.setitem(cast(dict[str, Any], open_session.__kwdefaults__), "timeout", LIMIT_S)
    with silent_server() as silent:
        async with forwarded(scratch) as port:
            url = f"postgresql://payonce_service@127.0.0.1:{silent},127.0.0.1:{port}/{scratch.name}?sslmode=disable"
            async with Database.open(url) as database:
                assert await database.engine.fetchval("select current_database()") == scratch.name
                began_at = time.monotonic()
                connection = await database.connect()
                await connection.close()
                assert time.monotonic() - began_at < LIMIT_S / 2, "the host that answered last is asked first"


async def test_a_host_that_dies_while_it_is_asked_is_passed_over(scratch: ScratchDatabase) -> None:
    async def die(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.close()

    dying = await asyncio.start_server(die, "127.0.0.1", 0)
    async with dying, forwarded(scratch) as port:
        hosts = f"127.0.0.1:{dying.sockets[0].getsockname()[1]},127.0.0.1:{port}"
        connection = await connect(f"postgresql://payonce_service@{hosts}/{scratch.name}?sslmode=disable")
        connection.terminate()


async def test_a_host_that_refuses_writes_is_passed_over(scratch: ScratchDatabase) -> None:
    """Without a parameter in the URL: nothing of payonce can work on a standby."""
    query = parse_qs(urlsplit(scratch.service_url).query)
    owner = await asyncpg.connect(scratch.superuser_url)
    await owner.execute("create role reader login in role payonce_service")
    await owner.execute("alter role reader set default_transaction_read_only = on")
    try:
        folder = query["host"][0]
        url = f"postgresql://reader@/{scratch.name}?host={folder},{folder}"
        with pytest.raises(Unavailable, match="takes writes"):
            await connect(url)
        (await connect(url + "&target_session_attrs=any")).terminate()
    finally:
        await owner.execute("drop role reader")
        await owner.close()


async def test_what_each_host_said_is_told_when_none_serves(scratch: ScratchDatabase) -> None:
    async with forwarded(scratch) as port:
        pass
    url = f"postgresql://u:secret@127.0.0.1:{port},localhost:{port}/payonce?sslmode=disable"
    with pytest.raises(Unavailable) as refusal:
        await connect(url)
    assert f"127.0.0.1:{port}: " in str(refusal.value)
    assert f"localhost:{port}: " in str(refusal.value)
    assert "secret" not in str(refusal.value)


async def test_a_refused_login_is_told_at_once(scratch: ScratchDatabase) -> None:
    folder = parse_qs(urlsplit(scratch.service_url).query)["host"][0]
    with pytest.raises(Unavailable, match="check the user"):
        await connect(f"postgresql://nobody_here@/{scratch.name}?host={folder},/nowhere")


def test_an_address_is_shown_with_all_its_hosts() -> None:
    shown = described("postgresql://u:secret@one:6000,two:6001/payonce?target_session_attrs=read-write")
    assert shown == "PostgreSQL at one:6000,two:6001/payonce"


def test_one_host_is_left_to_the_driver() -> None:
    assert hosts.hosts_to_try("postgresql://u@one/payonce") == []
