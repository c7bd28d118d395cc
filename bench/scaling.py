"""payonce's behaviour under conditions on which peers are not compared: depth, an old snapshot, idleness."""

import asyncio
import statistics
import time
from contextlib import AsyncExitStack, ExitStack

import msgspec

from bench import databases
from bench.peers import SYSTEMS
from bench.peers.command import Command
from bench.rounds import START_LIMIT_S, Stage, stage
from bench.sites import PostgresSite
from payonce.engine.database.connections import Database
from payonce.engine.database.notifier import Notifier
from payonce.engine.messages.policy import Policy
from payonce.queues.postgres import PostgresQueue

# Claims that do not count: the server replans a prepared statement for its first five executions.
WARM_UP_CLAIMS = 6
CLAIMS = 30
CLAIM_SIZE = 20
FILL_LIMIT_S = 300.0
CHURN_LIMIT_S = 120.0
# Time for a worker's initial allocations.
SETTLE_S = 1.0

# payonce is the first system.
_SYSTEM = SYSTEMS["postgres"][0]


class ScalingSizes(msgspec.Struct, frozen=True):
    waiting_small: int = 1_000
    waiting_large: int = 1_000_000
    churn_cycles: int = 4
    churn_jobs: int = 10_000


QUICK_SCALING = ScalingSizes(waiting_large=50_000, churn_cycles=2, churn_jobs=1_000)


def measure_scaling(site: PostgresSite, sizes: ScalingSizes) -> dict[str, float | None]:
    """All figures, as in the report. payonce must be `installed` on the server."""
    small_ms, large_ms = measure_claims_ms(site, sizes)
    free_per_s = measure_churn(site, sizes, snapshot_open=False)
    held_per_s = measure_churn(site, sizes, snapshot_open=True)
    return {
        "waiting_small": sizes.waiting_small,
        "waiting_large": sizes.waiting_large,
        "claim_small_ms": round(small_ms, 3),
        "claim_large_ms": round(large_ms, 3),
        "claim_ratio": round(large_ms / small_ms, 3),
        "churn_per_s": round(free_per_s, 1),
        "churn_with_snapshot_per_s": round(held_per_s, 1),
        "churn_ratio": round(held_per_s / free_per_s, 3),
        "idle_worker_rss_mb": round(measure_idle_worker(site), 1),
    }


def measure_claims_ms(site: PostgresSite, sizes: ScalingSizes) -> tuple[float, float]:
    """The median claim with few and with many messages waiting, alternating, while nothing else runs."""
    if sizes.waiting_small < (WARM_UP_CLAIMS + CLAIMS) * CLAIM_SIZE:
        raise ValueError(f"{sizes.waiting_small} waiting messages are too few for {CLAIMS} claims of {CLAIM_SIZE}")
    with stage(_SYSTEM, site) as small, stage(_SYSTEM, site, "deep") as large:
        for at, waiting in ((small, sizes.waiting_small), (large, sizes.waiting_large)):
            at.enqueue("put_in_bulk", "noop", waiting, limit_s=FILL_LIMIT_S)
            # In production autovacuum has done so long before a queue is this deep.
            databases.vacuum(at.address.url)
        site.settle()
        return asyncio.run(_time_claims(small.address.url, large.address.url))


async def _time_claims(small_url: str, large_url: str) -> tuple[float, float]:
    async with AsyncExitStack() as stack:
        queues = [await _open_queue(stack, url) for url in (small_url, large_url)]
        elapsed_ms: list[list[float]] = [[], []]
        for _ in range(WARM_UP_CLAIMS + CLAIMS):
            for queue, times_ms in zip(queues, elapsed_ms, strict=True):
                started = time.perf_counter()
                exchange = await queue.exchange([], CLAIM_SIZE)
                times_ms.append((time.perf_counter() - started) * 1000)
                assert len(exchange.claims) == CLAIM_SIZE, "the queue is deep enough for every claim to be full"
        small_ms, large_ms = (statistics.median(times_ms[WARM_UP_CLAIMS:]) for times_ms in elapsed_ms)
        return small_ms, large_ms


async def _open_queue(stack: AsyncExitStack, url: str) -> PostgresQueue:
    database = await stack.enter_async_context(Database.open(url))
    notifier = await stack.enter_async_context(Notifier.open(database, listen=False))
    # Without the limit: depth does not affect its count of live leases.
    return PostgresQueue(database, notifier, Policy("bench"), worker="bench-claims")


def measure_churn(site: PostgresSite, sizes: ScalingSizes, snapshot_open: bool) -> float:
    """Jobs per second, put and settled, in the last of several cycles: dead rows accumulate behind an old snapshot."""
    with ExitStack() as stack:
        at = stack.enter_context(stage(_SYSTEM, site))
        if snapshot_open:
            stack.enter_context(databases.open_snapshot(at.address.url))
        at.start_worker()
        elapsed_s = 0.0
        for cycle in range(sizes.churn_cycles):
            started = time.monotonic()
            _cycle(at, cycle, sizes.churn_jobs)
            elapsed_s = time.monotonic() - started
        return sizes.churn_jobs / elapsed_s


def _cycle(at: Stage, cycle: int, jobs: int) -> None:
    command = Command("put_in_bulk", count=jobs, first_reference=cycle * jobs)
    at.driver.ask(command, CHURN_LIMIT_S)
    at.wait_until_empty(CHURN_LIMIT_S)


def measure_idle_worker(site: PostgresSite) -> float:
    """Resident memory of a worker that has handled one job and waits for the next, in megabytes."""
    with stage(_SYSTEM, site) as at:
        worker = at.start_worker()
        at.enqueue("put_singly", "noop", 1)
        worker.must(lambda: at.journal.handled > 0, "its first job", START_LIMIT_S)
        time.sleep(SETTLE_S)
        return worker.memory_mb()
