"""`approvals`: requests that wait for a second person, and the thresholds above which one is needed."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from payonce.cli.arguments import (
    ByOption,
    ExponentOption,
    LimitOption,
    described_amount,
    operator_name,
    parsed_amount,
    parsed_asset,
    parsed_number,
)
from payonce.cli.confirmation import confirm
from payonce.cli.errors import EXIT_FAILED, say_error
from payonce.cli.output import JsonOption, YesOption, open_app, run_async, show, table
from payonce.kit.outcomes import Invalid

if TYPE_CHECKING:
    from payonce.engine.controls import Approval, Threshold

LIST: Final = "payonce approvals list"

HELP: Final = """Require a second person for large amounts.

\b
Examples:
  payonce approvals threshold USDT 1000
  payonce approvals list
  payonce approvals grant 7 --note 'checked against the statement'
  payonce approvals deny 7 --why 'it is booked'
"""

commands = typer.Typer(help=HELP, no_args_is_help=True, rich_markup_mode=None)
NumberArgument = Annotated[str, typer.Argument(metavar="NUMBER", help="`payonce approvals list` shows it.")]


def parsed_verdict(text: str) -> str:
    known = ("waiting", "granted", "denied", "expired", "all")
    if text not in known:
        raise Invalid(f"there is no state {text!r}; an approval is {', '.join(known[:-1])}; all shows every one")
    return text


@commands.command("list")
def list_approvals(
    state: Annotated[
        str, typer.Option(help="waiting, granted, denied, expired or all.", callback=parsed_verdict)
    ] = "waiting",
    limit: LimitOption = 50,
    before: Annotated[str | None, typer.Option(help="Continue after this approval, for the next page.")] = None,
    as_json: JsonOption = False,
) -> None:
    """List approvals, newest first; by default those that are waiting."""
    behind = None if before is None else parsed_number(before, "an approval", LIST)

    async def act() -> None:
        from payonce.engine.controls import ApprovalState, approvals

        async with open_app() as app:
            wanted = None if state == "all" else ApprovalState(state)
            found = await approvals(app.read, wanted, limit=limit, before=behind)
        following = found[-1].id if len(found) == limit else None
        result = {"approvals": [described(each) for each in found], "next_before": following}
        show(result, as_json, _table(found) if found else f"no approval is {state}")

    run_async(act())


@commands.command("grant")
def grant_approval(
    approval: NumberArgument,
    remark: Annotated[str, typer.Option("--note", help="What you checked.")] = "agreed",
    by: ByOption = None,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Grant an approval and execute the request at once. If it is no longer possible, it is denied with the reason.

    Example: payonce approvals grant 7 --note 'checked against the statement'
    """
    number = parsed_number(approval, "an approval", LIST)

    async def act() -> "Approval":
        from payonce.engine.controls import approval_of, grant

        async with open_app() as app:
            if not yes:
                found = await approval_of(app.read, number)
                confirm("a grant", "grant it?", _table([found]), yes=yes, as_json=as_json)
            async with app.begin() as tx:
                return await grant(tx, app.actions, number, operator_name(by), remark)

    decided = run_async(act())
    message = f"approval {number} is {decided.state} by {decided.decided_by}: {decided.text}"
    show({"approval": described(decided)}, as_json, message)
    if decided.state != "granted":
        say_error(f"{decided.result}; submit a new request")
        raise typer.Exit(EXIT_FAILED)


@commands.command("deny")
def deny_approval(
    approval: NumberArgument,
    why: Annotated[str, typer.Option(help="The reason, for the requester.")],
    by: ByOption = None,
    as_json: JsonOption = False,
) -> None:
    """Deny an approval; nothing is executed.

    Example: payonce approvals deny 7 --why 'it is booked'
    """
    number = parsed_number(approval, "an approval", LIST)

    async def act() -> None:
        from payonce.engine.controls import deny

        async with open_app() as app, app.begin() as tx:
            decided = await deny(tx, number, operator_name(by), why)
        show({"approval": described(decided)}, as_json, f"approval {number} is denied: {decided.text}")

    run_async(act())


@commands.command("threshold")
def threshold(
    asset: Annotated[
        str | None, typer.Argument(metavar="[ASSET]", help="Its code; unset, all thresholds are listed.")
    ] = None,
    amount: Annotated[str | None, typer.Argument(metavar="[AMOUNT]", help="In major units, such as 1000.")] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the threshold of the asset.")] = False,
    exponent: ExponentOption = None,
    why: Annotated[
        str, typer.Option(help="The reason, for the audit log and the approver.")
    ] = "changed on the command line",
    by: ByOption = None,
    as_json: JsonOption = False,
) -> None:
    """List, set or remove thresholds: above one, a second person must agree.

    Raising or removing a threshold needs a second person itself.

    Example: payonce approvals threshold EUR 1000
    """
    if (asset is None and (remove or amount is not None)) or (asset is not None and remove == (amount is not None)):
        raise Invalid("give an asset and an amount, an asset and --remove, or no argument to list the thresholds")
    above = None if asset is None or amount is None else parsed_amount(amount, asset, exponent)
    gone = parsed_asset(asset, exponent) if asset is not None and remove else None

    async def act() -> None:
        from payonce.engine.controls import Approval, submit, threshold_change, thresholds

        result: dict[str, Any] = {}
        asset_of_it = gone if above is None else above.asset
        async with open_app() as app:
            if asset_of_it is not None:
                async with app.begin() as tx:
                    change = await threshold_change(tx, asset_of_it, above)
                    end = await submit(tx, app.actions["change threshold"], change, operator_name(by), why)
                if isinstance(end, Approval):
                    result["approval"] = end.id
            found = await thresholds(app.read)
        result["thresholds"] = [_described_threshold(each) for each in found]
        said = [_threshold_table(found) if found else "no threshold is set"]
        if "approval" in result:
            waits = f"nothing is changed yet; a second person must run: payonce approvals grant {result['approval']}"
            said.append(waits)
        show(result, as_json, *said)

    run_async(act())


def described(approval: "Approval") -> dict[str, Any]:
    """Omits the argument, which the text describes."""
    names = (
        "id",
        "action",
        "subject",
        "text",
        "why",
        "asked_by",
        "asked_at",
        "expires_at",
        "state",
        "decided_by",
        "decided_at",
        "decided_why",
        "result",
    )
    plain = {name: getattr(approval, name) for name in names}
    return {**plain, "amounts": [described_amount(amount) for amount in approval.amounts]}


def _table(found: "Sequence[Approval]") -> Any:
    columns = ("number", "what", "why", "asked by", "at", "expires", "state", "decided by", "result")
    rows = [
        (
            str(each.id),
            each.text,
            each.why,
            each.asked_by,
            each.asked_at,
            each.expires_at,
            each.state,
            each.decided_by,
            each.result,
        )
        for each in found
    ]
    return table("Approvals", columns, rows)


def _described_threshold(threshold: "Threshold") -> dict[str, Any]:
    return {"above": described_amount(threshold.above), "set_by": threshold.set_by, "set_at": threshold.set_at}


def _threshold_table(found: "Sequence[Threshold]") -> Any:
    rows = [(str(each.above), each.set_by, each.set_at) for each in found]
    return table("A second person is needed above", ("amount", "set by", "since"), rows, right=("amount",))
