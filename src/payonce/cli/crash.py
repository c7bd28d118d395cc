"""`crash`: crash processes or their server at every point of every scenario; money must still move exactly once."""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from payonce.cli.errors import EXIT_FAILED, say_error
from payonce.cli.output import JsonOption, command_settings, note, show, table
from payonce.kit.outcomes import Invalid

if TYPE_CHECKING:
    from payonce.service import Service
    from payonce.testing.crash import Ablation, Backend, Progress, Report, Scenario

BACKENDS: Final = ("postgres", "redis")
VIOLATIONS_SHOWN: Final = 20
NOTE_EVERY_S: Final = 30.0
MODE_HELP: Final = (
    "Only these modes, repeatable: before, after, late, stopped, server-crash, failover. Default: all but failover. "
    "server-crash includes two modes: before and after the server executes the COMMIT. failover adds a third: the "
    "primary executes it and fails before its standby receives it."
)


def crash(
    scenarios: Annotated[list[str] | None, typer.Argument(metavar="[SCENARIO]...", help="Only these.")] = None,
    seed: Annotated[int, typer.Option(help="The same seed takes the same steps in the same order.")] = 1,
    ablations: Annotated[
        bool, typer.Option(help="Also remove each safeguard and check that its absence is detected.")
    ] = True,
    only: Annotated[
        str | None, typer.Option(metavar="POINT", help="Repeat one point of a report, with its log.")
    ] = None,
    every: Annotated[int, typer.Option(min=1, metavar="N", help="Crash at every Nth point of each site and mode.")] = 1,
    mode: Annotated[list[str] | None, typer.Option(help=MODE_HELP)] = None,
    processes: Annotated[int | None, typer.Option(min=1, max=8, help="Parallel explorers; default: cores + 1.")] = None,
    backend: Annotated[str, typer.Option(help="The queue backend to explore on.")] = BACKENDS[0],
    as_json: JsonOption = False,
) -> None:
    """Crash a process at every statement, commit and vendor call, in every mode, and compare both ledgers.

    Each point is a separate run with its own database and simulated vendors. One process is killed before it sends,
    after it sent, or with data still in transit, or it is stopped until others have finished. The others continue, and
    nothing may be lost, duplicated or stuck. In mode server-crash the database server crashes instead, before or after
    a COMMIT; it restarts, and other clients get the ids of lost transactions. In mode failover the primary of a cluster
    is killed, its synchronous standby is promoted, and the quarantine that follows is released; this needs a
    PostgreSQL with pg_basebackup. Uses private PostgreSQL servers, and with --backend redis private Redis servers;
    DATABASE_URL and REDIS_URL are not used. Long scenarios run only if they are named; an unknown name lists all.

    \b
    Examples:
      payonce crash --json
      payonce crash wire --no-ablations
      payonce crash --every 3
      payonce crash --mode server-crash --json
      payonce crash --mode failover --json
      payonce crash --backend redis
      payonce crash --only 'charge @ c-1 engine.messages.work:Work.commit #1 @ after'
    """
    from payonce.testing.crash import MovableScenario, explore, parse_modes, parse_point

    if backend not in BACKENDS:
        raise Invalid(f"there is no backend {backend!r}; there are: {', '.join(BACKENDS)}")
    modes = parse_modes(mode or ())
    point = None if only is None else parse_point(only)
    ground, known, ablated = _on(backend)
    chosen, services = _chosen(scenarios if point is None else [point.scenario], known)
    ground = _ground(backend, services) or ground
    names = {scenario.name for scenario in chosen}
    ablated = (*ablated, *(each for service in services for each in service.ablations()))
    taken_out = [each for each in ablated if ablations and point is None and each.scenario in names]
    if backend != BACKENDS[0]:
        chosen = [each.with_queues_in_redis() if isinstance(each, MovableScenario) else each for each in chosen]
    command_settings(quiet=point is None)
    with _progress_bar() as progress:
        report = explore(
            chosen,
            seed=seed,
            only=point,
            every=every,
            modes=modes,
            ablations=taken_out,
            processes=processes,
            backend=ground,
            progress=progress,
        )
    show(report.figures(), as_json, *_rendered(report))
    if not report.sound:
        _complain(report)
        raise typer.Exit(EXIT_FAILED)


