"""One round of one system: a fresh store, its two processes, the phases in order."""

import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from bench import databases
from bench.children import Child, peer_process
from bench.failure import BenchFailed
from bench.journal import Journal
from bench.peers import System
from bench.peers.command import Command, Reply
from bench.peers.port import Address, Job, Traits, WriteMode
from bench.sites import Site

START_LIMIT_S = 30.0
PHASE_LIMIT_S = 120.0


class Sizes(msgspec.Struct, frozen=True):
    """The sizes of one round."""

    backlog: int = 20_000
    singles: int = 1_000
    idle_jobs: int = 200
    transactional: int = 5_000
    # A slow peer's rate is known well enough by then; it is computed from the acknowledgements so far.
    drain_limit_s: float = 30.0
    pickup_limit_s: float = 60.0


QUICK = Sizes(backlog=2_000, singles=200, idle_jobs=30, transactional=300, drain_limit_s=3.0, pickup_limit_s=1.0)


class Throughput(msgspec.Struct, frozen=True):
    enqueue_per_s: float
    bulk_per_s: float
    drain_per_s: float
    rss_mb: float
    traits: Traits


class Responsiveness(msgspec.Struct, frozen=True):
    idle_p50_ms: float
    idle_p99_ms: float
    pickup_s: float | None


class Stage:
    """A fresh store with the system installed, an open driver, and a folder for its workers' journals."""

    def __init__(self, system: System, site: Site, address: Address, folder: Path, stack: ExitStack) -> None:
        self.system = system
        self.address = address
        self._stack = stack
        self._site = site
        self._journal_path = folder / "journal"
        self._log = folder / "output"
        self.journal = Journal.create(self._journal_path)
        self.driver = stack.enter_context(peer_process(system, "driver", address, self._journal_path, self._log))
        traits = self.driver.ask(Command("open"), START_LIMIT_S).traits
        assert traits is not None, "a driver that opened says what it is"
        self.traits = traits

    def start_worker(self) -> Child:
        return self._stack.enter_context(
            peer_process(self.system, "worker", self.address, self._journal_path, self._log)
        )

    def enqueue(self, do: str, job: Job, count: int, first_reference: int = 0, limit_s: float = PHASE_LIMIT_S) -> float:
        """Jobs per second, after the server has finished earlier writes."""
        self._site.settle()
        command = Command(do, job=job, count=count, first_reference=first_reference)
        return count / self.driver.ask(command, limit_s).seconds

    def drain(self, backlog: int, limit_s: float) -> tuple[float, Child]:
        """Jobs per second from the first handler's start to the last acknowledgement in the store; the worker."""
        self._site.settle()
        worker = self.start_worker()
        journal = self.journal
        worker.must(lambda: journal.handled > 0, "its first job", START_LIMIT_S)
        in_time = worker.wait_for(lambda: journal.handled >= backlog, "the backlog", limit_s)
        # A returned handler proves nothing: the store's state counts.
        if in_time:
            reply = self.wait_until_empty(START_LIMIT_S)
        else:
            reply = self.driver.ask(Command("wait_until_empty", limit_s=0.0), START_LIMIT_S)
        elapsed_s = (reply.at_ns - journal.first_handled_ns) / 1e9
        return (backlog - reply.unfinished) / elapsed_s, worker

    def wait_until_empty(self, limit_s: float) -> Reply:
        reply = self.driver.ask(Command("wait_until_empty", limit_s=limit_s), limit_s + START_LIMIT_S)
        if reply.unfinished:
            raise BenchFailed(
                f"{self.system.name}: {reply.unfinished} jobs were still unacknowledged after {limit_s:.0f} s"
            )
        return reply


@contextmanager
def stage(system: System, site: Site, name: str | None = None) -> Iterator[Stage]:
    """`name` keeps two stages of one system apart."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="payonce-bench-")))
        # Entered before the processes start, and so left after they have ended.
        address = stack.enter_context(site.fresh(system, name or system.slug))
        yield Stage(system, site, address, folder, stack)


def measure_throughput(system: System, site: Site, sizes: Sizes) -> Throughput:
    with stage(system, site) as at:
        enqueue_per_s = at.enqueue("put_singly", "noop", sizes.singles)
        bulk = sizes.backlog - sizes.singles
        bulk_per_s = at.enqueue("put_in_bulk", "noop", bulk, first_reference=sizes.singles)
        drain_per_s, worker = at.drain(sizes.backlog, sizes.drain_limit_s)
        return Throughput(
            enqueue_per_s=enqueue_per_s,
            bulk_per_s=bulk_per_s,
            drain_per_s=drain_per_s,
            rss_mb=worker.memory_mb(),
            traits=at.traits,
        )


def measure_responsiveness(system: System, site: Site, sizes: Sizes, with_pickup: bool) -> Responsiveness:
    with stage(system, site) as at:
        worker = at.start_worker()
        at.enqueue("put_singly", "noop", 1)
        worker.must(lambda: at.journal.handled > 0, "its first job", START_LIMIT_S)
        at.driver.ask(Command("time_idle", count=sizes.idle_jobs), PHASE_LIMIT_S)
        latencies_ns = sorted(at.journal.latencies_ns)
        return Responsiveness(
            idle_p50_ms=_percentile(latencies_ns, 50) / 1e6,
            idle_p99_ms=_percentile(latencies_ns, 99) / 1e6,
            pickup_s=_measure_pickup(at, worker, sizes.pickup_limit_s) if with_pickup else None,
        )


def measure_transactional(system: System, site: Site, mode: WriteMode, sizes: Sizes) -> float:
    """Jobs per second when each writes one business row; every row must be there, once."""
    with stage(system, site) as at:
        at.enqueue("put_in_bulk", mode.job, sizes.transactional)
        per_s, _ = at.drain(sizes.transactional, sizes.drain_limit_s)
        # In this order: a drain that timed out continues meanwhile.
        handled, written = at.journal.handled, databases.count_business_rows(at.address.database_url)
        if written < handled:
            raise BenchFailed(f"{system.name}: {handled} handlers returned, but there are only {written} business rows")
        return per_s


def _measure_pickup(at: Stage, worker: Child, limit_s: float) -> float | None:
    """Seconds from kill -9 during a handler until another worker starts the same job; None if not in time."""
    at.enqueue("put_singly", "slow", 1)
    worker.must(lambda: at.journal.slow_starts == 1, "the slow job", START_LIMIT_S)
    worker.kill()
    killed_ns = time.monotonic_ns()
    successor = at.start_worker()
    if not successor.wait_for(lambda: at.journal.slow_starts > 1, "the killed worker's job", limit_s):
        return None
    return (at.journal.slow_started_ns - killed_ns) / 1e9


def _percentile(ordered: list[int], percent: int) -> int:
    if not ordered:
        raise BenchFailed("no idle latency was recorded")
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]
