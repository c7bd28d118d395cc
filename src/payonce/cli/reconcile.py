"""`reconcile`: compare vendors' statements with our effects, and resolve unmatched items."""

from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from payonce.cli.arguments import ByOption, operator_name, parsed_moment
from payonce.cli.errors import EXIT_UNEQUAL, say_error
from payonce.cli.output import JsonOption, open_app, run_async, show, table
from payonce.kit.outcomes import Invalid
from payonce.kit.redact import redact

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from uuid import UUID

    from payonce.app.process import App
    from payonce.engine.reconcile import Item, StatementSource

HELP: Final = """Compare vendors' statements with our effects, in both directions.

\b
Examples:
  payonce reconcile run bank
  payonce reconcile run bank --since 2026-01-31T00:00Z
  payonce reconcile list --vendor bank
  payonce reconcile write-off ID --account losses/bank --note "bank fee"
"""

commands = typer.Typer(help=HELP, no_args_is_help=True, rich_markup_mode=None)

VendorArgument = Annotated[str, typer.Argument(metavar="VENDOR", help="The vendor of the statement.")]
ItemArgument = Annotated[str, typer.Argument(metavar="ID", help="An unmatched item, from `payonce reconcile list`.")]
NoteOption = Annotated[str, typer.Option("--note", help="The reason, stored with the item and in the audit log.")]


@commands.command("run")
def run(
    vendor: VendorArgument,
    since: Annotated[str | None, typer.Option(help="From when; default: where the last run ended.")] = None,
    until: Annotated[str | None, typer.Option(help="Up to when; default: now.")] = None,
    by: ByOption = None,
    as_json: JsonOption = False,
) -> None:
    """Reconcile a vendor now. Repeating it changes nothing; an interrupted run is continued.

    Exits with 3 if the vendor's balance and our ledger differ.
    """
    begin = None if since is None else parsed_moment(since, "--since")
    end = None if until is None else parsed_moment(until, "--until")

    async def act() -> bool:
        from payonce.engine.reconcile import compare_balances, reconcile

        async with open_app() as app, _source(app, vendor) as source:
            done = await reconcile(
                app.database, app.feed, source, by=operator_name(by), holder=app.process_name, since=begin, until=end
            )
            books = await compare_balances(app.read, source)
        compared = [
            {"ours": str(each.ours), "theirs": _text(each.theirs), "suspense": str(each.suspense), "equal": each.equal}
            for each in books
        ]
        result = {**asdict(done), "books": compared}
        counts = [(done.lines, done.found, done.adopted, done.unmatched, done.missing, done.settled)]
        names = ("lines", "found", "adopted", "unmatched", "missing", "settled")
        title = f"{vendor}: {done.since:%Y-%m-%d %H:%M} to {done.until:%Y-%m-%d %H:%M}"
        rows = [(each.ours, each.theirs, each.suspense, each.equal) for each in books]
        books_table = table("Books", ("ours", "theirs", "in suspense", "equal"), rows)
        show(result, as_json, table(title, names, counts, right=names), books_table if rows else "no books")
        return all(each.equal for each in books)

    if not run_async(act()):
        say_error(f"our ledger and the balance of {vendor} differ; see:  payonce reconcile list --vendor {vendor}")
        raise typer.Exit(EXIT_UNEQUAL)


@commands.command("list")
def list_(
    vendor: Annotated[str | None, typer.Option(help="Only this vendor.")] = None,
    limit: Annotated[int, typer.Option(help="Items per page.", min=1, max=500)] = 50,
    after: Annotated[str | None, typer.Option(help="Continue after this item, for the next page.")] = None,
    as_json: JsonOption = False,
) -> None:
    """List unmatched items between vendors' statements and our effects, oldest first."""
    behind = None if after is None else _parsed_item(after)

    async def act() -> None:
        from payonce.engine.reconcile import unmatched

        async with open_app() as app:
            found = await unmatched(app.read, vendor, limit, behind)
        following = str(found[-1].id) if len(found) == limit else None
        rows = [
            (
                item.id,
                item.subject.vendor,
                item.direction,
                item.subject.kind,
                item.subject.vendor_ref,
                item.subject.reference,
                item.amount,
                item.subject.at,
                _age(item.age_s),
                item.explanation,
            )
            for item in found
        ]
        columns = ("id", "vendor", "direction", "kind", "theirs", "ours", "amount", "at", "age", "explanation")
        result = {"items": [described(item) for item in found], "next_after": following}
        whose = "vendors' statements" if vendor is None else f"the statements of {vendor}"
        nothing = f"nothing {'further ' if behind else ''}is unmatched between {whose} and our effects"
        show(result, as_json, table("Unmatched", columns, rows, right=("amount", "age")) if rows else nothing)

    run_async(act())


