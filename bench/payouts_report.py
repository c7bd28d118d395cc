"""The payout figures as tables."""

from rich.console import Group
from rich.table import Table

from bench.payouts import Measured, Report
from bench.tables import costs, hops


def rendered(report: Report) -> Group:
    everything = (*report.rows, report.limited)
    return Group(
        _rates(everything),
        *(costs(f"CPU for one payout, {row.layout}", row.cpu_ms) for row in report.rows),
        *(hops(f"Latency of each hop, {row.layout}", row.hops) for row in report.rows),
    )


def _rates(rows: tuple[Measured, ...]) -> Table:
    table = Table(title="Payouts through all hops", title_justify="left")
    for name in (
        "roles",
        "payouts",
        "seconds",
        "payouts/s",
        "sustained/s",
        "intake p50/p99 ms",
        "vendor calls",
        "most in a second",
        "turned away",
    ):
        table.add_column(name, justify="left" if name == "roles" else "right")
    for row in rows:
        table.add_row(
            row.layout,
            f"{row.payouts:,}",
            f"{row.seconds:.1f}",
            f"{row.per_s:,.1f}",
            f"{row.sustained_per_s:,.1f}",
            f"{row.intake_p50_ms:.1f} / {row.intake_p99_ms:.1f}",
            f"{row.vendor_requests:,}",
            str(row.vendor_peak_per_s),
            str(row.vendor_turned_away),
        )
    return table
