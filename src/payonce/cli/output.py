"""Output of commands: tables, or with --json one object as the only line on stdout."""

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

JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object on stdout.")]
YesOption = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]

PLAIN_WIDTH: Final = 160
"""Of tables that are not printed to a terminal."""


def run_async(main: Coroutine[Any, Any, Result], loop_factory: Callable[[], Any] | None = None) -> Result:
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        return runner.run(main)


def loop_factory() -> Any:
    """uvloop, if it is installed."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def command_settings(*, quiet: bool = True) -> "Settings":
    """Loads the settings and configures the log; `quiet` logs warnings only."""
    from payonce.app.logging import configure_logs
    from payonce.settings import load_settings

    settings = load_settings()
    configure_logs(settings.log, quiet=quiet, emoji=settings.log_emoji, severity=settings.log_severity)
    return settings


@asynccontextmanager
async def open_app() -> AsyncIterator["App"]:
    """The application without roles, to inspect and control it."""
    from payonce.app.process import App

    async with App.open(command_settings()) as app:
        yield app


def show(result: Mapping[str, Any], as_json: bool, *rendered: "RenderableType") -> None:
    """Prints the result as JSON, or the rendered parts."""
    if as_json:
        import msgspec

        sys.stdout.write(msgspec.json.encode(result).decode() + "\n")
        sys.stdout.flush()
        return
    console = rich_console()
    for part in rendered:
        console.print(part)


def note(text: str) -> None:
    """Prints a remark to stderr, apart from the result."""
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
        # Text of vendors and payloads must not be parsed as markup.
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
