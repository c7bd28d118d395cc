"""How commands speak: tables for people, with --json one object on the last line of stdout and nothing else there."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from payonce.app.process import App
    from payonce.settings import Settings

Result = TypeVar("Result")

JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON object on the last line of stdout, and nothing else there.")
]
YesOption = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]

PLAIN_WIDTH: Final = 160
"""Of tables that do not go to a terminal: a pipe has no edge to wrap at."""


def run_async(main: Coroutine[Any, Any, Result], loop_factory: Callable[[], Any] | None = None) -> Result:
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        return runner.run(main)


def loop_factory() -> Any:
    """The quicker event loop, where it is installed."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def command_settings(*, quiet: bool = True) -> "Settings":
    """The settings, with the log set up by them. Commands that only ask are quiet."""
    from payonce.app.logging import configure_logs
    from payonce.settings import load_settings

    settings = load_settings()
    configure_logs(settings.log, quiet=quiet, emoji=settings.log_emoji, severity=settings.log_severity)
    return settings


@asynccontextmanager
async def open_app() -> AsyncIterator["App"]:
    """The application without roles: for looking and steering."""
    from payonce.app.process import App

    async with App.open(command_settings()) as app:
        yield app


def show(result: Mapping[str, Any], as_json: bool, *rendered: "RenderableType") -> None:
    """The result: as JSON, or as what was rendered for people."""
    if as_json:
        import msgspec

        sys.stdout.write(msgspec.json.encode(result).decode() + "\n")
        sys.stdout.flush()
        return
    console = rich_console()
    for part in rendered:
        console.print(part)


def note(text: str) -> None:
    """A word beside the result, never part of it."""
    print(text, file=sys.stderr, flush=True)


def rich_console() -> "Console":
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else PLAIN_WIDTH, highlight=False)


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], right: Sequence[str] = ()) -> Any:
    from rich.markup import escape
    from rich.table import Table

    built = Table(title=title, title_justify="left")
    for column in columns:
        built.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        # What a vendor or a payload says must not be read as markup.
        built.add_row(*(escape(plain(cell)) for cell in row))
    return built


def plain(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, datetime):
        return value.isoformat(sep=" ", timespec="seconds")
    if isinstance(value, float):
        return f"{value:,.1f}"
    if isinstance(value, int):
        return f"{value:,}"
    return str(value)