@commands.command("explain")
def explain(
    items: Annotated[list[str], typer.Argument(metavar="ID...", help="From `payonce reconcile list`.")],
    note: NoteOption,
    by: ByOption = None,
    as_json: JsonOption = False,
) -> None:
    """Explain items. They stay in suspense but no longer block the release of a quarantine."""
    item_ids = [_parsed_item(item) for item in items]

    async def act() -> None:
        from payonce.engine.reconcile import explain

        async with open_app() as app, app.begin() as tx:
            for item_id in item_ids:
                await explain(tx, item_id, operator_name(by), note)
        show({"explained": item_ids}, as_json, f"{len(item_ids)} explained")

    run_async(act())


@commands.command("write-off")
def write_off(
    item: ItemArgument,
    account: Annotated[str, typer.Option(help="The account of the loss or gain, such as losses/bank.")],
    note: NoteOption,
    by: ByOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write off an item from suspense to an account. If it matches later, the posting is reversed.

    Above the asset's threshold a second person must agree first (payonce approvals).
    """
    item_id = _parsed_item(item)

    async def act() -> None:
        from payonce.engine.controls import Executed, WriteOff, submit

        # Redacted before it is stored with the approval.
        given = WriteOff(item_id, account, redact(note))
        async with open_app() as app, app.begin() as tx:
            end = await submit(tx, app.actions["write off"], given, operator_name(by), note)
        if isinstance(end, Executed):
            show({"done": True, **end.result}, as_json, f"written off to {account}: {end.result['amount']}")
            return
        result = {"done": False, "written_off": None, "approval": end.id, "expires_at": end.expires_at}
        show(result, as_json, f"a second person must run: payonce approvals grant {end.id}")

    run_async(act())


@commands.command("assign")
def assign(
    vendor: VendorArgument,
    item: ItemArgument,
    reference: Annotated[str, typer.Argument(metavar="KEY:GENERATION", help="The effect that the item belongs to.")],
    outcome: Annotated[
        str | None, typer.Option(help="The outcome as JSON for the handler, if the statement does not contain it.")
    ] = None,
    by: ByOption = None,
    as_json: JsonOption = False,
) -> None:
    """Assign an item to an effect, if the vendor does not repeat our reference."""
    item_id = _parsed_item(item)

    async def act() -> None:
        from payonce.engine.reconcile import assign
        from payonce.kit.money import loads_exact

        document = None if outcome is None else loads_exact(outcome)
        async with open_app() as app, _source(app, vendor) as source, app.begin() as tx:
            await assign(tx, source, item_id, reference, document, operator_name(by))
        show({"assigned": item_id, "reference": reference}, as_json, f"{item_id} is {reference}")

    run_async(act())


def described(item: "Item") -> dict[str, Any]:
    return {
        "id": item.id,
        **asdict(item.subject),
        "direction": item.direction,
        "amount": item.amount.to_text(),
        "asset": item.amount.asset.code,
        "first_seen_at": item.first_seen_at,
        "age_s": item.age_s,
        "explanation": item.explanation,
    }


@asynccontextmanager
async def _source(app: "App", vendor: str) -> "AsyncIterator[StatementSource]":
    async with app.open_statements() as statements:
        by_vendor = {source.vendor: source for source in statements}
        if vendor not in by_vendor:
            raise Invalid(f"no service reads a statement of {vendor!r}; there are: {', '.join(by_vendor) or 'none'}")
        yield by_vendor[vendor]


def _parsed_item(text: str) -> "UUID":
    from uuid import UUID

    try:
        return UUID(text)
    except ValueError:
        raise Invalid(f"{text[:60]!r} is not an unmatched item; copy one from `payonce reconcile list`") from None


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _age(age_s: float) -> str:
    return f"{age_s / 86_400:.1f} d" if age_s >= 86_400 else f"{age_s / 3_600:.1f} h"
