"""`bench`: measure against other systems on this machine."""

from typing import Annotated, Final, Literal

import typer

from payonce.cli.errors import EXIT_FAILED
from payonce.cli.output import JsonOption, command_settings, note, people, run_async, show, table

HELP: Final = """Measure on this machine: queues against other systems, in one interleaved run, and the books.

\b
Examples:
  payonce bench queues --backend postgres --quick
  payonce bench queues --backend redis --durability always
  payonce bench ledger --seconds 10
"""

commands = typer.Typer(help=HELP, no_args_is_help=True, rich_markup_mode=None)


@commands.command("queues")
def queues(
    backend: Annotated[str, typer.Option(help="What to measure on: postgres, redis, or both in turn.")] = "both",
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes and one round: to see that it works.")] = False,
    system: Annotated[list[str] | None, typer.Option("--system", help="Only this one; may be repeated.")] = None,
    durability: Annotated[
        Literal["everysec", "always"], typer.Option(help="How often Redis forces its log to the disk.")
    ] = "everysec",
    as_json: JsonOption = False,
) -> None:
    """Drain, enqueue, idle latency and pick-up after kill -9, for us and for the systems that are installed.

    Runs on databases of its own on the private server, and on Redis servers of its own; DATABASE_URL and REDIS_URL are
    not used.
    """
    from payonce import embedded
    from payonce.bench.queues import Servers, choose, render, run

    choose(backend, system)
    folder = command_settings().server_dir
    server = embedded.start(folder)
    servers = Servers(server.superuser_url, folder.parent, durability)
    report = run(backend, quick, system, servers, note)
    if as_json:
        import msgspec

        print(msgspec.json.encode(report).decode(), flush=True)
    else:
        people().print(render(report))
    if report.errors:
        raise typer.Exit(EXIT_FAILED)


@commands.command("ledger")
def ledger(
    seconds: Annotated[float, typer.Option(min=0.1, max=600, help="How long to post.")] = 10.0,
    connections: Annotated[int, typer.Option(min=1, max=100, help="How many post at once.")] = 24,
    as_json: JsonOption = False,
) -> None:
    """Postings a second into one hot account, each in a commit of its own, on a throw-away database.

    On the private server, with its durability; the books are audited at the end.
    """
    figures = run_async(_measure_ledger(seconds, connections))
    rows = [(name, f"{figure:,.0f}") for name, figure in figures.items()]
    show(figures, as_json, table("One hot account", ("figure", ""), rows, right=("",)))


async def _measure_ledger(seconds: float, connections: int) -> dict[str, float]:
    import asyncio

    from payonce.app import migrate_database
    from payonce.bench.ledger import run
    from payonce.cli.scratch import scratch_database

    async with scratch_database(command_settings()) as addresses:
        await migrate_database(addresses)
        return await asyncio.to_thread(run, addresses.service, seconds, connections)
