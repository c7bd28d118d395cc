"""`billing credit`: a customer's credit."""

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from payonce.cli.arguments import ByOption, LimitOption, described_amount, operator_name, parsed_amount
from payonce.cli.confirmation import confirm
from payonce.cli.output import JsonOption, YesOption, run_async, show, table
from payonce.kit.outcomes import Invalid
from payonce.services.billing.cli.subscriptions import open_subscriptions_app

if TYPE_CHECKING:
    from payonce.engine.controls import Approval, Executed
    from payonce.kit.money import Amount
    from payonce.services.billing.subscriptions.model import CreditEntry
    from payonce.services.billing.subscriptions.store.credit import Balance

HELP: Final = """Show, adjust and pay out a customer's credit.

Above the threshold of the currency a second person must approve (payonce approvals threshold).

\b
Examples:
  payonce billing credit show ada@example.com
  payonce billing credit add ada@example.com 20.00 AED --why 'an outage in May'
  payonce billing credit remove ada@example.com 20.00 AED --why 'added twice'
  payonce billing credit pay-out ada@example.com 970.00 AED --why 'they left us'
  payonce billing credit pay-out ada@example.com 970.00 AED --by-hand --why 'bank transfer 4711'
"""

commands = typer.Typer(help=HELP, no_args_is_help=True, rich_markup_mode=None)

CustomerArgument = Annotated[str, typer.Argument(metavar="CUSTOMER", help="The account's id or e-mail address.")]
CreditAmount = Annotated[str, typer.Argument(metavar="AMOUNT", help="In major units, such as 12.50.")]
CurrencyArgument = Annotated[str, typer.Argument(metavar="CURRENCY", help="ISO code, such as AED.")]
WhyOption = Annotated[str, typer.Option(help="The reason, for the entry that the customer sees and for the audit log.")]


@commands.command("show")
def show_credit(customer: CustomerArgument, limit: LimitOption = 50, as_json: JsonOption = False) -> None:
    """Show the balance and the newest entries."""

    async def act() -> None:
        from payonce.services.billing.subscriptions.store import credit

        async with open_subscriptions_app() as app:
            account_id = await _account(app, customer)
            balances = await credit.balances(app.read, account_id)
            entries = await credit.entries(app.read, account_id, None, limit)
        result = {
            "account": account_id,
            "balances": [_balance(each) for each in balances],
            "entries": [_entry(each) for each in entries],
        }
        rendered = _table(balances, entries) if entries else f"account {account_id} has never had credit"
        show(result, as_json, rendered)

    run_async(act())


