"""Public: what the demonstrations of services are written with.

It has an application on a throw-away database, and worker processes that are killed and stopped while they work. A name
is imported when it is used.
"""

from typing import TYPE_CHECKING, Final

from payonce.kit.lazy import lazy_names

if TYPE_CHECKING:
    from payonce.app.addresses import Addresses
    from payonce.app.process import App
    from payonce.cli.demo.disruption import (
        DisruptedRun,
        Workload,
        environment_of,
        log_file,
        progress_bar,
        run_workload,
        scratch_app,
        too_few_kills,
    )
    from payonce.cli.demo.fleet import Fleet
    from payonce.cli.demo.process_pool import Disruption, ProcessPool
    from payonce.cli.output import note, table

_HOMES: Final = {
    "payonce.app.addresses": "Addresses",
    "payonce.app.process": "App",
    "payonce.cli.demo.disruption": (
        "DisruptedRun Workload environment_of log_file progress_bar run_workload scratch_app too_few_kills"
    ),
    "payonce.cli.demo.fleet": "Fleet",
    "payonce.cli.demo.process_pool": "Disruption ProcessPool",
    "payonce.cli.output": "note table",
}
"""The public names by the modules that define them; a module is imported when one of its names is used."""

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(__name__, _HOMES)

__all__ = [
    "Addresses",
    "App",
    "DisruptedRun",
    "Disruption",
    "Fleet",
    "ProcessPool",
    "Workload",
    "environment_of",
    "log_file",
    "note",
    "progress_bar",
    "run_workload",
    "scratch_app",
    "table",
    "too_few_kills",
]
