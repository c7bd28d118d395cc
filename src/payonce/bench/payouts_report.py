"""The figures of payouts, as people read them."""

from rich.console import Group
from rich.table import Table

from payonce.bench.payouts import Measured, Report


def rendered(report: Report) -> Group:
    everything = (*report.rows, report.limited)
    return Group(_rates(everything), *(_costs(row) for row in report.rows), *(_hops(row) for row in report.rows))


def _rates(rows: tuple[Measured, ...]) -> Table:
    table = Table(title="Payouts through all hops", title_justify="left")
    for name in ("roles", "payouts", "seconds", "payouts/s", "intake p50/p99 ms", "vendor calls", "most in a second",
                 "turned away"):  # fmt: skip
        table.add_column(name, justify="left" if name == "roles" else "right")
    for row in rows:
        table.add_row(
            row.layout, f"{row.payouts:,}", f"{row.seconds:.1f}", f"{row.per_s:,.1f}",
            f"{row.intake_p50_ms:.1f} / {row.intake_p99_ms:.1f}", f"{row.vendor_requests:,}",
            str(row.vendor_peak_per_s), str(row.vendor_turned_away),
        )  # fmt: skip
    return table


def _costs(row: Measured) -> Table:
    table = Table(title=f"CPU for one payout, {row.layout}", title_justify="left")
    table.add_column("process")
    table.add_column("ms", justify="right")
    for name, spent_ms in row.cpu_ms.items():
        table.add_row(name, f"{spent_ms:.2f}")
    table.add_row("all", f"{sum(row.cpu_ms.values()):.2f}")
    return table


def _hops(row: Measured) -> Table:
    table = Table(title=f"Latency of each hop, {row.layout}", title_justify="left")
    for name in ("queue", "way p50 ms", "way p99 ms", "run p50 ms", "run p99 ms", "runs"):
        table.add_column(name, justify="left" if name == "queue" else "right")
    for queue, each in row.hops.items():
        table.add_row(
            queue, f"{each.way_p50_ms:.1f}", f"{each.way_p99_ms:.1f}", f"{each.run_p50_ms:.1f}",
            f"{each.run_p99_ms:.1f}", f"{each.runs:,}",
        )  # fmt: skip
    return table