@commands.command("add")
def add(
    customer: CustomerArgument,
    amount: CreditAmount,
    currency: CurrencyArgument,
    why: WhyOption,
    by: ByOption = None,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Add credit, which the next invoices use.

    Example: payonce billing credit add ada@example.com 20.00 AED --why 'an outage in May'
    """
    _change("add", customer, amount, currency, why, by, yes=yes, as_json=as_json)


@commands.command("remove")
def remove(
    customer: CustomerArgument,
    amount: CreditAmount,
    currency: CurrencyArgument,
    why: WhyOption,
    expired: Annotated[bool, typer.Option("--expired", help="The credit has expired; the entry says so.")] = False,
    by: ByOption = None,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Remove credit without a refund.

    Example: payonce billing credit remove ada@example.com 20.00 AED --why 'added twice'
    """
    _change("expire" if expired else "remove", customer, amount, currency, why, by, yes=yes, as_json=as_json)


@commands.command("pay-out")
def pay_out(
    customer: CustomerArgument,
    amount: CreditAmount,
    currency: CurrencyArgument,
    why: WhyOption,
    by_hand: Annotated[
        bool, typer.Option("--by-hand", help="Only record a payment that the customer already received.")
    ] = False,
    invoice: Annotated[
        str | None,
        typer.Option(help="Number of the invoice whose charge is refunded. Default: the newest with enough left."),
    ] = None,
    by: ByOption = None,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Pay out credit: to the card of an earlier charge, or as a record of a manual payment.

    Example: payonce billing credit pay-out ada@example.com 970.00 AED --why 'they left us'
    """
    if by_hand and invoice is not None:
        raise Invalid(
            "--invoice selects the charge to refund, and --by-hand records a payment made another way; give only one "
            "of them"
        )
    verdict = "paid_by_hand" if by_hand else "pay_out"
    _change(verdict, customer, amount, currency, why, by, invoice, yes=yes, as_json=as_json)


def _change(
    verdict: str,
    customer: str,
    amount: str,
    currency: str,
    why: str,
    by: str | None,
    invoice: str | None = None,
    *,
    yes: bool,
    as_json: bool,
) -> None:
    wanted = parsed_amount(amount, currency, None)

    async def act() -> None:
        from payonce.engine.controls import preview, submit
        from payonce.services.billing.subscriptions.decisions.credit import ACTION, CreditChange, CreditVerdict
        from payonce.services.billing.subscriptions.store import credit

        async with open_subscriptions_app() as app:
            account_id = await _account(app, customer)
            has = await credit.balance(app.read, account_id, wanted.asset)
            asked = CreditChange(
                account_id=account_id,
                currency=wanted.asset.code,
                exponent=wanted.asset.exponent,
                seen=has.revision,
                verdict=CreditVerdict(verdict),
                amount_minor=wanted.minor,
                invoice=invoice,
                note=why,
            )
            async with app.begin() as tx:
                found = await preview(tx, app.actions[ACTION], asked, operator_name(by))
            confirm("a change of credit", f"{found.assessment.text}: proceed?", yes=yes, as_json=as_json)
            async with app.begin() as tx:
                end = await submit(tx, app.actions[ACTION], asked, operator_name(by), why)
        _show_result(end, wanted, as_json)

    run_async(act())


def _show_result(end: "Executed | Approval", wanted: "Amount", as_json: bool) -> None:
    from payonce.engine.controls import Executed

    if not isinstance(end, Executed):
        message = f"{wanted} needs a second person's approval: payonce approvals grant {end.id}"
        show({"approval": end.id, "expires_at": end.expires_at}, as_json, message)
        return
    left = f"account {end.result['account']} has {end.result['balance']} {end.result['currency']} of credit"
    payout = "" if end.result["payout"] is None else f"; payout {end.result['payout']}"
    show({"credit": end.result}, as_json, f"done: {left}{payout}")


async def _account(app: Any, customer: str) -> str:
    from payonce.services.billing.subscriptions.store import queries

    if not await queries.is_installed(app.read):
        raise Invalid("this database has no billing tables; the first process that runs billing creates them")
    found = await queries.customer(app.read, customer)
    if found is None:
        raise Invalid(f"there is no customer {customer[:100]!r}; give the account's id or e-mail address")
    return found.id


def _balance(balance: "Balance") -> dict[str, object]:
    return {**described_amount(balance.amount), "revision": balance.revision}


def _entry(entry: "CreditEntry") -> dict[str, object]:
    return {
        "id": entry.id,
        "kind": entry.kind.value,
        "amount": described_amount(entry.amount),
        "balance": described_amount(entry.balance),
        "invoice": entry.invoice_number,
        "payout": entry.payout_id,
        "reason": entry.reason,
        "actor": entry.actor,
        "at": entry.at,
    }


def _table(balances: "list[Balance]", entries: "list[CreditEntry]") -> Any:
    title = "Credit: " + ", ".join(str(each.amount) for each in balances)
    rows = [
        (
            each.at,
            each.kind.value,
            str(each.amount),
            str(each.balance),
            each.invoice_number or each.payout_id,
            each.reason,
            each.actor,
        )
        for each in entries
    ]
    columns = ("when", "kind", "amount", "balance", "about", "reason", "by")
    return table(title, columns, rows, right=("amount", "balance"))
