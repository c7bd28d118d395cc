"""The billing figures as tables."""

from rich.console import Group
from rich.table import Table

from bench.billing import Report
from bench.tables import costs, hops


def rendered(report: Report) -> Group:
    return Group(
        _rates(report),
        *(costs(f"CPU for one renewal, {row.layout}", row.cpu_ms) for row in report.renewals),
        *(hops(f"Latency of each queue, {row.layout}", row.hops) for row in report.renewals),
        _usage(report),
    )


def _rates(report: Report) -> Table:
    table = Table(title="Renewals, from due to paid", title_justify="left")
    for name in ("roles", "renewals", "seconds", "renewals/s", "told at once"):
        table.add_column(name, justify="left" if name == "roles" else "right")
    for row in report.renewals:
        table.add_row(row.layout, f"{row.renewals:,}", f"{row.seconds:.1f}", f"{row.per_s:,.1f}", f"{row.at_once:,}")
    return table


def _usage(report: Report) -> Group:
    table = Table(title="Usage events over HTTP", title_justify="left")
    for name in ("accounts", "events", "events/s", "p50 ms", "p99 ms"):
        table.add_column(name, justify="left" if name == "accounts" else "right")
    for row in report.usage:
        table.add_row(row.layout, f"{row.events:,}", f"{row.per_s:,.1f}", f"{row.p50_ms:.1f}", f"{row.p99_ms:.1f}")
    return Group(table, *(costs(f"CPU for one event, {row.layout}", row.cpu_ms) for row in report.usage))
