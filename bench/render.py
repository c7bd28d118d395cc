"""The report as tables for a terminal. Absolute figures of shared machines mislead; the ratio columns do not."""

from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bench.peers import OUR_SYSTEMS, OURS
from bench.report import Report, Row, TransactionalRow


def render(report: Report) -> RenderableType:
    parts: list[RenderableType] = [
        _queues(backend, [row for row in report.rows if row.backend == backend], report.conditions)
        for backend in report.ratios
    ]
    parts.append(_ratios(report))
    if report.transactional:
        parts.append(_transactional(report.transactional))
    if report.scaling:
        parts.append(_scaling(report.scaling))
    for row in report.rows:
        parts += [
            Text(f"{row.backend}: {row.system}: {name}: {text}", style="dim") for name, text in row.settings.items()
        ]
    parts += [Text(sentence, style="yellow") for sentence in report.skipped]
    parts += [Text(sentence, style="red") for sentence in report.errors]
    parts.append(Text(", ".join(f"{name} {value}" for name, value in report.conditions.items()), style="dim"))
    return Group(*parts)


_QUEUE_COLUMNS = (
    "drain/s",
    "×",
    "bulk/s",
    "×",
    "single/s",
    "idle p50 ms",
    "×",
    "p99 ms",
    "pickup s",
    "lease s",
    "rss MB",
)


def _queues(backend: str, rows: Sequence[Row], conditions: Mapping[str, str]) -> Table:
    table = Table(title=f"Queues on {backend}: no-op handler, one worker process", title_justify="left")
    table.add_column("system")
    for name in _QUEUE_COLUMNS:
        table.add_column(name, justify="right")
    ours = next((row for row in rows if row.system == OURS), None)
    # The wait ended there; whether such a job is ever picked up is unknown.
    never = f"> {conditions['pickup_limit_s']}" if "pickup_limit_s" in conditions else "–"
    for row in rows:
        table.add_row(
            f"{row.system} {row.version}",
            _whole(row.drain_per_s),
            _against(ours.drain_per_s if ours else None, row.drain_per_s),
            _whole(row.bulk_per_s),
            _against(ours.bulk_per_s if ours else None, row.bulk_per_s),
            _whole(row.enqueue_per_s),
            _fine(row.idle_p50_ms),
            _against(ours.idle_p50_ms if ours else None, row.idle_p50_ms),
            _fine(row.idle_p99_ms),
            never if row.pickup_s is None else _fine(row.pickup_s),
            _fine(row.lease_s),
            _whole(row.rss_mb),
            style="bold" if row.system in OUR_SYSTEMS else None,
        )
    table.caption = "× is ours divided by this row's (idle: below 1 is faster)"
    return table


def _ratios(report: Report) -> Table:
    table = Table(title="Ours / best peer", title_justify="left")
    for name in ("backend", "figure", "ratio"):
        table.add_column(name)
    for backend, figures in report.ratios.items():
        for figure, ratio in figures.items():
            table.add_row(backend, figure, _fine(ratio))
    return table


def _transactional(rows: Sequence[TransactionalRow]) -> Table:
    table = Table(title="Transactional handler: one business row written, the job acknowledged", title_justify="left")
    table.add_column("backend")
    table.add_column("system")
    table.add_column("one commit")
    table.add_column("jobs/s", justify="right")
    table.add_column("×", justify="right")
    table.add_column("how")
    for row in rows:
        ours = next(
            (one.per_s for one in rows if one.backend == row.backend and one.system in OUR_SYSTEMS and one.atomic), None
        )
        one_commit = "yes" if row.atomic else "no"
        table.add_row(row.backend, row.system, one_commit, _whole(row.per_s), _against(ours, row.per_s), row.how)
    return table


def _scaling(scaling: dict[str, float | None]) -> Table:
    table = Table(title="payonce under load", title_justify="left")
    table.add_column("measure")
    table.add_column("value", justify="right")
    for name, value in scaling.items():
        table.add_row(name, _fine(value))
    return table


def _whole(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


def _fine(value: float | None) -> str:
    return "–" if value is None else f"{value:,.2f}"


def _against(ours: float | None, other: float | None) -> str:
    return "–" if ours is None or not other else f"{ours / other:.2f}"
