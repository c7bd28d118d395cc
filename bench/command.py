"""`./dev bench`: benchmarks against other systems on this machine."""

import sys
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from payonce.cli import application
from payonce.cli.errors import EXIT_FAILED
from payonce.cli.output import JsonOption, command_settings, loop_factory, note, rich_console, run_async, show, table

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractAsyncContextManager

    from bench import billing as of_billing
    from bench.payouts import Report, Sizes
    from payonce.settings import Settings

HELP: Final = """Measure on this machine: queues against other systems, in one interleaved run, and the ledger.

\b
Examples:
  ./dev bench queues --backend postgres --quick
  ./dev bench queues --backend redis --durability always
  ./dev bench ledger --seconds 10
  ./dev bench ledger --seconds 5 --sealing-rounds 5
  ./dev bench payouts --quick
  ./dev bench billing --quick
"""

commands = typer.Typer(help=HELP, no_args_is_help=True, rich_markup_mode=None)


@commands.command("queues")
def queues(
    backend: Annotated[str, typer.Option(help="What to measure on: postgres, redis, or both in turn.")] = "both",
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes and one round, to check that it works.")] = False,
    system: Annotated[list[str] | None, typer.Option("--system", help="Only this one; may be repeated.")] = None,
    durability: Annotated[
        Literal["everysec", "always"], typer.Option(help="How often Redis syncs its log to disk.")
    ] = "everysec",
    as_json: JsonOption = False,
) -> None:
    """Drain, enqueue, idle latency and pick-up after kill -9, for payonce and the installed systems.

    Uses its own databases on the private server, and its own Redis servers; DATABASE_URL and REDIS_URL are not used.
    """
    from bench.queues import Servers, choose, render, run
    from payonce import embedded

    choose(backend, system)
    folder = command_settings().server_dir
    server = embedded.start(folder)
    servers = Servers(server.superuser_url, folder.parent, durability)
    report = run(backend, quick, system, servers, note)
    if as_json:
        import msgspec

        print(msgspec.json.encode(report).decode(), flush=True)
    else:
        rich_console().print(render(report))
    if report.errors:
        raise typer.Exit(EXIT_FAILED)


@commands.command("ledger")
def ledger(
    seconds: Annotated[float, typer.Option(min=0.1, max=600, help="How long to post.")] = 10.0,
    connections: Annotated[int, typer.Option(min=1, max=100, help="Number of concurrent connections.")] = 24,
    sealing_rounds: Annotated[
        int, typer.Option(min=0, max=100, help="Rounds of comparison with and without sealing.")
    ] = 0,
    as_json: JsonOption = False,
) -> None:
    """Postings per second into one hot account, each in its own commit, on a temporary database.

    On the private server, with its durability; the ledger is audited at the end.
    """
    figures = run_async(_measure_ledger(seconds, connections, sealing_rounds))
    rows = [(name, f"{figure:,.0f}") for name, figure in figures.items()]
    show(figures, as_json, table("One hot account", ("figure", ""), rows, right=("",)))


async def _measure_ledger(seconds: float, connections: int, sealing_rounds: int) -> dict[str, float]:
    import asyncio

    from bench import ledger, ledger_seals
    from payonce.app.process import migrate_database
    from payonce.cli.scratch import scratch_database

    async with scratch_database(command_settings()) as addresses:
        await migrate_database(addresses)
        if sealing_rounds:
            return await asyncio.to_thread(ledger_seals.run, addresses.service, seconds, sealing_rounds, connections)
        return await asyncio.to_thread(ledger.run, addresses.service, seconds, connections)


@commands.command("payouts")
def payouts(
    quick: Annotated[bool, typer.Option("--quick", help="Few payouts, to check that it works.")] = False,
    count: Annotated[int | None, typer.Option("--payouts", min=10, max=1_000_000, help="How many.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Payouts per second from webhook to client, through four roles and a Cloud Tasks server, and the cost of each hop.

    Exchange and chain are simulated, without faults; first without a limit, then with the vendor's 30 requests per
    second, which are never exceeded by the vendor's own log. On a temporary database of the private server.
    """
    from bench.payouts import QUICK, Sizes
    from bench.payouts_report import rendered

    sizes = QUICK if quick else Sizes()
    if count is not None:
        sizes = Sizes(payouts=count, limited=sizes.limited)
    report = run_async(_measure_payouts(sizes), loop_factory())
    if as_json:
        import msgspec

        print(msgspec.json.encode(report).decode(), flush=True)
    else:
        rich_console().print(rendered(report))
    if not report.rate_kept:
        raise typer.Exit(EXIT_FAILED)


async def _measure_payouts(sizes: "Sizes") -> "Report":
    import asyncio

    from bench.payouts import run
    from payonce import embedded

    settings = command_settings()
    server = await asyncio.to_thread(embedded.start, settings.server_dir)
    return await run(lambda: _migrated(settings), server.superuser_url, sizes, note)


@commands.command("billing")
def billing(
    quick: Annotated[bool, typer.Option("--quick", help="Few renewals, to check that it works.")] = False,
    count: Annotated[int | None, typer.Option("--renewals", min=10, max=100_000, help="How many.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Renewals per second from due to paid, through both services, webhook and gateway; and usage events per second.

    The gateway is simulated, without faults and limits; by its records every renewal must have been captured once. On
    temporary databases of the private server.
    """
    from bench.billing import QUICK, Sizes
    from bench.billing_report import rendered

    sizes = QUICK if quick else Sizes()
    if count is not None:
        sizes = Sizes(renewals=count, usage=sizes.usage)
    report = run_async(_measure_billing(sizes), loop_factory())
    if as_json:
        import msgspec

        print(msgspec.json.encode(report).decode(), flush=True)
    else:
        rich_console().print(rendered(report))


async def _measure_billing(sizes: "of_billing.Sizes") -> "of_billing.Report":
    import asyncio

    from bench.billing import run
    from payonce import embedded

    settings = command_settings()
    server = await asyncio.to_thread(embedded.start, settings.server_dir)
    return await run(lambda: _migrated(settings), server.superuser_url, sizes, note)


def _migrated(settings: "Settings") -> "AbstractAsyncContextManager[str]":
    """An empty, migrated database, dropped at the end."""
    from contextlib import asynccontextmanager

    from payonce.app.process import migrate_database
    from payonce.cli.scratch import scratch_database

    @asynccontextmanager
    async def lend() -> "AsyncIterator[str]":
        async with scratch_database(settings) as addresses:
            await migrate_database(addresses)
            yield addresses.service

    return lend()


def main() -> None:
    """Runs the command with the exit codes and error sentences of every other command."""
    application.app.add_typer(commands, name="bench")
    sys.exit(application.run_command(["bench", *sys.argv[1:]]))
