"""`db quarantine`: the state of a quarantine, and its release."""

from dataclasses import asdict
from typing import Annotated, Any, Final

import typer

from payonce.cli.arguments import ByOption, operator_name, parsed_moment
from payonce.cli.output import JsonOption, open_app, run_async, show, table
from payonce.kit.outcomes import Invalid

HELP: Final = """Quarantine: after a restore or failover nothing is sent until vendors' statements are reconciled.

\b
Examples:
  payonce db quarantine
  payonce db quarantine release --by ann
  payonce db quarantine begin --lost-since 2026-01-31T00:00Z --reason "the disk was set back to a snapshot"
"""

commands = typer.Typer(help=HELP, rich_markup_mode=None)


@commands.callback(invoke_without_command=True, help=HELP)
def quarantine(context: typer.Context, as_json: JsonOption = False) -> None:
    """Show the quarantine: its reason, the reconciled period of each vendor, and what blocks a release."""
    if context.invoked_subcommand is not None:
        return

    async def act() -> None:
        from payonce.engine.controls.quarantine import blockers, open_quarantine

        async with open_app() as app:
            found = await open_quarantine(app.read)
            standing = [] if found is None else await blockers(app.read, found)
            sources = await app.read.fetch(
                "select vendor, covered_since, covered_until from payonce.statement_sources order by vendor"
            )
        vendors = [dict(row) for row in sources]
        result: dict[str, Any] = {
            "quarantine": None if found is None else asdict(found),
            "vendors": vendors,
            "blockers": [asdict(blocker) for blocker in standing],
        }
        if found is None:
            show(result, as_json, "not in quarantine")
            return
        summary = f"in quarantine since {found.began_at.isoformat()}: {found.reason}"
        lost = f"writes since {found.lost_since.isoformat()} may be lost"
        covered = table("Reconciled", ("vendor", "from", "to"), [tuple(row.values()) for row in vendors])
        in_the_way = table(
            "Blockers", ("vendor", "reason", "remedy"), [tuple(asdict(each).values()) for each in standing]
        )
        show(
            result,
            as_json,
            summary,
            lost,
            covered,
            in_the_way if standing else "nothing blocks a release",
        )

    run_async(act())


@commands.command("begin")
def begin(
    lost_since: Annotated[str, typer.Option(help="Writes after this time may be lost.")],
    reason: Annotated[str, typer.Option(help="The reason, shown to other operators.")],
    by: ByOption = None,
    as_json: JsonOption = False,
) -> None:
    """Begin a quarantine manually, after a disk or machine was reset to a snapshot."""
    moment = parsed_moment(lost_since, "--lost-since")

    async def act() -> None:
        from payonce.engine.controls.quarantine import begin_quarantine

        async with open_app() as app, app.begin() as tx:
            begun = await begin_quarantine(tx, reason, operator_name(by), moment)
        show(asdict(begun), as_json, f"in quarantine: {begun.reason}")

    run_async(act())


@commands.command("widen")
def widen(
    lost_since: Annotated[str, typer.Option(help="A time before the recorded one.")],
    by: ByOption = None,
    as_json: JsonOption = False,
) -> None:
    """Extend the period whose writes may be lost."""
    moment = parsed_moment(lost_since, "--lost-since")

    async def act() -> None:
        from payonce.engine.controls.quarantine import widen

        async with open_app() as app, app.begin() as tx:
            widened = await widen(tx, moment, operator_name(by))
        show(asdict(widened), as_json, f"lost since {widened.lost_since.isoformat()}")

    run_async(act())


@commands.command("release")
def release(
    by: Annotated[str, typer.Option("--by", help="Your name, for the audit log.")],
    accept_unreconciled: Annotated[str | None, typer.Option(help="Release despite blockers, for this reason.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Release the quarantine, once everything is reconciled or you accept that it is not."""

    async def act() -> None:
        from payonce.engine.controls.quarantine import open_quarantine, release

        async with open_app() as app:
            found = await open_quarantine(app.read)
            if found is None:
                raise Invalid("the database is not in quarantine; there is nothing to release")
            async with app.begin() as tx:
                await release(tx, by, revision=found.revision, accept_unreconciled=accept_unreconciled)
        show({"released": found.id, "by": by}, as_json, "released: effects are sent again")

    run_async(act())
