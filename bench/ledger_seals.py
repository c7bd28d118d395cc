"""The cost of sealing the ledger: postings per second with and without it, in turns, and the cost of a sealed
posting."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from statistics import median
from typing import Final

import asyncpg
import uvloop

from bench.ledger import CONNECTIONS, HOT, client_cpu_s, post_for, server_cpu_s, source
from payonce.engine.audit import LedgerSealer, verify_ledger
from payonce.engine.database.connections import Database
from payonce.engine.database.leases import acquire
from payonce.engine.ledger import declare
from payonce.engine.messages.model import Lease

SEAL_EVERY_S: Final = 1.0
"""More often than the leader seals, so that a short round has several seals."""
LEASE_S: Final = 3_600.0
WARM_UP_S: Final = 1.0


@dataclass(frozen=True)
class Spent:
    postings: int
    seconds: float
    client_s: float
    server_s: float

    @property
    def cpu_us(self) -> float:
        """CPU time of client and server, per posting."""
        return (self.client_s + self.server_s) / self.postings * 1e6


def run(url: str, seconds: float, rounds: int, connections: int = CONNECTIONS) -> dict[str, float]:
    """Measures on a migrated database, as the role in the URL; returns medians of the rounds. Each round posts without
    sealing, seals while nothing is posted, and posts while sealing runs."""
    return uvloop.run(_measure(url, seconds, rounds, connections))


async def _measure(url: str, seconds: float, rounds: int, connections: int) -> dict[str, float]:
    async with Database.open(url) as database, _open_posters(url, connections) as posters:
        lease = await acquire(database, "janitors", f"bench {time.time_ns()}", LEASE_S)
        assert lease is not None
        sealer, watcher = LedgerSealer(database), posters[0]
        await post_for(posters, min(WARM_UP_S, seconds), f"{time.time_ns()}/warm")
        without, alone, with_sealing = [], [], []
        for _ in range(rounds):
            without.append(await _spent(watcher, post_for(posters, seconds, f"{time.time_ns()}")))
            alone.append(await _spent(watcher, _seal_all(sealer, lease)))
            sealing = asyncio.create_task(_keep_sealing(sealer, lease))
            try:
                with_sealing.append(await _spent(watcher, post_for(posters, seconds, f"{time.time_ns()}")))
            finally:
                sealing.cancel()
                await asyncio.gather(sealing, return_exceptions=True)
        await _seal_all(sealer, lease)
        began_at = time.perf_counter()
        verified = await verify_ledger(watcher)
        assert verified.ok, verified.findings
        assert verified.unsealed == 0
        stored = await watcher.fetchval("select pg_total_relation_size('payonce.ledger_seals')")
    return {
        "connections": connections,
        "postings": verified.postings,
        "postings_per_s_without_sealing": median(each.postings / each.seconds for each in without),
        "postings_per_s_with_sealing": median(each.postings / each.seconds for each in with_sealing),
        "cpu_us_per_posting_without_sealing": median(each.cpu_us for each in without),
        "cpu_us_per_posting_with_sealing": median(each.cpu_us for each in with_sealing),
        "sealed_lines_per_s": median(2 * each.postings / each.seconds for each in alone),
        "client_cpu_us_per_sealed_posting": median(each.client_s / each.postings * 1e6 for each in alone),
        "server_cpu_us_per_sealed_posting": median(each.server_s / each.postings * 1e6 for each in alone),
        "bytes_per_sealed_posting": stored / verified.postings,
        "verified_postings_per_s": verified.postings / (time.perf_counter() - began_at),
    }


@asynccontextmanager
async def _open_posters(url: str, connections: int) -> AsyncIterator[list[asyncpg.Connection]]:
    posters = [await asyncpg.connect(url) for _ in range(connections)]
    try:
        async with posters[0].transaction():
            await declare(posters[0], HOT, *(source(number) for number in range(connections)))
        yield posters
    finally:
        for poster in posters:
            await poster.close()


async def _spent(watcher: asyncpg.Connection, work: Awaitable[int]) -> Spent:
    began_at, client_began_s, server_began_s = time.perf_counter(), client_cpu_s(), await _sessions_cpu_s(watcher)
    postings = await work
    took_s, client_s = time.perf_counter() - began_at, client_cpu_s() - client_began_s
    return Spent(postings, took_s, client_s, await _sessions_cpu_s(watcher) - server_began_s)


async def _seal_all(sealer: LedgerSealer, lease: Lease) -> int:
    sealed = await sealer.seal(lease)
    while sealer.unsealed_ids:
        sealed += await sealer.seal(lease)
    return sealed


async def _keep_sealing(sealer: LedgerSealer, lease: Lease) -> None:
    while True:
        await asyncio.sleep(SEAL_EVERY_S)
        await sealer.seal(lease)


async def _sessions_cpu_s(watcher: asyncpg.Connection) -> float:
    """CPU time of all sessions of this database: sealing uses any connection of its pool."""
    pids = await watcher.fetch("select pid from pg_stat_activity where datname = current_database()")
    return server_cpu_s(row["pid"] for row in pids)
