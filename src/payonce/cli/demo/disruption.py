"""Shared by demonstrations: workers on a temporary database, and disruptions while they work."""

import asyncio
import os
import random
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from payonce.cli.demo.process_pool import ProcessPool, plan_disruptions
from payonce.cli.output import note

if TYPE_CHECKING:
    from payonce.app.addresses import Addresses
    from payonce.app.process import App
    from payonce.engine.messages.transaction import Reader
    from payonce.settings import Settings

WORKERS: Final = 3
SLOTS: Final = 8
KILLS, KILLS_MIN, STOPS = 12, 10, 2
FIRST_DISRUPTION, LAST_DISRUPTION = 0.04, 0.8
"""Share of the work that is done at the first and last disruption, so that workers are busy in between."""
SLEEP_LEASES: Final = 1.5
"""How long a worker is stopped, in leases: long enough for others to take its messages."""
TICK_S: Final = 0.05
LIMIT_S: Final = 85.0
NOTE_EVERY_S: Final = 10.0


@dataclass(frozen=True)
class Workload:
    """The work of a demonstration, and how its progress is read."""

    role: str
    queues: Sequence[str]
    lease_s: float
    total: int
    done: Callable[["Reader"], Awaitable[int]]
    limit_s: float = LIMIT_S
    tend: Callable[[], Awaitable[None]] | None = None
    """An operator's work in the meantime."""


@dataclass(frozen=True)
class DisruptedRun:
    kills: int
    stops: int
    restarts: int
    seconds: float
    log_path: Path


@asynccontextmanager
async def scratch_app(settings: "Settings") -> AsyncIterator[tuple["App", "Addresses"]]:
    """The application on a temporary, migrated database, without roles."""
    from payonce.app.process import App, migrate_database
    from payonce.cli.scratch import scratch_database

    async with scratch_database(settings) as addresses:
        await migrate_database(addresses)
        async with App.open(_pointed_at(settings, addresses)) as app:
            yield app, addresses


async def run_workload(
    app: "App", addresses: "Addresses", workload: Workload, seed: int, environment: Mapping[str, str] | None = None
) -> DisruptedRun:
    """Runs the workload in a pool, disrupted as planned by the seed, until it is done or the time limit is reached."""
    started = time.monotonic()
    with (
        log_file() as log_path,
        ProcessPool(
            ("run", workload.role), {**environment_of(addresses), **(environment or {})}, log_path, WORKERS
        ) as pool,
    ):
        await _disrupt(app, pool, workload, seed)
        seconds = time.monotonic() - started
    return DisruptedRun(pool.kills, pool.stops, pool.restarts, seconds, log_path)


def too_few_kills(kills: int) -> list[str]:
    """The complaint about a run with too few kills to prove anything."""
    if kills >= KILLS_MIN:
        return []
    return [f"only {kills} workers were killed, {KILLS_MIN} are required; the work ended too early"]


async def _disrupt(app: "App", pool: ProcessPool, workload: Workload, seed: int) -> None:
    """Kills and stops busy workers as planned until the work is done."""
    chance = random.Random(seed)
    disruptions = plan_disruptions(KILLS, STOPS, FIRST_DISRUPTION, LAST_DISRUPTION, chance)
    deadline = time.monotonic() + workload.limit_s
    with progress_bar(workload.total) as show_progress:
        while True:
            done = await workload.done(app.read)
            show_progress(done, pool.kills)
            if done == workload.total or time.monotonic() > deadline:
                return
            if disruptions and done >= disruptions[0][0] * workload.total:
                busy = await _busy_workers(app.read, workload.queues)
                # A worker with several messages is busy; an isolated message is left to show its own fault.
                victims = sorted(pid for pid in pool.running() if busy.get(pid, 0) > 1)
                if victims:
                    pool.disrupt(disruptions.pop(0)[1], chance.choice(victims), workload.lease_s * SLEEP_LEASES)
            pool.restore()
            if workload.tend is not None:
                await workload.tend()
            await asyncio.sleep(TICK_S)


async def _busy_workers(read: "Reader", queues: Sequence[str]) -> dict[int, int]:
    """The number of messages that each worker holds now, by process id."""
    rows = await read.fetch(
        """
        select worker, count(*) as held from payonce.messages
        where queue = any($1) and state = 'leased' group by worker
        """,
        list(queues),
    )
    return {int(row["worker"].split("-")[-2]): row["held"] for row in rows}


@contextmanager
def log_file() -> Iterator[Path]:
    """The workers' log; deleted when the demonstration is interrupted."""
    handle, name = tempfile.mkstemp(prefix="payonce-demo-", suffix=".log")
    os.close(handle)
    path = Path(name)
    try:
        yield path
    except BaseException:
        path.unlink(missing_ok=True)
        raise


@contextmanager
def progress_bar(total: int) -> Iterator[Any]:
    if not sys.stderr.isatty():
        yield _periodic_notes(total)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("0 workers killed", total=total)
        yield lambda done, kills: progress.update(task, completed=done, description=f"{kills} workers killed")


def _periodic_notes(total: int) -> Callable[[int, int], None]:
    """For a log: a line every NOTE_EVERY_S seconds."""
    started = said = time.monotonic()

    def report_progress(done: int, kills: int) -> None:
        nonlocal said
        now = time.monotonic()
        if now - said >= NOTE_EVERY_S:
            said = now
            note(f"{now - started:.0f} s: {done} of {total} done, {kills} workers killed")

    return report_progress


def _pointed_at(settings: "Settings", addresses: "Addresses") -> "Settings":
    from pydantic import SecretStr

    urls = {"database_url": SecretStr(addresses.service), "database_owner_url": SecretStr(addresses.owner)}
    return settings.model_copy(update=urls)


def environment_of(addresses: "Addresses") -> dict[str, str]:
    ours = {
        "DATABASE_URL": addresses.service,
        "PAYONCE_SLOTS": str(SLOTS),
        "PAYONCE_POOL_SIZE": str(SLOTS),
        "PAYONCE_GRACE_S": "2",
        "PAYONCE_LOG": "json",
    }
    return {**{name: value for name, value in os.environ.items() if name != "DATABASE_OWNER_URL"}, **ours}
