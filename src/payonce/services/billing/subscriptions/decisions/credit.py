"""Operators' decisions about a customer's credit: add, remove, expire, pay out, or record a manual payout.

One action, executed at once or, above the threshold of its currency, after a second person's approval.
"""

from enum import StrEnum
from typing import Any, Final

import msgspec

from payonce.engine.controls import Action, Assessment
from payonce.engine.messages.ports import Admin
from payonce.engine.messages.transaction import Tx
from payonce.kit.ids import new_id
from payonce.kit.money import Amount, Asset
from payonce.kit.outcomes import Invalid, Stale
from payonce.services.billing.subscriptions import ledger
from payonce.services.billing.subscriptions.domain.refusals import Conflict, NotFound
from payonce.services.billing.subscriptions.model import EntryKind, PayoutWay
from payonce.services.billing.subscriptions.store import credit, credit_payouts
from payonce.services.billing.subscriptions.store.credit import Balance, NewEntry

ACTION: Final = "change credit"
CREDIT_MAX_MINOR: Final = 2**53 - 1
"""As for the gateway's amounts: JSON parsers represent numbers up to here exactly."""


class CreditVerdict(StrEnum):
    ADD = "add"
    REMOVE = "remove"
    EXPIRE = "expire"
    """Remove credit that is too old under the seller's rules."""
    PAY_OUT = "pay_out"
    """Pay it out to a card, as a refund of an earlier charge."""
    PAID_BY_HAND = "paid_by_hand"
    """Record a payment that the customer already received."""


PAYS: Final = {CreditVerdict.PAY_OUT: PayoutWay.CARD, CreditVerdict.PAID_BY_HAND: PayoutWay.BY_HAND}


class CreditChange(msgspec.Struct, frozen=True, kw_only=True):
    account_id: str
    currency: str
    exponent: int
    seen: int
    """The revision of the balance that the operator saw."""
    verdict: CreditVerdict
    amount_minor: int
    invoice: str | None = None
    """For a payout to a card: the invoice, by id or number, whose charge is refunded."""
    note: str

    @property
    def amount(self) -> Amount:
        return Amount(self.amount_minor, Asset(self.currency, self.exponent))


def credit_action(_: Admin) -> Action[CreditChange]:
    return Action(ACTION, CreditChange, _weigh, _execute)


async def _weigh(tx: Tx, asked: CreditChange) -> Assessment:
    has = await credit.balance(tx, asked.account_id, asked.amount.asset)
    text = f"{_WORDS[asked.verdict]}, account {asked.account_id}, which has {has.amount}".format(amount=asked.amount)
    return Assessment(f"{asked.account_id}:{asked.currency}", text, [asked.amount])


async def _execute(tx: Tx, asked: CreditChange, by: str) -> dict[str, Any]:
    has = await _seen(tx, asked)
    if asked.verdict is not CreditVerdict.ADD and asked.amount > has.amount:
        raise Invalid(f"account {asked.account_id} has {has.amount} of credit, which is less than {asked.amount}")
    if asked.verdict is CreditVerdict.ADD and has.amount.minor + asked.amount_minor > CREDIT_MAX_MINOR:
        raise Invalid(
            f"{asked.amount} is too much: the maximum balance is {Amount(CREDIT_MAX_MINOR, asked.amount.asset)}"
        )
    if asked.verdict in PAYS:
        return await _pay_out(tx, asked, by)
    key, now = f"{asked.verdict}:{new_id()}", await credit.now_of(tx, asked.account_id)
    assert now is not None
    change = asked.amount if asked.verdict is CreditVerdict.ADD else -asked.amount
    expires = asked.verdict is CreditVerdict.EXPIRE
    await tx.post(ledger.credit_expired(key, asked.amount) if expires else ledger.credit_adjusted(key, change))
    kind = EntryKind.EXPIRED if expires else EntryKind.ADJUSTED
    left = await credit.book(tx, NewEntry(asked.account_id, kind, change, key, asked.note, now, by))
    return {"account": asked.account_id, "balance": left.to_text(), "currency": asked.currency, "payout": None}


async def _pay_out(tx: Tx, asked: CreditChange, by: str) -> dict[str, Any]:
    try:
        payout = await credit_payouts.pay_out(
            tx, asked.account_id, asked.amount, PAYS[asked.verdict], asked.note, by, asked.invoice
        )
    except (Conflict, NotFound) as refusal:
        raise Invalid(str(refusal)) from refusal
    left = await credit.balance(tx, asked.account_id, asked.amount.asset)
    return {
        "account": asked.account_id,
        "balance": left.amount.to_text(),
        "currency": asked.currency,
        "payout": payout.id,
    }


async def _seen(tx: Tx, asked: CreditChange) -> Balance:
    """The locked balance. Raises Stale if it is not the one that the decision was about."""
    if await credit.now_of(tx, asked.account_id) is None:
        raise Invalid(f"there is no account {asked.account_id[:100]!r}")
    if asked.invoice is not None and asked.verdict is not CreditVerdict.PAY_OUT:
        raise Invalid("an invoice selects the charge that a payout refunds; omit it for other decisions")
    if asked.amount_minor <= 0 or not asked.note.strip():
        raise Invalid(f"{asked.amount} cannot be decided about: give an amount above zero, and a reason")
    has = await credit.locked_or_created(tx, asked.account_id, asked.amount.asset)
    if has.revision != asked.seen:
        raise Stale(f"the credit of account {asked.account_id} has changed: it is {has.amount} now; look again")
    return has


_WORDS: Final = {
    CreditVerdict.ADD: "add {amount} of credit",
    CreditVerdict.REMOVE: "remove {amount} of credit",
    CreditVerdict.EXPIRE: "expire {amount} of credit",
    CreditVerdict.PAY_OUT: "pay out {amount} of credit to the card",
    CreditVerdict.PAID_BY_HAND: "record {amount} of credit as paid out by hand",
}
