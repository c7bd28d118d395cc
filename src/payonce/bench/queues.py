"""`./dev bench queues`: every system in turn, round after round, and one report of the medians."""

import importlib.metadata
import importlib.util
import os
import platform
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

from payonce.bench import databases
from payonce.bench.failure import BenchFailed
from payonce.bench.peers import MODULES, OURS, SYSTEMS
from payonce.bench.peers.port import Way
from payonce.bench.render import render
from payonce.bench.report import Report, Row, TransactionalRow, median, ratios
from payonce.bench.rounds import (
    QUICK,
    Responsiveness,
    Sizes,
    Throughput,
    installed,
    measure_responsiveness,
    measure_throughput,
    measure_transactional,
)
from payonce.bench.scaling import QUICK_SCALING, ScalingSizes, measure_scaling
from payonce.kit.outcomes import Invalid

__all__ = ["Report", "render", "run"]

ROUNDS = 3
QUICK_ROUNDS = 1


def run(
    backend: str,
    quick: bool,
    systems: list[str] | None,
    url: str,
    progress: Callable[[str], None],
    sizes: Sizes | None = None,
) -> Report:
    """Measure the systems on the server at `url`, as a superuser; databases bench_* on it are made and dropped."""
    wanted = _wanted(backend, systems)
    skipped = [_missing(system) for system in wanted if not _is_installed(system)]
    run_of = _Run(backend, url, sizes or (QUICK if quick else Sizes()), progress)
    rounds = QUICK_ROUNDS if quick else ROUNDS
    with ExitStack() as stack:
        for system in wanted:
            if _is_installed(system):
                run_of.install(system, stack)
        run_of.measure(rounds)
        run_of.measure_ours(QUICK_SCALING if quick else ScalingSizes())
    rows = run_of.rows()
    return Report(
        conditions={**databases.server_conditions(url), **_machine(), **run_of.conditions(rounds)},
        rows=rows,
        transactional=run_of.transactional_rows(),
        scaling=run_of.scaling,
        ratios={backend: ratios(rows)},
        skipped=skipped,
        errors=run_of.errors,
    )


class _Run:
    """The figures gathered so far. A system that fails is dropped from the rest of the run and named in `errors`."""

    def __init__(self, backend: str, url: str, sizes: Sizes, progress: Callable[[str], None]) -> None:
        self._backend = backend
        self._url = url
        self._sizes = sizes
        self._progress = progress
        self._systems: list[str] = []
        self._throughput: defaultdict[str, list[Throughput]] = defaultdict(list)
        self._responsiveness: defaultdict[str, list[Responsiveness]] = defaultdict(list)
        self._transactional: defaultdict[tuple[str, Way], list[float]] = defaultdict(list)
        self.scaling: dict[str, float | None] = {}
        self.errors: list[str] = []

    def install(self, system: str, stack: ExitStack) -> None:
        def act() -> None:
            stack.enter_context(installed(system, self._url))
            self._systems.append(system)

        self._try(system, "install", act)

    def measure(self, rounds: int) -> None:
        """Systems alternate inside each round, so that a busy minute of the machine falls on all of them."""
        for number in range(1, rounds + 1):
            for system in list(self._systems):
                self._try(system, f"throughput, round {number}", partial(self._measure_throughput, system))
        for number in range(1, rounds + 1):
            for system in list(self._systems):
                # Waiting out a lease once is enough: it is a setting, not noise.
                self._try(system, f"idle, round {number}", partial(self._measure_idle, system, number == 1))
        for number in range(1, rounds + 1):
            for system in list(self._systems):
                self._try(system, f"transactional, round {number}", partial(self._measure_transactional, system))

    def measure_ours(self, sizes: ScalingSizes) -> None:
        if OURS in self._systems:
            self._try(OURS, "depth, churn and idleness", partial(self._measure_scaling, sizes))

    def rows(self) -> list[Row]:
        return [self._row(system) for system in self._systems]

    def transactional_rows(self) -> list[TransactionalRow]:
        return [
            TransactionalRow(
                backend=self._backend, system=system, atomic=way.atomic, per_s=median(figures) or 0.0, how=way.how
            )
            for (system, way), figures in self._transactional.items()
            if system in self._systems
        ]

    def conditions(self, rounds: int) -> dict[str, str]:
        sizes = self._sizes
        return {"rounds": str(rounds), "backlog": str(sizes.backlog), "idle_jobs": str(sizes.idle_jobs)}

    def _measure_throughput(self, system: str) -> None:
        self._throughput[system].append(measure_throughput(system, self._url, self._sizes))

    def _measure_idle(self, system: str, with_pickup: bool) -> None:
        self._responsiveness[system].append(
            measure_responsiveness(system, self._url, self._sizes, with_pickup=with_pickup)
        )

    def _measure_transactional(self, system: str) -> None:
        for way in self._throughput[system][0].traits.ways:
            per_s = measure_transactional(system, self._url, way, self._sizes)
            self._transactional[system, way].append(per_s)

    def _measure_scaling(self, sizes: ScalingSizes) -> None:
        self.scaling = measure_scaling(self._url, sizes)

    def _try(self, system: str, what: str, act: Callable[[], None]) -> None:
        self._progress(f"{system}: {what}")
        try:
            act()
        except BenchFailed as failure:
            self.errors.append(str(failure))
            if system in self._systems:
                self._systems.remove(system)

    def _row(self, system: str) -> Row:
        throughput, responsiveness = self._throughput[system], self._responsiveness[system]
        traits = throughput[0].traits
        return Row(
            backend=self._backend,
            system=system,
            version=importlib.metadata.version(MODULES[system][0]),
            drain_per_s=median([one.drain_per_s for one in throughput]),
            enqueue_per_s=median([one.enqueue_per_s for one in throughput]),
            bulk_per_s=median([one.bulk_per_s for one in throughput]),
            idle_p50_ms=median([one.idle_p50_ms for one in responsiveness]),
            idle_p99_ms=median([one.idle_p99_ms for one in responsiveness]),
            pickup_s=median([one.pickup_s for one in responsiveness]),
            rss_mb=median([one.rss_mb for one in throughput]),
            lease_s=traits.lease_s,
            settings={"worker": traits.worker, "bulk": traits.bulk},
        )


def _wanted(backend: str, systems: list[str] | None) -> list[str]:
    if backend not in SYSTEMS:
        raise Invalid(f"no benchmark for backend {backend!r}; there are: {', '.join(SYSTEMS)}")
    known = SYSTEMS[backend]
    for system in systems or ():
        if system not in known:
            raise Invalid(f"no system {system!r} for {backend}; there are: {', '.join(known)}")
    return [system for system in known if systems is None or system in systems]


def _is_installed(system: str) -> bool:
    return all(importlib.util.find_spec(module) is not None for module in MODULES[system])


def _missing(system: str) -> str:
    return f"{system} is left out: it is not installed; install the group bench"


def _machine() -> dict[str, str]:
    return {"cpus": str(os.cpu_count()), "machine": platform.machine(), "python": platform.python_version()}
