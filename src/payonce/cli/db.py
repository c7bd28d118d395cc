"""`db`: migrate, inspect, back up and delete the database."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from payonce.cli.arguments import ServiceOption
from payonce.cli.output import JsonOption, YesOption, command_settings, run_async, show, table
from payonce.kit.outcomes import Invalid

if TYPE_CHECKING:
    from payonce.app.addresses import Addresses
    from payonce.settings import Settings

HELP: Final = """Manage the database: that of DATABASE_URL, or the private one.

\b
Examples:
  payonce db status
  payonce db migrate
  payonce db backup before-upgrade.dump
  payonce db restore before-upgrade.dump --replace --yes
"""

commands = typer.Typer(help=HELP, no_args_is_help=True, rich_markup_mode=None)


@commands.command("migrate")
def migrate(service: ServiceOption = None, as_json: JsonOption = False) -> None:
    """Apply all missing migrations, or none."""
    from payonce.app.process import migrate_database

    addresses = _addresses(command_settings())
    applied = [str(migration) for migration in run_async(migrate_database(addresses))]
    rows = [(name,) for name in applied]
    shown = table("Applied", ("migration",), rows) if rows else "the database is up to date"
    show({"applied": applied}, as_json, shown)


@commands.command("status")
def status(service: ServiceOption = None, as_json: JsonOption = False) -> None:
    """List applied and missing migrations."""
    from payonce.app.process import database_status
    from payonce.engine.database.sessions import described

    settings = command_settings()
    addresses = _addresses(settings)
    found = run_async(database_status(addresses))
    pending = [str(migration) for migration in found.pending]
    result = {
        "database": described(addresses.service),
        "embedded": settings.embedded,
        "data_dir": str(settings.data_dir) if settings.embedded else None,
        "applied": list(found.applied),
        "pending": pending,
    }
    rows = [(name, "applied") for name in found.applied] + [(name, "missing") for name in pending]
    where = f"private, in {settings.server_dir}" if settings.embedded else result["database"]
    shown = table(f"Database: {where}", ("migration", "state"), rows)
    show(result, as_json, shown, "run: payonce db migrate" if pending else "up to date")


@commands.command("reset")
def reset(yes: YesOption = False, as_json: JsonOption = False) -> None:
    """Delete the private database with all data. The database of DATABASE_URL is never touched."""
    from payonce import embedded

    settings = command_settings()
    _only_private(settings, "reset", "drop and create it with your own tools")
    existed = settings.server_dir.exists()
    if existed and not yes:
        raise Invalid(f"this deletes all data in {settings.server_dir}; add --yes to confirm")
    embedded.reset(settings.server_dir)
    show(
        {"reset": existed, "data_dir": str(settings.data_dir)},
        as_json,
        f"deleted {settings.server_dir}" if existed else f"{settings.server_dir} was empty",
    )


@commands.command("stop")
def stop(as_json: JsonOption = False) -> None:
    """Stop the private PostgreSQL. Its data is kept, and the next command starts it again."""
    from payonce import embedded

    settings = command_settings()
    _only_private(settings, "stop", "stop it where it was started")
    stopped = embedded.stop(settings.server_dir)
    shown = "stopped" if stopped else "it was not running"
    show({"stopped": stopped}, as_json, shown)


@commands.command("psql")
def psql(as_json: JsonOption = False) -> None:
    """Open psql as the owner. With --json: only print the command line."""
    from payonce.embedded import client_environment, psql_command

    addresses = _addresses(command_settings())
    command = psql_command(addresses.owner)
    if as_json:
        show({"command": command}, as_json)
        return
    os.execve(command[0], command, client_environment(addresses.owner))


@commands.command("backup")
def backup(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="A new file.")],
    as_json: JsonOption = False,
) -> None:
    """Write the whole database to one file, which gets its name only when complete."""
    from payonce import embedded

    addresses = _addresses(command_settings())
    embedded.backup(addresses.owner, path)
    size = path.stat().st_size
    show({"file": str(path), "bytes": size}, as_json, f"wrote {path}, {size:,} bytes")


@commands.command("restore")
def restore(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="A file from `payonce db backup`.")],
    replace: Annotated[
        bool, typer.Option("--replace", help="Drop the existing data, in the same transaction.")
    ] = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Restore the database from a backup, completely or not at all. Stop all workers first.

    The database is then in quarantine: nothing is sent to vendors until `payonce db quarantine release`.
    """
    from payonce import embedded

    addresses = _addresses(command_settings())
    embedded.check_backup(path)
    if replace:
        if not yes:
            raise Invalid("this drops all data of the database before the restore; add --yes to confirm")
        if connected := run_async(_connected(addresses)):
            raise Invalid(f"{connected} connections of payonce are open to the database; stop its processes first")
    embedded.restore(addresses.owner, path, replace=replace)
    show(
        {"restored": str(path), "replaced": replace},
        as_json,
        f"restored {path}",
        "now in quarantine: payonce db quarantine",
    )


async def _connected(addresses: "Addresses") -> int:
    """The number of connections of payonce processes."""
    from payonce.engine.database.sessions import connect

    connection = await connect(addresses.owner)
    try:
        found: int = await connection.fetchval(
            "select count(*) from pg_stat_activity where datname = current_database() and application_name = 'payonce'"
        )
        return found
    finally:
        await connection.close()


def _addresses(settings: "Settings") -> "Addresses":
    from payonce.app.addresses import find_database

    return run_async(find_database(settings))


def _only_private(settings: "Settings", verb: str, way_out: str) -> None:
    if not settings.embedded:
        raise Invalid(f"payonce does not {verb} the database of DATABASE_URL; {way_out}, or unset DATABASE_URL")
