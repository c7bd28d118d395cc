"""A process that leads when it may, and writes fenced lines for as long as it believes so. Run as a module."""

import asyncio
import os
import sys
from pathlib import Path

import uvloop

from payonce.engine.database.connections import Database, is_transient
from payonce.engine.database.leases import Leadership, fence
from payonce.kit.outcomes import Stale
from tests.processes.journal import Journal

LOOK_S = 0.02
TTL_S = 1.0
NAME = "leader"


async def lead(url: str, folder: str) -> None:
    journal = Journal(Path(folder))
    async with (
        Database.open(url, shortest_lease_s=TTL_S) as database,
        Leadership.open(database, NAME, f"leader-{os.getpid()}", TTL_S) as leadership,
    ):
        journal.note("ready", 0)
        while True:
            # Taken once and used later, as somebody does who is stopped in between.
            lease = leadership.lease
            await asyncio.sleep(LOOK_S)
            if lease is None:
                continue
            try:
                async with database.transaction() as connection:
                    await fence(connection, lease)
                    await connection.execute(
                        "insert into books.lines (row_id, message_id, pid) values ($1, gen_random_uuid(), $2)",
                        lease.epoch,
                        os.getpid(),
                    )
            except Stale:
                journal.note("Stale", lease.epoch)
            except Exception as error:
                if not is_transient(error):
                    raise


if __name__ == "__main__":
    uvloop.run(lead(sys.argv[1], sys.argv[2]))
