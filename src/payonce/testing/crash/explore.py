"""The whole exploration: a run without a crash, every crossing in every mode, and the same without safeguards."""

import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from payonce.kit.outcomes import Invalid
from payonce.testing.crash.ablations import Ablation
from payonce.testing.crash.backend import Backend
from payonce.testing.crash.drivers import Work, in_parallel
from payonce.testing.crash.ground import Ground, prepare
from payonce.testing.crash.model import Mode, Point, Result
from payonce.testing.crash.on_postgres import OnPostgres
from payonce.testing.crash.report import Caught, Report
from payonce.testing.crash.scenario import Scenario
from payonce.testing.crash.strike import Explorer
from payonce.testing.servers import ScratchServer, Servers

PROCESSES_MAX: Final = 8
SPARE: Final = 1
"""One more than there are cores: a run also waits, for sessions to end and databases to be copied."""
WITHOUT_A_CRASH: Final = "the run without a crash"

ON_POSTGRES: Final = OnPostgres()

Answer = TypeVar("Answer")

Progress = Callable[[str, int, int], None]
"""Told what is being done, how much of it is done, and how much there is."""


def explore(
    scenarios: Sequence[Scenario],
    *,
    seed: int = 1,
    only: Point | None = None,
    every: int = 1,
    ablations: Sequence[Ablation] = (),
    processes: int | None = None,
    server: ScratchServer | None = None,
    backend: Backend = ON_POSTGRES,
    progress: Progress = lambda what, done, total: None,
) -> Report:
    """Strikes every scenario at every crossing in every mode. Blocks; call it where no event loop and no thread runs.

    `only` runs that one point, with the children's own output shown; `every` leaves points out as `thinned` says. The
    same seed takes the same steps.
    """
    began_at = time.monotonic()
    _check(scenarios, only, ablations)
    with _hunt(scenarios, seed, server, backend, loud=only is not None) as hunt:
        count = processes or _cores()
        if only is not None:
            found = hunt.results("point", [only], 1, progress)
            return Report(seed, [], found, [], [only], 0, time.monotonic() - began_at)
        recordings = hunt.recordings(count, progress)
        whole = [point for recording in recordings for point in plan(recording)]
        points = thinned(whole, every)
        results = hunt.results("points", points, count, progress)
        caught = hunt.without(ablations, count, progress)
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
) -> list[Caught]:
    """Takes out one safeguard after the other, and looks in its scenario for the first damage."""
    _check(scenarios, None, ablations)
    with _hunt(scenarios, seed, server, backend, loud=False) as hunt:
        return hunt.without(ablations, processes or _cores(), lambda what, done, total: None)


def plan(recording: Result) -> list[Point]:
    """Every crossing of a recorded run in every mode that can show something there."""
    return [Point(recording.scenario, each.label, mode) for each in recording.crossings for mode in each.modes]


def thinned(points: Sequence[Point], every: int) -> list[Point]:
    """The first point of each site and mode, and every nth after it: no site is left without one."""
    met: Counter[tuple[str, Mode]] = Counter()
    kept = []
    for point in points:
        at = (point.label.site, point.mode)
        if met[at] % every == 0:
            kept.append(point)
        met[at] += 1
    return kept


class _Hunt:
    """What every driver takes along from its parent when it is forked."""

    def __init__(
        self, grounds: Sequence[tuple[Scenario, Ground]], backend: Backend, folder: Path, seed: int, *, loud: bool
    ) -> None:
        self._by_name = {scenario.name: (scenario, ground) for scenario, ground in grounds}
        self._backend = backend
        self._folder = folder
        self._seed = seed
        self._loud = loud

    def recordings(self, processes: int, progress: Progress) -> list[Result]:
        names = list(self._by_name)

        def record(explorer: Explorer, task: int) -> Result:
            return explorer.run(*self._by_name[names[task]], None)

        return self._each("runs without a crash", len(names), processes, progress, record, Result)

    def results(self, what: str, points: Sequence[Point], processes: int, progress: Progress) -> list[Result]:
        def strike(explorer: Explorer, task: int) -> Result:
            return explorer.run(*self._by_name[points[task].scenario], points[task])

        return self._each(what, len(points), processes, progress, strike, Result)

    def without(self, ablations: Sequence[Ablation], processes: int, progress: Progress) -> list[Caught]:
        def ablate(explorer: Explorer, task: int) -> Caught:
            return self._look_for_damage(explorer, ablations[task])

        return self._each("safeguards taken out", len(ablations), processes, progress, ablate, Caught)

    def _look_for_damage(self, explorer: Explorer, ablation: Ablation) -> Caught:
        """Until the first violation that shows what the safeguard is for."""
        scenario, ground = self._by_name[ablation.scenario]
        recording = explorer.run(scenario, ground, None, ablation.apply)
        if damage := [each for each in recording.violations if each.kind in ablation.shows]:
            return Caught(ablation.name, WITHOUT_A_CRASH, damage[0], 0)
        points = plan(recording)
        points.sort(key=lambda point: (ablation.near not in point.label.site, point.mode is not ablation.mode))
        for tried, point in enumerate(points, start=1):
            result = explorer.run(scenario, ground, point, ablation.apply)
            if damage := [each for each in result.violations if each.kind in ablation.shows]:
                return Caught(ablation.name, str(point), damage[0], tried)
        return Caught(ablation.name, None, None, len(points))

    def _each(
        self,
        what: str,
        tasks: int,
        processes: int,
        progress: Progress,
        act: Callable[[Explorer, int], Answer],
        answer_type: type[Answer],
    ) -> list[Answer]:
        """The answers in the order of their tasks, whoever gave them first."""

        def open_work() -> Work:
            explorer = Explorer(self._seed, self._backend, self._backend.place(self._folder), loud=self._loud)
            return lambda task: msgspec.msgpack.encode(act(explorer, task))

        found: dict[int, Answer] = {}
        progress(what, 0, tasks)
        for task, answer in in_parallel(tasks, processes, open_work):
            found[task] = msgspec.msgpack.decode(answer, type=answer_type)
            progress(what, len(found), tasks)
        return [found[task] for task in range(tasks)]


def _cores() -> int:
    return min(PROCESSES_MAX, (os.cpu_count() or 1) + SPARE)


def _check(scenarios: Sequence[Scenario], only: Point | None, ablations: Sequence[Ablation]) -> None:
    names = [scenario.name for scenario in scenarios]
    if len(set(names)) != len(names):
        raise Invalid(f"two scenarios have one name; they are: {', '.join(sorted(names))}")
    for wanted in [*(ablation.scenario for ablation in ablations), *([only.scenario] if only is not None else [])]:
        if wanted not in names:
            raise Invalid(f"there is no scenario {wanted!r} here; known are: {', '.join(names)}")


@contextmanager
def _hunt(
    scenarios: Sequence[Scenario], seed: int, server: ScratchServer | None, backend: Backend, *, loud: bool
) -> Iterator[_Hunt]:
    with _server(server) as running, tempfile.TemporaryDirectory(prefix="payonce-crash-") as folder:
        grounds = [(scenario, prepare(running, backend, scenario)) for scenario in scenarios]
        yield _Hunt(grounds, backend, Path(folder), seed, loud=loud)


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
