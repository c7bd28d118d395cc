"""Postings per second into one hot account, each in its own transaction."""

import asyncio
import os
import resource
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

import asyncpg
import uvloop

from payonce.engine.ledger import Account, Posting, Reference, audit_ledger, balance, declare, moved, post
from payonce.kit.money import Amount, well_known

CONNECTIONS: Final = 24
WARM_UP_S: Final = 1.0
HOT: Final = Account("bench/hot", well_known("EUR"))


def run(url: str, seconds: float, connections: int = CONNECTIONS) -> dict[str, float]:
    """Measures on a migrated database, as the role in the URL. The figures are meaningful only while nothing else
    runs."""
    return uvloop.run(_measure(url, seconds, connections))


async def _measure(url: str, seconds: float, connections: int) -> dict[str, float]:
    posters = [await asyncpg.connect(url) for _ in range(connections)]
    try:
        first = posters[0]
        async with first.transaction():
            await declare(first, HOT, *(source(number) for number in range(connections)))
        began_with = await balance(first, HOT)
        run_name, pids = f"{time.time_ns()}", [poster.get_server_pid() for poster in posters]
        warm = await post_for(posters, min(WARM_UP_S, seconds), f"{run_name}/warm")
        began_at, client_began_s, server_began_s = time.perf_counter(), client_cpu_s(), server_cpu_s(pids)
        posted = await post_for(posters, seconds, run_name)
        took_s = time.perf_counter() - began_at
        client_s, server_s = client_cpu_s() - client_began_s, server_cpu_s(pids) - server_began_s
        assert (await balance(first, HOT) - began_with).minor == warm + posted
        assert await audit_ledger(first) == []
    finally:
        for poster in posters:
            await poster.close()
    return {
        "connections": connections,
        "postings": posted,
        "postings_per_s": posted / took_s,
        "client_cpu_us_per_posting": client_s / posted * 1e6,
        "server_cpu_us_per_posting": server_s / posted * 1e6,
    }


async def post_for(posters: list[asyncpg.Connection], seconds: float, run_name: str) -> int:
    ends_at = time.perf_counter() + seconds

    async def keep_posting(number: int, connection: asyncpg.Connection) -> int:
        posted = 0
        while time.perf_counter() < ends_at:
            lines = moved(Amount(1, HOT.asset), source(number).path, HOT.path)
            posting = Posting(f"{run_name}/{number}/{posted}", Reference("bench", f"{posted}"), lines)
            async with connection.transaction():
                await post(connection, posting)
            posted += 1
        return posted

    return sum(await asyncio.gather(*(keep_posting(number, poster) for number, poster in enumerate(posters))))


def source(number: int) -> Account:
    return Account(f"bench/source/{number}", HOT.asset)


def client_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def server_cpu_s(pids: Iterable[int]) -> float:
    """CPU time of the server's processes; zero if it runs on another machine."""
    ticks = 0
    for pid in pids:
        with suppress(OSError):
            figures = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(figures[11]) + int(figures[12])
    return ticks / os.sysconf("SC_CLK_TCK")