def _on(backend: str) -> "tuple[Backend, Sequence[Scenario], Sequence[Ablation]]":
    """The backend, its scenarios, and the safeguards to remove."""
    from payonce.testing.crash import ABLATIONS, BUILT_IN, ON_POSTGRES

    if backend == ON_POSTGRES.name:
        return ON_POSTGRES, BUILT_IN, ABLATIONS
    from payonce.testing.crash.on_redis import OnRedis
    from payonce.testing.crash.redis_ablations import REDIS_ABLATIONS
    from payonce.testing.crash.scenarios import ON_REDIS_ALONE

    return OnRedis(), (*BUILT_IN, *ON_REDIS_ALONE), REDIS_ABLATIONS


def _chosen(names: Sequence[str] | None, built_in: "Sequence[Scenario]") -> "tuple[list[Scenario], list[Service]]":
    """The named scenarios, or all that run by default, and the services that declare them."""
    from payonce.app.registry import SERVICES

    known: dict[str, Scenario] = {scenario.name: scenario for scenario in built_in}
    declared = [(service, {scenario.name: scenario for scenario in service.scenarios()}) for service in SERVICES]
    for _, scenarios in declared:
        known.update(scenarios)
    for name in names or ():
        if name not in known:
            raise Invalid(f"there is no scenario {name!r}; known are: {', '.join(known)}")
    when_named = {name for service, scenarios in declared if service.explored_when_named for name in scenarios}
    chosen = dict.fromkeys(names or (name for name in known if name not in when_named))
    services = [service for service, scenarios in declared if chosen.keys() & scenarios.keys()]
    return [known[name] for name in chosen], services


def _ground(backend: str, services: "Sequence[Service]") -> "Backend | None":
    """The queue backend that one of these services requires; None if any will do."""
    needing = [service for service in services if service.crash_backend is not None]
    if len(needing) > 1:
        names = " and ".join(service.name for service in needing)
        raise Invalid(f"{names} need different queue backends; explore them separately")
    return needing[0].crash_backend(backend) if needing and needing[0].crash_backend else None


def _rendered(report: "Report") -> list[Any]:
    from payonce.testing.crash import Mode

    modes = tuple(mode for mode in Mode if any(mode in struck for struck in report.coverage().values()))
    sites = [(site, *(struck.get(mode, "·") for mode in modes)) for site, struck in report.coverage().items()]
    figures = report.figures()
    left_out = f" ({figures['left_out']} left out)" if figures["left_out"] else ""
    title = f"{figures['points']} points{left_out} at {figures['sites']} sites of {figures['scenarios']} scenarios"
    parts = [table(title, ("site", *modes), sites, right=modes)]
    if report.ablation_results:
        rows = [
            (each.name, each.at or "NOT DETECTED", "" if each.violation is None else each.violation.text)
            for each in report.ablation_results
        ]
        parts.append(table("Removed safeguards", ("without", "detected at", "because"), rows))
    if report.sound:
        parts.append(
            f"Nothing lost, nothing duplicated, both ledgers equal; {figures['seconds']} s, seed {report.seed}."
        )
    return parts


def _complain(report: "Report") -> None:
    from payonce.testing.crash.model import SEPARATOR

    for name, violation in report.violations[:VIOLATIONS_SHOWN]:
        say_error(f"{name}: {violation.kind}: {violation.text}")
        if SEPARATOR in name:
            note(f"  again: payonce crash --seed {report.seed} --only '{name}'")
    if (more := len(report.violations) - VIOLATIONS_SHOWN) > 0:
        note(f"  and {more} more violations")
    for each in report.ablation_results:
        if each.at is None:
            say_error(f"the absence of {each.name} was not detected at {each.tried} points")


def _periodic_notes() -> "Progress":
    """For a log: a line for each new step and every half minute."""
    last, said = "", 0.0

    def report_progress(what: str, done: int, total: int) -> None:
        nonlocal last, said
        if what != last or time.monotonic() - said >= NOTE_EVERY_S:
            last, said = what, time.monotonic()
            note(f"{what}: {done} of {total}")

    return report_progress


@contextmanager
def _progress_bar() -> "Iterator[Progress]":
    if not sys.stderr.isatty():
        yield _periodic_notes()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    # No refresh thread, which would be running while processes are forked.
    with Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=False) as bar:
        task = bar.add_task("")

        def report_progress(what: str, done: int, total: int) -> None:
            bar.update(task, description=what, completed=done, total=total, refresh=True)

        yield report_progress
