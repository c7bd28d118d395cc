"""`limits`: velocity limits, the amounts that may be sent within a time window."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from payonce.cli.arguments import (
    AmountArgument,
    AssetArgument,
    ByOption,
    ExponentOption,
    described_amount,
    operator_name,
    parsed_amount,
    parsed_number,
)
from payonce.cli.output import JsonOption, open_app, run_async, show, table
from payonce.kit.durations import parsed_duration_s

if TYPE_CHECKING:
    from payonce.engine.controls import Limit, LimitUsage

HELP: Final = """Limit amounts sent in a time window, by asset and vendor. Above a limit messages wait; none is lost.

\b
Examples:
  payonce limits set USDT 5000
  payonce limits set USDT 20000 --window 1d --vendor bank
  payonce limits list
  payonce limits remove 2
"""

commands = typer.Typer(help=HELP, no_args_is_help=True, rich_markup_mode=None)


@commands.command("list")
def list_limits(as_json: JsonOption = False) -> None:
    """List limits, with the amount used in the current window."""

    async def act() -> None:
        from payonce.engine.controls import limits

        async with open_app() as app:
            found = await limits(app.read)
        result = {"limits": [{**_described(each.limit), "used": described_amount(each.used)} for each in found]}
        show(result, as_json, _table(found) if found else "there is no limit; see: payonce limits set --help")

    run_async(act())


@commands.command("set")
def set_(
    asset: AssetArgument,
    amount: AmountArgument,
    window: Annotated[str, typer.Option(help="Length of the window, such as 10m, 1h or 1d.")] = "1h",
    vendor: Annotated[str | None, typer.Option(help="Only sends to this vendor.")] = None,
    exponent: ExponentOption = None,
    by: ByOption = None,
    as_json: JsonOption = False,
) -> None:
    """Set or change the limit of an asset and window. Earlier sends in the window count as well.

    Example: payonce limits set EUR 10000 --window 1h
    """
    most, window_s = parsed_amount(amount, asset, exponent), parsed_duration_s(window, "--window")

    async def act() -> None:
        from payonce.engine.controls import set_limit

        async with open_app() as app, app.begin() as tx:
            made = await set_limit(tx, most, operator_name(by), window_s=window_s, vendor=vendor)
        show({"limit": _described(made)}, as_json, f"limit {made.id}: at most {made.what}")

    run_async(act())


@commands.command("remove")
def remove(
    limit: Annotated[str, typer.Argument(metavar="NUMBER", help="`payonce limits list` shows it.")],
    by: ByOption = None,
    as_json: JsonOption = False,
) -> None:
    """Remove a limit. Waiting messages continue within five minutes."""
    number = parsed_number(limit, "a limit", "payonce limits list")

    async def act() -> None:
        from payonce.engine.controls import remove_limit

        async with open_app() as app, app.begin() as tx:
            removed = await remove_limit(tx, number, operator_name(by))
        show({"removed": _described(removed)}, as_json, f"limit {number} of {removed.what} is removed")

    run_async(act())


def _described(limit: "Limit") -> dict[str, Any]:
    return {
        "id": limit.id,
        "most": described_amount(limit.most),
        "window_s": limit.window_s,
        "vendor": limit.vendor,
        "set_by": limit.set_by,
        "set_at": limit.set_at,
    }


def _table(found: "Sequence[LimitUsage]") -> Any:
    columns = ("number", "at most", "within s", "vendor", "used", "set by", "since")
    rows = [
        (
            str(each.limit.id),
            str(each.limit.most),
            each.limit.window_s,
            each.limit.vendor,
            str(each.used),
            each.limit.set_by,
            each.limit.set_at,
        )
        for each in found
    ]
    return table("Limits", columns, rows, right=("at most", "within s", "used"))
