"""`bench`: measure against other systems on this machine."""

from typing import Annotated, Final

import typer

from payonce.cli.errors import EXIT_FAILED
from payonce.cli.output import JsonOption, command_settings, note, people

HELP: Final = """Measure against other systems, in one interleaved run; only the ratios count.

Example: payonce bench queues --backend postgres --quick
"""

commands = typer.Typer(help=HELP, no_args_is_help=True, rich_markup_mode=None)


@commands.callback()
def group() -> None:
    # Keeps `queues` a word of its own while it is the only benchmark.
    pass


@commands.command("queues")
def queues(
    backend: Annotated[str, typer.Option(help="Which backend to measure on.")] = "postgres",
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes and one round: to see that it works.")] = False,
    system: Annotated[list[str] | None, typer.Option("--system", help="Only this one; may be repeated.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Drain, enqueue, idle latency and pick-up after kill -9, for us and for the systems that are installed.

    Runs on databases of its own on the private server; DATABASE_URL is not used.
    """
    from payonce import embedded
    from payonce.bench.queues import render, run

    server = embedded.start(command_settings().server_dir)
    report = run(backend, quick, system, server.superuser_url, note)
    if as_json:
        import msgspec

        print(msgspec.json.encode(report).decode(), flush=True)
    else:
        people().print(render(report))
    if report.errors:
        raise typer.Exit(EXIT_FAILED)
