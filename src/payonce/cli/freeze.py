"""`freeze`: stop vendor calls by vendor, asset, tenant or service, and resume them."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from payonce.cli.arguments import (
    ByOption,
    LimitOption,
    described_amount,
    operator_name,
    parsed_moment,
    parsed_number,
)
from payonce.cli.confirmation import confirm
from payonce.cli.output import JsonOption, YesOption, note, open_app, run_async, show, table
from payonce.kit.durations import parsed_duration_s
from payonce.kit.outcomes import Invalid

if TYPE_CHECKING:
    from payonce.app.process import App
    from payonce.engine.controls import Freeze, SendsInFlight

LIST: Final = "payonce freeze list"

HELP: Final = """Stop calls to vendors at once, also for messages already claimed.

Sends that have begun may still go out until their time-out: `add` lists them, and waits. Outcomes of earlier sends are
still recorded and queried; waiting messages use up no attempts.

\b
Examples:
  payonce freeze add --everything --reason 'investigating odd payments'
  payonce freeze add --vendor bank --asset USDT --for 2h --reason 'wrong rates'
  payonce freeze list
  payonce freeze lift 3 --why 'the vendor fixed it'
"""

commands = typer.Typer(help=HELP, no_args_is_help=True, rich_markup_mode=None)


@commands.command("add")
def add(
    reason: Annotated[str, typer.Option(help="The reason, shown to other operators.")],
    vendor: Annotated[str | None, typer.Option(help="Only sends to this vendor.")] = None,
    asset: Annotated[str | None, typer.Option(help="Only sends of this asset.")] = None,
    tenant: Annotated[str | None, typer.Option(help="Only sends for this tenant.")] = None,
    service: Annotated[str | None, typer.Option(help="Only sends of this service.")] = None,
    everything: Annotated[bool, typer.Option("--everything", help="All sends.")] = False,
    until: Annotated[str | None, typer.Option(help="When it expires, such as 2026-01-31T12:00:00Z.")] = None,
    for_: Annotated[str | None, typer.Option("--for", help="How long it lasts, such as 30m, 2h or 1d.")] = None,
    wait: Annotated[
        bool,
        typer.Option(help="Wait until sends in flight have ended, two minutes at most."),
    ] = True,
    by: ByOption = None,
    as_json: JsonOption = False,
) -> None:
    """Add a freeze. All given conditions must match. It takes effect at once, without confirmation.

    Example: payonce freeze add --vendor bank --reason 'pays twice'
    """
    if until is not None and for_ is not None:
        raise Invalid("give --until or --for, not both")
    ends_at = None if until is None else parsed_moment(until, "--until")
    for_s = None if for_ is None else parsed_duration_s(for_, "--for")
    conditions = {"vendor": vendor, "asset": asset, "tenant": tenant, "service": service}

    async def act() -> None:
        from payonce.engine.controls import check_asset, freeze

        async with open_app() as app:
            if asset is not None:
                await check_asset(app.read, asset)
            async with app.begin() as tx:
                made = await freeze(
                    tx,
                    by=operator_name(by),
                    reason=reason,
                    everything=everything,
                    until=ends_at,
                    for_s=for_s,
                    **conditions,
                )
            doubts = await _doubts(app, conditions)
            for doubt in doubts:
                note(doubt)
            left = await _wait(app, made) if wait else made.under_way
        result = {
            "freeze": described(made),
            "doubts": doubts,
            "begun_before": _described_sends(made.under_way),
            "still_under_way": _described_sends(left),
        }
        said = f"; sends may still go out: {left}" if left else ", and no matching send is in flight"
        show(result, as_json, f"freeze {made.id} of {made.what} is in force{said}")

    run_async(act())


@commands.command("list")
def list_freezes(
    everything: Annotated[bool, typer.Option("--all", help="Include expired and lifted freezes.")] = False,
    limit: LimitOption = 50,
    before: Annotated[str | None, typer.Option(help="Continue after this freeze, for the next page.")] = None,
    as_json: JsonOption = False,
) -> None:
    """List freezes, newest first."""
    behind = None if before is None else parsed_number(before, "a freeze", LIST)

    async def act() -> None:
        from payonce.engine.controls import freezes

        async with open_app() as app:
            found = await freezes(app.read, ended=everything, limit=limit, before=behind)
        following = found[-1].id if len(found) == limit else None
        result = {"freezes": [described(each) for each in found], "next_before": following}
        show(result, as_json, _table(found) if found else "nothing is frozen")

    run_async(act())


@commands.command("lift")
def lift_freeze(
    freeze: Annotated[str, typer.Argument(metavar="NUMBER", help="`payonce freeze list` shows it.")],
    why: Annotated[str, typer.Option(help="The reason, for the audit log.")],
    by: ByOption = None,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Lift a freeze. Waiting messages continue within a minute.

    Example: payonce freeze lift 3 --why 'the vendor fixed it'
    """
    number = parsed_number(freeze, "a freeze", LIST)

    async def act() -> None:
        from payonce.engine.controls import freeze_of, lift

        async with open_app() as app:
            if not yes:
                found = await freeze_of(app.read, number)
                confirm("lifting a freeze", "lift it?", _table([found]), yes=yes, as_json=as_json)
            async with app.begin() as tx:
                lifted = await lift(tx, number, operator_name(by), why)
        show({"freeze": described(lifted)}, as_json, f"freeze {number} of {lifted.what} is lifted")

    run_async(act())


def described(freeze: "Freeze") -> dict[str, Any]:
    fields = asdict(freeze)
    del fields["under_way"]
    return {**fields, "what": freeze.what}


def _described_sends(sends: "SendsInFlight") -> dict[str, Any]:
    amounts = [described_amount(amount) for amount in sends.amounts]
    return {"count": sends.count, "amounts": amounts, "until": sends.until}


async def _wait(app: "App", made: "Freeze") -> "SendsInFlight":
    from payonce.engine.controls import wait_until_quiet

    if made.under_way:
        note(f"freeze {made.id} is in force; waiting for sends: {made.under_way}")
    return await wait_until_quiet(app.read, made)


async def _doubts(app: "App", conditions: dict[str, str | None]) -> list[str]:
    from payonce.app.registry import SERVICES
    from payonce.engine.controls import unknown_targets

    doubts = await unknown_targets(app.read, conditions["vendor"], conditions["asset"])
    known = list(dict.fromkeys(service.name for service in SERVICES))
    if conditions["service"] is not None and conditions["service"] not in known:
        doubts.append(f"there is no service {conditions['service']!r} here; known are: {', '.join(known)}")
    return doubts


def _table(found: "Sequence[Freeze]") -> Any:
    columns = ("number", "what", "reason", "by", "since", "until", "lifted by", "lifted at", "why")
    rows = [
        (
            str(each.id),
            each.what,
            each.reason,
            each.frozen_by,
            each.frozen_at,
            each.until,
            each.lifted_by,
            each.lifted_at,
            each.lifted_why,
        )
        for each in found
    ]
    return table("Freezes", columns, rows)
