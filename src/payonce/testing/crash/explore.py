"""A whole exploration: a run without a crash, every crossing in every mode, and the same without safeguards."""

import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from payonce.kit.outcomes import Invalid
from payonce.testing.cluster import replicating_installation
from payonce.testing.crash.ablations import Ablation
from payonce.testing.crash.backend import Backend
from payonce.testing.crash.drivers import Work, in_parallel
from payonce.testing.crash.failover import failover_cluster, folder_of_clusters
from payonce.testing.crash.model import FAILOVER, PROCESS_MODES, SERVER_CRASH, USUAL_MODES, Mode, Point, Result
from payonce.testing.crash.on_postgres import OnPostgres
from payonce.testing.crash.report import AblationResult, Report
from payonce.testing.crash.run_database import DatabaseTemplate, prepare
from payonce.testing.crash.runs import Explorer
from payonce.testing.crash.scenario import Scenario
from payonce.testing.crash.server_crash import crashable_servers
from payonce.testing.servers import ScratchServer, Servers

PROCESSES_MAX: Final = 8
SPARE: Final = 1
"""Processes beyond the number of cores: runs also wait, for sessions to end and databases to be copied."""
POINTS_PER_SERVER: Final = 20
"""Starting and preparing another server takes as long as about this many points."""
WITHOUT_A_CRASH: Final = "the run without a crash"

ON_POSTGRES: Final = OnPostgres()

Answer = TypeVar("Answer")

Progress = Callable[[str, int, int], None]
"""Called with the current activity, the number done, and the total."""


