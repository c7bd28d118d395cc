"""`./dev bench queues`: every system in turn, round after round, and one report of the medians."""

import os
import platform
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import msgspec

from bench.failure import BenchFailed
from bench.peers import OURS, SYSTEMS, System
from bench.peers.port import WriteMode
from bench.render import render
from bench.report import Report, Row, TransactionalRow, median, ratios
from bench.rounds import (
    QUICK,
    Responsiveness,
    Sizes,
    Throughput,
    measure_responsiveness,
    measure_throughput,
    measure_transactional,
)
from bench.scaling import QUICK_SCALING, ScalingSizes, measure_scaling
from bench.sites import PostgresSite, RedisSite, Site
from payonce.embedded.redis import Durability
from payonce.kit.outcomes import Invalid

__all__ = ["BOTH", "Report", "Servers", "choose", "render", "run"]

ROUNDS = 3
QUICK_ROUNDS = 1
BOTH = "both"


class Servers(msgspec.Struct, frozen=True):
    """The servers for the benchmark: its databases bench_* on one PostgreSQL server, and Redis servers that it
    starts."""

    # For a superuser.
    postgres_url: str
    # On the same disk as the other server, or comparing durability means nothing.
    redis_folder: Path
    redis_durability: Durability = "everysec"


def run(
    backend: str,
    quick: bool,
    systems: list[str] | None,
    servers: Servers,
    progress: Callable[[str], None],
    sizes: Sizes | None = None,
) -> Report:
    """Measures the systems of one backend, or of both in turn; everything created is deleted at the end."""
    wanted = choose(backend, systems)
    rounds = QUICK_ROUNDS if quick else ROUNDS
    chosen = sizes or (QUICK if quick else Sizes())
    report = Report(conditions={**_machine(), **_effort(rounds, chosen)})
    for each, known in wanted.items():
        site = _site(each, servers)
        one = _Run(each, site, chosen, progress)
        with ExitStack() as stack:
            for system in known:
                if system.is_installed:
                    one.install(system, stack)
            one.measure(rounds)
            if isinstance(site, PostgresSite):
                one.measure_ours(site, QUICK_SCALING if quick else ScalingSizes())
        if any(system.is_installed for system in known):
            report.conditions.update(site.conditions())
        report.rows.extend(rows := one.rows())
        report.transactional.extend(transactional := one.transactional_rows())
        report.scaling.update(one.scaling)
        report.ratios[each] = ratios(rows, transactional)
        report.skipped.extend(_missing(system) for system in known if not system.is_installed)
        report.errors.extend(one.errors)
    return report


def _site(backend: str, servers: Servers) -> Site:
    postgres = PostgresSite(servers.postgres_url)
    if backend == "redis":
        return RedisSite(servers.redis_folder, servers.redis_durability, beside=postgres)
    return postgres


class _Run:
    """The figures so far. A failing system is dropped from the rest of the run and named in `errors`."""

    def __init__(self, backend: str, site: Site, sizes: Sizes, progress: Callable[[str], None]) -> None:
        self._backend = backend
        self._site = site
        self._sizes = sizes
        self._progress = progress
        self._systems: list[System] = []
        self._throughput: defaultdict[System, list[Throughput]] = defaultdict(list)
        self._responsiveness: defaultdict[System, list[Responsiveness]] = defaultdict(list)
        self._transactional: defaultdict[tuple[System, WriteMode], list[float]] = defaultdict(list)
        self.scaling: dict[str, float | None] = {}
        self.errors: list[str] = []

    def install(self, system: System, stack: ExitStack) -> None:
        def act() -> None:
            stack.enter_context(self._site.installed(system))
            self._systems.append(system)

        self._try(system, "install", act)

    def measure(self, rounds: int) -> None:
        """Systems alternate within each round, so that a busy minute of the machine affects all of them."""
        for number in range(1, rounds + 1):
            for system in list(self._systems):
                self._try(system, f"throughput, round {number}", partial(self._measure_throughput, system))
        for number in range(1, rounds + 1):
            for system in list(self._systems):
                # Waiting for a lease once is enough: it is a setting, not noise.
                self._try(system, f"idle, round {number}", partial(self._measure_idle, system, number == 1))
        for number in range(1, rounds + 1):
            for system in [system for system in self._systems if self._write_modes(system)]:
                self._try(system, f"transactional, round {number}", partial(self._measure_transactional, system))

    def measure_ours(self, site: PostgresSite, sizes: ScalingSizes) -> None:
        for system in [system for system in self._systems if system.name == OURS]:
            self._try(system, "depth, churn and idleness", partial(self._measure_scaling, site, sizes))

    def rows(self) -> list[Row]:
        return [self._row(system) for system in self._systems]

    def transactional_rows(self) -> list[TransactionalRow]:
        return [
            TransactionalRow(
                backend=self._backend,
                system=system.name,
                atomic=mode.atomic,
                per_s=median(figures) or 0.0,
                how=mode.how,
            )
            for (system, mode), figures in self._transactional.items()
            if system in self._systems
        ]

    def _measure_throughput(self, system: System) -> None:
        self._throughput[system].append(measure_throughput(system, self._site, self._sizes))

    def _measure_idle(self, system: System, with_pickup: bool) -> None:
        self._responsiveness[system].append(
            measure_responsiveness(system, self._site, self._sizes, with_pickup=with_pickup)
        )

    def _measure_transactional(self, system: System) -> None:
        for mode in self._write_modes(system):
            per_s = measure_transactional(system, self._site, mode, self._sizes)
            self._transactional[system, mode].append(per_s)

    def _measure_scaling(self, site: PostgresSite, sizes: ScalingSizes) -> None:
        self.scaling = measure_scaling(site, sizes)

    def _write_modes(self, system: System) -> tuple[WriteMode, ...]:
        return self._throughput[system][0].traits.write_modes

    def _try(self, system: System, what: str, act: Callable[[], None]) -> None:
        self._progress(f"{self._backend}: {system.name}: {what}")
        try:
            act()
        except BenchFailed as failure:
            self.errors.append(str(failure))
            if system in self._systems:
                self._systems.remove(system)

    def _row(self, system: System) -> Row:
        throughput, responsiveness = self._throughput[system], self._responsiveness[system]
        traits = throughput[0].traits
        return Row(
            backend=self._backend,
            system=system.name,
            version=system.version,
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


def choose(backend: str, names: list[str] | None) -> dict[str, list[System]]:
    """The systems to measure, by backend. Raises Invalid for unknown names."""
    if backend != BOTH and backend not in SYSTEMS:
        raise Invalid(f"no benchmark for backend {backend!r}; there are: {', '.join([*SYSTEMS, BOTH])}")
    chosen = SYSTEMS if backend == BOTH else {backend: SYSTEMS[backend]}
    known = sorted({system.name for systems in chosen.values() for system in systems})
    for name in names or ():
        if name not in known:
            raise Invalid(f"no system {name!r} for {backend}; there are: {', '.join(known)}")
    return {
        each: [system for system in systems if names is None or system.name in names]
        for each, systems in chosen.items()
    }


def _missing(system: System) -> str:
    return f"{system.name} is left out: it is not installed; install the group bench"


def _effort(rounds: int, sizes: Sizes) -> dict[str, str]:
    return {
        "rounds": str(rounds),
        "backlog": str(sizes.backlog),
        "idle_jobs": str(sizes.idle_jobs),
        "pickup_limit_s": f"{sizes.pickup_limit_s:g}",
    }


def _machine() -> dict[str, str]:
    return {"cpus": str(os.cpu_count()), "machine": platform.machine(), "python": platform.python_version()}
