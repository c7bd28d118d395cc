"""`db quarantine`: why nothing is sent, what was looked for since, and the end of it."""

from dataclasses import asdict
from typing import Annotated, Any, Final

import typer

from payonce.cli.arguments import ByOption, operator_name, parsed_moment
from payonce.cli.output import JsonOption, open_app, run_async, show, table
from payonce.kit.outcomes import Invalid

HELP: Final = """Quarantine: after a restore or a failover nothing is sent until vendors' statements were reconciled.

\b
Examples:
  payonce db quarantine
  payonce db quarantine release --by ann
  payonce db quarantine begin --lost-since 2026-01-31T00:00Z --reason "the disk was set back to a snapshot"
"""

commands = typer.Typer(help=HELP, rich_markup_mode=None)


@commands.callback(invoke_without_command=True, help=HELP)
def quarantine(context: typer.Context, as_json: JsonOption = False) -> None:
    """Since when and why, how far each vendor was reconciled, and what stands in the way of a release."""
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
        lost = f"what happened since {found.lost_since.isoformat()} may be lost"
        covered = table("Reconciled", ("vendor", "from", "to"), [tuple(row.values()) for row in vendors])
        in_the_way = table(
            "In the way", ("vendor", "why", "way out"), [tuple(asdict(each).values()) for each in standing]
        )
        show(
            result,
            as_json,
            summary,
            lost,
            covered,
            in_the_way if standing else "nothing stands in the way of a release",
        )

    run_async(act())


@commands.command("begin")
def begin(
    lost_since: Annotated[str, typer.Option(help="What happened after this may be lost.")],
    reason: Annotated[str, typer.Option(help="Shown to whoever asks why nothing is sent.")],
    by: ByOption = None,
    as_json: JsonOption = False,
) -> None:
    """Begin one by hand, for what no server tells of: a disk or machine set back to a snapshot."""
    moment = parsed_moment(lost_since, "--lost-since")

    async def act() -> None:
        from payonce.engine.controls.quarantine import begin_quarantine

        async with open_app() as app, app.begin() as tx:
            begun = await begin_quarantine(tx, reason, operator_name(by), moment)
        show(asdict(begun), as_json, f"in quarantine: {begun.reason}")

    run_async(act())


@commands.command("widen")
def widen(
    lost_since: Annotated[str, typer.Option(help="An earlier time than the one that is known.")],
    by: ByOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say that more may be lost than the database can tell."""
    moment = parsed_moment(lost_since, "--lost-since")

    async def act() -> None:
        from payonce.engine.controls.quarantine import widen

        async with open_app() as app, app.begin() as tx:
            widened = await widen(tx, moment, operator_name(by))
        show(asdict(widened), as_json, f"lost since {widened.lost_since.isoformat()}")

    run_async(act())


@commands.command("release")
def release(
    by: Annotated[str, typer.Option("--by", help="Who decides.")],
    accept_unreconciled: Annotated[
        str | None, typer.Option(help="Release although something stands in the way, and why.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Let effects be sent again, when everything was reconciled or you accept that it was not."""

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
