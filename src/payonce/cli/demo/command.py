"""`demo`: workers that are killed again and again while they work; the result is audited."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from payonce.cli.errors import EXIT_FAILED, say_error
from payonce.cli.mounts import with_options
from payonce.cli.output import JsonOption, command_settings, loop_factory, note, run_async, show
from payonce.kit.outcomes import Invalid

if TYPE_CHECKING:
    from payonce.service import Demo

SUMMARY: Final = (
    "See that killed workers and faulty banks lose no money, on a temporary database of the private PostgreSQL."
)
HELP: Final = """{summary}

{demos}

Progress is printed to stderr. The exit code is 0 if every check passes; otherwise the failures are listed, and the log
of the processes is kept.

Example: payonce demo {name} --seed 7 --json
"""


def demonstrations() -> dict[str, "Demo"]:
    """The demonstrations of every service by name, the default one first."""
    from payonce.app.registry import SERVICES

    found = [demo for service in SERVICES for demo in service.demos]
    return {demo.name: demo for demo in sorted(found, key=lambda demo: not demo.is_default)}


def build_demo() -> Callable[..., None]:
    """Builds the command with the options of every demonstration."""
    demos = demonstrations()
    default = next(iter(demos), "")
    size_flags = [demo.size_flag for demo in demos.values() if demo.size_flag is not None]

    def demo(
        name: Annotated[str, typer.Argument(help=f"Which one; there are: {', '.join(demos)}.")] = default,
        seed: Annotated[int, typer.Option(help="The same seed gives the same faults and disruptions.")] = 1,
        size: Annotated[int | None, typer.Option("--size", *size_flags, hidden=True, min=100, max=100_000)] = None,
        as_json: JsonOption = False,
        **options: Any,
    ) -> None:
        given = {option: value for option, value in options.items() if value is not None}
        _run(_chosen(demos, name, given), seed, size, given, as_json)

    options = [
        replace(option, help=f"Of {each.name}: {option.help}") for each in demos.values() for option in each.options
    ]
    paragraphs = "\n\n".join(f"{each.name}: {each.help}" for each in demos.values())
    return with_options(demo, options, HELP.format(summary=SUMMARY, demos=paragraphs, name=default))


def _chosen(demos: Mapping[str, "Demo"], name: str, given: Mapping[str, Any]) -> "Demo":
    if name not in demos:
        raise Invalid(f"there is no demonstration {name!r}; there are: {', '.join(demos)}")
    for other in demos.values():
        if other.name != name and given.keys() & {option.name for option in other.options}:
            flags = " and ".join(option.flag for option in other.options)
            are, them = ("is", "it") if len(other.options) == 1 else ("are", "them")
            raise Invalid(f"{flags} {are} of the demonstration {other.name}; leave {them} out")
    return demos[name]


def _run(demo: "Demo", seed: int, size: int | None, given: Mapping[str, Any], as_json: bool) -> None:
    report = run_async(demo.run(command_settings(), seed, size, **given), loop_factory())
    show(report.figures(), as_json, report.rendered())
    complaints = report.complaints()
    for sentence in complaints:
        say_error(sentence)
    if complaints:
        note(f"the workers' log is kept: {report.log_path}")
        raise typer.Exit(EXIT_FAILED)
    report.log_path.unlink(missing_ok=True)
