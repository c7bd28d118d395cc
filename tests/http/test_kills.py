"""A server killed in the middle of a request: the transfer and the kept answer are both there, or neither is."""

import asyncio
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from payonce.testing import ScratchDatabase, eventually
from payonce.testing.processes import Child, Processes
from tests.http.client import Answer
from tests.http.conftest import OpenWeb
from tests.http.test_idempotency import BOTH, ORDER, TRANSFERS

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    with Processes(tmp_path) as running:
        yield running


async def started(processes: Processes, scratch: ScratchDatabase) -> tuple[Child, int]:
    child = processes.start(
        sys.executable,
        "-m",
        "payonce",
        "run",
        "tally.worker",
        "--port",
        "0",
        environment={"DATABASE_URL": scratch.service_url, "PAYONCE_LOG": "json"},
    )
    await child.says("worker_started", 60.0)
    match = re.search(r"http://127\.0\.0\.1:(\d+)", child.output)
    assert match is not None
    return child, int(match[1])


async def posted(port: int, key: str, headers: dict[str, str]) -> Answer:
    """Over a real socket; a connection that breaks is a ConnectionError."""
    body = json.dumps(ORDER).encode()
    lines = {
        **headers,
        "host": "localhost",
        "connection": "close",
        "content-type": "application/json",
        "content-length": str(len(body)),
        "idempotency-key": key,
    }
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        writer.write(f"POST {TRANSFERS} HTTP/1.1\r\n{head}\r\n".encode() + body)
        answer = await reader.read()
    finally:
        writer.close()
    if not answer:
        raise ConnectionResetError("no answer came")
    top, _, rest = answer.partition(b"\r\n\r\n")
    status, *fields = top.decode().split("\r\n")
    told = dict(line.lower().split(": ", 1) for line in fields)
    return Answer(int(status.split(" ")[1]), told, rest)


async def counts(owner: asyncpg.Connection) -> tuple[int, int, int]:
    row = await owner.fetchrow(
        """
        select (select count(*) from transfers.transfers), (select count(*) from payonce.http_answers),
            (select count(*) from payonce.messages where queue like 'transfers-%')
        """
    )
    assert row is not None
    return row[0], row[1], row[2]


async def waiting_for(owner: asyncpg.Connection, table: str) -> bool:
    return bool(
        await owner.fetchval(
            "select exists (select from pg_locks where relation = $1::regclass and not granted)", table
        )
    )


@pytest.mark.full
async def test_killed_between_the_transfer_and_its_answer_leaves_neither(
    web: OpenWeb, processes: Processes, scratch: ScratchDatabase
) -> None:
    async with web() as ask:
        headers = (await ask.as_holder("shop", *BOTH)).headers
    owner = await asyncpg.connect(scratch.owner_url)
    try:
        server, port = await started(processes, scratch)
        async with owner.transaction():
            # The transfer is written; its answer is what the server now waits to keep.
            await owner.execute("lock table payonce.http_answers in share row exclusive mode")
            request = asyncio.create_task(posted(port, "k", headers))
            await eventually(lambda: waiting_for(owner, "payonce.http_answers"), 30)
            server.kill()
        with pytest.raises(ConnectionError):
            await request
        assert await counts(owner) == (0, 0, 0)
        _, port = await started(processes, scratch)
        assert (await posted(port, "k", headers)).status == 201
        assert await counts(owner) == (1, 1, 1)
    finally:
        await owner.close()


async def test_killed_after_the_commit_gives_the_same_answer_to_the_next_try(
    web: OpenWeb, processes: Processes, scratch: ScratchDatabase
) -> None:
    async with web() as ask:
        headers = (await ask.as_holder("shop", *BOTH)).headers
    owner = await asyncpg.connect(scratch.owner_url)
    try:
        server, port = await started(processes, scratch)
        request = asyncio.create_task(posted(port, "k", headers))

        async def committed() -> bool:
            return await counts(owner) == (1, 1, 1)

        await eventually(committed, 30)
        server.kill()
        await asyncio.gather(request, return_exceptions=True)
        first = await owner.fetchval("select id from transfers.transfers")
        _, port = await started(processes, scratch)
        again = await posted(port, "k", headers)
        assert (again.status, again.json["id"], again.headers["idempotent-replayed"]) == (201, first, "true")
        assert await counts(owner) == (1, 1, 1)
    finally:
        await owner.close()


@pytest.mark.full
async def test_two_servers_carry_one_order_out_once(
    web: OpenWeb, processes: Processes, scratch: ScratchDatabase
) -> None:
    async with web() as ask:
        headers = (await ask.as_holder("shop", *BOTH)).headers
    ports = [(await started(processes, scratch))[1] for _ in range(2)]
    owner = await asyncpg.connect(scratch.owner_url)
    try:
        for key in ("a", "b", "c"):
            tries = [posted(port, key, headers) for port in ports for _ in range(8)]
            answers = await asyncio.gather(*tries)
            assert {answer.status for answer in answers} <= {201, 409}
            assert len({answer.body for answer in answers if answer.status == 201}) == 1
        assert await counts(owner) == (3, 3, 3)
    finally:
        await owner.close()