def explore(
    scenarios: Sequence[Scenario],
    *,
    seed: int = 1,
    only: Point | None = None,
    every: int = 1,
    modes: Sequence[Mode] = USUAL_MODES,
    ablations: Sequence[Ablation] = (),
    processes: int | None = None,
    server: ScratchServer | None = None,
    backend: Backend = ON_POSTGRES,
    progress: Progress = lambda what, done, total: None,
) -> Report:
    """Crashes every scenario at every crossing in these modes. Blocks; call it without an event loop or threads.

    `only` runs that one point and shows the children's output; `every` thins points out as described in `thinned`. The
    same seed takes the same steps. An ablation is tried if `modes` has its mode. `server` is never crashed: the modes
    that crash a server start their own. Raises Unavailable if a failover is among the modes and no standby can be
    created.
    """
    began_at = time.monotonic()
    _check(scenarios, only, ablations)
    count = processes or _cores()
    factory = _ExplorationFactory(scenarios, seed, server, backend, loud=only is not None)
    if only is not None:
        with factory.exploration_for(only.mode)(1) as exploration:
            found = exploration.results("point", [only], progress)
        return Report(seed, [], found, [], [only], 0, time.monotonic() - began_at)
    if set(FAILOVER) & set(modes):
        # Checked first: the other work takes minutes.
        replicating_installation()
    tried = [ablation for ablation in ablations if ablation.mode in modes]
    with factory.exploration(count) as exploration:
        recordings = exploration.recordings(progress)
        whole = [point for recording in recordings for point in plan(recording) if point.mode in modes]
        points = thinned(whole, every)
        results = exploration.results("points", _of(PROCESS_MODES, points), progress)
        caught = exploration.without(_of(PROCESS_MODES, tried), progress)
    for modes_there, what in (
        (SERVER_CRASH, "points with a crash of the server"),
        (FAILOVER, "points with a failover"),
    ):
        crashes, blind = _of(modes_there, points), _of(modes_there, tried)
        if crashes or blind:
            wanted = max(len(blind), -(-len(crashes) // POINTS_PER_SERVER))
            with factory.exploration_for(modes_there[0])(min(count, wanted)) as exploration:
                results += exploration.results(what, crashes, progress)
                caught += exploration.without(blind, progress)
    left_out = len(whole) - len(points)
    return Report(seed, recordings, results, caught, points, left_out, time.monotonic() - began_at)


def explore_without(
    ablations: Sequence[Ablation],
    scenarios: Sequence[Scenario],
    *,
    seed: int = 1,
    processes: int | None = None,
    server: ScratchServer | None = None,
    backend: Backend = ON_POSTGRES,
) -> list[AblationResult]:
    """Removes one safeguard after the other, and looks for the first damage in its scenario."""
    _check(scenarios, None, ablations)
    count = processes or _cores()
    factory = _ExplorationFactory(scenarios, seed, server, backend, loud=False)
    caught: dict[str, AblationResult] = {}
    for modes in (PROCESS_MODES, SERVER_CRASH, FAILOVER):
        if chosen := _of(modes, ablations):
            with factory.exploration_for(modes[0])(min(count, len(chosen))) as exploration:
                caught |= {each.name: each for each in exploration.without(chosen, lambda what, done, total: None)}
    return [caught[ablation.name] for ablation in ablations]


def plan(recording: Result) -> list[Point]:
    """Every crossing of a recorded run, in every mode that can reveal something there."""
    return [Point(recording.scenario, each.label, mode) for each in recording.crossings for mode in each.modes]


def thinned(points: Sequence[Point], every: int) -> list[Point]:
    """The first point of each site and mode, and every nth after it, so that every site keeps one."""
    met: Counter[tuple[str, Mode]] = Counter()
    kept = []
    for point in points:
        at = (point.label.site, point.mode)
        if met[at] % every == 0:
            kept.append(point)
        met[at] += 1
    return kept


_HasMode = TypeVar("_HasMode", Point, Ablation)
_Templates = Callable[[str], tuple[Scenario, DatabaseTemplate]]
"""By scenario name."""


def _of(modes: Sequence[Mode], these: Sequence[_HasMode]) -> list[_HasMode]:
    return [each for each in these if each.mode in modes]


@dataclass(frozen=True)
class _Driver:
    """One process that runs points, and its template databases."""

    explorer: Explorer
    templates: _Templates

    def run(self, scenario: str, point: Point | None, ablation: Ablation | None = None) -> Result:
        return self.explorer.run(*self.templates(scenario), point, None if ablation is None else ablation.apply)


@dataclass(frozen=True)
class _Exploration:
    """The state that every driver inherits from its parent."""

    scenarios: Sequence[Scenario]
    open_templates: Callable[[int], AbstractContextManager[_Templates]]
    """Called in a driver, with its number."""
    modes: Sequence[Mode]
    """The modes possible on these databases."""
    processes: int
    backend: Backend
    folder: Path
    seed: int
    loud: bool

    def recordings(self, progress: Progress) -> list[Result]:
        names = [scenario.name for scenario in self.scenarios]
        return self._each(
            "runs without a crash", len(names), progress, lambda driver, task: driver.run(names[task], None), Result
        )

    def results(self, what: str, points: Sequence[Point], progress: Progress) -> list[Result]:
        def strike(driver: _Driver, task: int) -> Result:
            return driver.run(points[task].scenario, points[task])

        return self._each(what, len(points), progress, strike, Result)

    def without(self, ablations: Sequence[Ablation], progress: Progress) -> list[AblationResult]:
        def ablate(driver: _Driver, task: int) -> AblationResult:
            return self._find_damage(driver, ablations[task])

        return self._each("safeguards removed", len(ablations), progress, ablate, AblationResult)

    def _find_damage(self, driver: _Driver, ablation: Ablation) -> AblationResult:
        """Runs points until the first violation that shows what the safeguard is for."""
        recording = driver.run(ablation.scenario, None, ablation)
        if damage := [each for each in recording.violations if each.kind in ablation.shows]:
            return AblationResult(ablation.name, WITHOUT_A_CRASH, damage[0], 0)
        points = _of(self.modes, plan(recording))
        points.sort(key=lambda point: (ablation.near not in point.label.site, point.mode is not ablation.mode))
        for tried, point in enumerate(points, start=1):
            result = driver.run(ablation.scenario, point, ablation)
            if damage := [each for each in result.violations if each.kind in ablation.shows]:
                return AblationResult(ablation.name, str(point), damage[0], tried)
        return AblationResult(ablation.name, None, None, len(points))

    def _each(
        self,
        what: str,
        tasks: int,
        progress: Progress,
        act: Callable[[_Driver, int], Answer],
        answer_type: type[Answer],
    ) -> list[Answer]:
        """The answers in the order of their tasks."""

        @contextmanager
        def open_work(number: int) -> Iterator[Work]:
            with self.open_templates(number) as templates:
                explorer = Explorer(self.seed, self.backend, self.backend.storage(self.folder), loud=self.loud)
                driver = _Driver(explorer, templates)
                yield lambda task: msgspec.msgpack.encode(act(driver, task))

        found: dict[int, Answer] = {}
        progress(what, 0, tasks)
        for task, answer in in_parallel(tasks, self.processes, open_work):
            found[task] = msgspec.msgpack.decode(answer, type=answer_type)
            progress(what, len(found), tasks)
        return [found[task] for task in range(tasks)]


def _cores() -> int:
    return min(PROCESSES_MAX, (os.cpu_count() or 1) + SPARE)


def _check(scenarios: Sequence[Scenario], only: Point | None, ablations: Sequence[Ablation]) -> None:
    names = [scenario.name for scenario in scenarios]
    if len(set(names)) != len(names):
        raise Invalid(f"two scenarios have the same name; the names are: {', '.join(sorted(names))}")
    for wanted in [*(ablation.scenario for ablation in ablations), *([only.scenario] if only is not None else [])]:
        if wanted not in names:
            raise Invalid(f"there is no scenario {wanted!r} here; known are: {', '.join(names)}")


@dataclass(frozen=True)
class _ExplorationFactory:
    """Opens explorations; all points of one begin from the same templates."""

    scenarios: Sequence[Scenario]
    seed: int
    server: ScratchServer | None
    backend: Backend
    loud: bool

    def exploration_for(self, mode: Mode) -> Callable[[int], AbstractContextManager[_Exploration]]:
        """The exploration in which this mode is possible."""
        if mode in FAILOVER:
            return self.failover_exploration
        return self.server_crash_exploration if mode in SERVER_CRASH else self.exploration

    @contextmanager
    def exploration(self, processes: int) -> Iterator[_Exploration]:
        with _server(self.server) as running, self._on([running], PROCESS_MODES, processes) as exploration:
            yield exploration

    @contextmanager
    def server_crash_exploration(self, processes: int) -> Iterator[_Exploration]:
        """One server per driver: a crash ends all sessions on it."""
        with crashable_servers(processes) as running, self._on(running, SERVER_CRASH, processes) as exploration:
            yield exploration

    @contextmanager
    def failover_exploration(self, processes: int) -> Iterator[_Exploration]:
        """One cluster per driver, created in it: the process that promotes a standby has to track its servers."""

        @contextmanager
        def open_templates(number: int) -> Iterator[_Templates]:
            scenarios = {each.name: each for each in self.scenarios}
            with failover_cluster(folder / str(number)) as cluster:
                yield cache(lambda name: (scenarios[name], prepare(cluster, self.backend, scenarios[name])))

        with folder_of_clusters() as folder, self._opened(open_templates, FAILOVER, processes) as exploration:
            yield exploration

    @contextmanager
    def _on(self, servers: Sequence[ScratchServer], modes: Sequence[Mode], processes: int) -> Iterator[_Exploration]:
        """One server per driver, or one for all."""
        templates: list[Mapping[str, tuple[Scenario, DatabaseTemplate]]] = [
            {each.name: (each, prepare(server, self.backend, each)) for each in self.scenarios} for server in servers
        ]
        with self._opened(
            lambda number: nullcontext(templates[number % len(templates)].__getitem__), modes, processes
        ) as exploration:
            yield exploration

    @contextmanager
    def _opened(
        self, open_templates: Callable[[int], AbstractContextManager[_Templates]], modes: Sequence[Mode], processes: int
    ) -> Iterator[_Exploration]:
        with tempfile.TemporaryDirectory(prefix="payonce-crash-") as folder:
            yield _Exploration(
                self.scenarios, open_templates, modes, processes, self.backend, Path(folder), self.seed, self.loud
            )


@contextmanager
def _server(given: ScratchServer | None) -> Iterator[ScratchServer]:
    if given is not None:
        yield given
        return
    servers = Servers(())
    try:
        yield servers.of()
    finally:
        servers.close()
