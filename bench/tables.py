"""Tables shared by the reports of several services."""

from collections.abc import Mapping

from rich.table import Table

from bench.hops import Latency


def costs(title: str, cpu_ms: Mapping[str, float]) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("process")
    table.add_column("ms", justify="right")
    for name, spent_ms in cpu_ms.items():
        table.add_row(name, f"{spent_ms:.2f}")
    table.add_row("all", f"{sum(cpu_ms.values()):.2f}")
    return table


def hops(title: str, by_queue: Mapping[str, Latency]) -> Table:
    table = Table(title=title, title_justify="left")
    for name in ("queue", "way p50 ms", "way p99 ms", "run p50 ms", "run p99 ms", "runs"):
        table.add_column(name, justify="left" if name == "queue" else "right")
    for queue, each in by_queue.items():
        table.add_row(
            queue,
            f"{each.way_p50_ms:.1f}",
            f"{each.way_p99_ms:.1f}",
            f"{each.run_p50_ms:.1f}",
            f"{each.run_p99_ms:.1f}",
            f"{each.runs:,}",
        )
    return table
