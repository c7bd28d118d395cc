"""Public: what the demonstrations of services are written with.

It has an application on a throw-away database, and worker processes that are killed and stopped while they work. A name
is imported when it is used.
"""

from typing import TYPE_CHECKING, Final

from payonce.kit.lazy import lazy_names

if TYPE_CHECKING:
    from payonce.app.process import Addresses, App
    from payonce.cli.crew import Blow, Crew
    from payonce.cli.demo.disturb import (
        Disturbed,
        Job,
        environment_of,
        log_file,
        progress_bar,
        throw_away_app,
        too_few_kills,
        work_through,
    )
    from payonce.cli.demo.fleet import Fleet
    from payonce.cli.output import note, table

_HOMES: Final = {
    "payonce.app.process": "Addresses App",
    "payonce.cli.crew": "Blow Crew",
    "payonce.cli.demo.disturb": (
        "Disturbed Job environment_of log_file progress_bar throw_away_app too_few_kills work_through"
    ),
    "payonce.cli.demo.fleet": "Fleet",
    "payonce.cli.output": "note table",
}
"""The public names by the modules that define them; a module is imported when one of its names is used."""

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(__name__, _HOMES)

__all__ = [
    "Addresses",
    "App",
    "Blow",
    "Crew",
    "Disturbed",
    "Fleet",
    "Job",
    "environment_of",
    "log_file",
    "note",
    "progress_bar",
    "table",
    "throw_away_app",
    "too_few_kills",
    "work_through",
]
