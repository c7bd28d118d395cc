"""Other clients of a server that crashes: each commits small transactions, and again as soon as it can reconnect.

The ids of transactions that a crash lost are handed out to them. Run as a module.
"""

import asyncio
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

import asyncpg
import msgspec
import uvloop

from tests.processes.crash_aim import Aim, Moment

TABLE: Final = "create table public.written_by_others (transaction_id bigint not null)"
WRITE: Final = "insert into public.written_by_others select pg_current_xact_id()::text::bigint"
PAUSE_S: Final = 0.05
"""Between two transactions of one writer: all of them together leave the workers a share of two cores."""
LOOK_S: Final = 0.005
CONNECT_LIMIT_S: Final = 30.0


class Duty(msgspec.Struct, kw_only=True):
    url: str
    folder: str
    writers: int


async def write(duty: Duty, aim: Aim) -> None:
    while True:
        with suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError, TimeoutError):
            await _write_until_it_breaks(duty, aim)
        await asyncio.sleep(LOOK_S)


async def _write_until_it_breaks(duty: Duty, aim: Aim) -> None:
    connection = await asyncpg.connect(duty.url, timeout=CONNECT_LIMIT_S)
    try:
        while True:
            # First, on every new connection: the aim may still be that of the crash before.
            await connection.execute(WRITE)
            await asyncio.sleep(PAUSE_S)
            while aim.moment() is Moment.BEFORE_COMMIT and not connection.is_closed():  # noqa: ASYNC110 - another process's doing
                await asyncio.sleep(LOOK_S)
    finally:
        connection.terminate()


async def serve(duty: Duty) -> None:
    aim = Aim(Path(duty.folder))
    async with asyncio.TaskGroup() as tasks:
        for _ in range(duty.writers):
            tasks.create_task(write(duty, aim))


if __name__ == "__main__":
    uvloop.run(serve(msgspec.json.decode(sys.argv[1], type=Duty)))
