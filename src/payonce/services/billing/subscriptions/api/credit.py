"""Credit over HTTP: customers read their balance, entries and payouts; operators adjust credit and pay it out."""

from datetime import datetime
from http import HTTPStatus
from typing import Annotated, Final

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, Field, StringConstraints

from payonce.engine.controls import Executed, submit
from payonce.engine.messages.transaction import Tx
from payonce.http.kit.context import AppContext, AppContextDep
from payonce.http.kit.idempotency import Once
from payonce.http.kit.problems import Problem, not_found
from payonce.http.kit.values import NO_CONTROLS, NUMBER_MAX, PAGE_DEFAULT, Limit, Money, RequestBody
from payonce.kit.money import Amount, Asset, asset_of
from payonce.kit.outcomes import Invalid
from payonce.services.billing.api.callers import BillingCaller, account_of, require_idempotent, require_resource
from payonce.services.billing.scopes import CHARGE
from payonce.services.billing.subscriptions.api.common_routes import (
    CHANGES,
    READS,
    Cursor,
    Id,
    IdText,
    OfAccount,
    Viewer,
    refusing,
)
from payonce.services.billing.subscriptions.decisions.credit import ACTION, CreditChange, CreditVerdict
from payonce.services.billing.subscriptions.domain.config import SubscriptionConfig
from payonce.services.billing.subscriptions.model import (
    CreditEntry,
    CreditPayout,
    EntryKind,
    PayoutState,
    PayoutWay,
)
from payonce.services.billing.subscriptions.store import credit, credit_payouts
from payonce.services.billing.subscriptions.store.credit import Balance

PREFIX: Final = "/v1/credit"

AmountText = Annotated[str, StringConstraints(pattern=r"^[0-9]{1,12}(\.[0-9]{1,4})?$")]
Reason = Annotated[str, StringConstraints(min_length=1, max_length=500, pattern=NO_CONTROLS)]


class CreditOrder(RequestBody):
    account_id: IdText = Field(description="The account that the credit belongs to.")
    amount: AmountText = Field(description="In major units as text, such as 29.00; above zero.", examples=["29.00"])
    currency: str = Field(pattern="^[A-Z]{3}$", examples=["AED"])
    reason: Reason = Field(description="Shown on the entry, which the customer sees.")


class AdjustmentOrder(CreditOrder):
    change: CreditVerdict = Field(
        description="add, remove or expire.",
        json_schema_extra={"enum": [CreditVerdict.ADD, CreditVerdict.REMOVE, CreditVerdict.EXPIRE]},
    )


class PayoutOrder(CreditOrder):
    way: PayoutWay = Field(
        PayoutWay.CARD,
        description="card: refund an earlier charge. by_hand: record a payment that the customer already received.",
    )
    invoice: str | None = Field(
        None,
        pattern=r"^[0-9a-zA-Z_-]{1,100}$",
        description="Id or number of the invoice whose charge is refunded. Default: the newest with enough left.",
    )


class BalanceDocument(BaseModel):
    balance: Money
    revision: int = Field(description="Grows with every entry.")

    @classmethod
    def of(cls, found: Balance) -> "BalanceDocument":
        return cls(balance=Money.of(found.amount), revision=found.revision)


class CreditDocument(BaseModel):
    account_id: str
    balances: list[BalanceDocument] = Field(description="One per currency; empty without entries.")


class EntryDocument(BaseModel):
    id: int
    kind: EntryKind
    amount: Money = Field(description="Positive amounts increase the credit.")
    balance: Money = Field(description="The balance after this entry.")
    invoice_id: str | None
    invoice_number: str | None
    payout_id: str | None
    reason: str
    actor: str | None = Field(description="Who made the entry; visible to operators.")
    at: datetime

    @classmethod
    def of(cls, entry: CreditEntry, caller: BillingCaller) -> "EntryDocument":
        return cls(
            id=entry.id,
            kind=entry.kind,
            amount=Money.of(entry.amount),
            balance=Money.of(entry.balance),
            invoice_id=entry.invoice_id,
            invoice_number=entry.invoice_number,
            payout_id=entry.payout_id,
            reason=entry.reason,
            actor=entry.actor if caller.operator else None,
            at=entry.at,
        )


class EntryPage(BaseModel):
    entries: list[EntryDocument]
    next_before: int | None = Field(description="Pass it as `before` to get the next page; null on the last page.")


class PayoutDocument(BaseModel):
    id: str
    account_id: str
    amount: Money
    way: PayoutWay
    state: PayoutState
    invoice_id: str | None
    transaction_id: str | None
    refund_id: str | None
    failure: str | None = Field(description="Why it failed; the credit was restored.")
    reason: str
    created_at: datetime
    ended_at: datetime | None

    @classmethod
    def of(cls, payout: CreditPayout) -> "PayoutDocument":
        return cls(
            id=payout.id,
            account_id=payout.account_id,
            amount=Money.of(payout.amount),
            way=payout.way,
            state=payout.state,
            invoice_id=payout.invoice_id,
            transaction_id=payout.transaction_id,
            refund_id=payout.refund_id,
            failure=payout.failure,
            reason=payout.reason,
            created_at=payout.created_at,
            ended_at=payout.ended_at,
        )


class PayoutPage(BaseModel):
    payouts: list[PayoutDocument]
    next_before: str | None = Field(description="Pass it as `before` to get the next page; null on the last page.")


class CreditAnswer(BaseModel):
    """The result, or the approval that it needs above the threshold of its currency."""

    balance: BalanceDocument | None = None
    payout: PayoutDocument | None = None
    approval: int | None = Field(default=None, description="Id of the approval that a second person grants.")
    expires_at: datetime | None = None


def credit_routes() -> APIRouter:
    routes = APIRouter(prefix=PREFIX, tags=["credit"])
    _add_reading(routes)
    _add_payouts(routes)

    @routes.post(
        "/adjustments",
        status_code=202,
        summary="Add, remove or expire credit",
        response_model=CreditAnswer,
        responses=CHANGES,
    )
    async def adjust_credit(
        body: AdjustmentOrder, context: AppContextDep, once: Annotated[Once, require_idempotent(CHARGE, operators=True)]
    ) -> Response:
        require_resource(context, SubscriptionConfig)

        async def act(tx: Tx) -> CreditAnswer:
            if body.change not in (CreditVerdict.ADD, CreditVerdict.REMOVE, CreditVerdict.EXPIRE):
                raise Invalid(
                    f"change {body.change} must be add, remove or expire; to pay out credit, use {PREFIX}/payouts"
                )
            return await _change(tx, context, body, body.change, None, once.caller.holder)

        return await once.answer(refusing(act), status=HTTPStatus.ACCEPTED)

    @routes.post("/payouts", status_code=202, summary="Pay out credit", response_model=CreditAnswer, responses=CHANGES)
    async def pay_out_credit(
        body: PayoutOrder, context: AppContextDep, once: Annotated[Once, require_idempotent(CHARGE, operators=True)]
    ) -> Response:
        require_resource(context, SubscriptionConfig)
        verdict = CreditVerdict.PAY_OUT if body.way is PayoutWay.CARD else CreditVerdict.PAID_BY_HAND

        async def act(tx: Tx) -> CreditAnswer:
            return await _change(tx, context, body, verdict, body.invoice, once.caller.holder)

        return await once.answer(refusing(act), status=HTTPStatus.ACCEPTED)

    return routes


def _add_reading(routes: APIRouter) -> None:
    @routes.get("", summary="Get a customer's credit", responses=READS)
    async def show_credit(context: AppContextDep, caller: Viewer, account_id: OfAccount = None) -> CreditDocument:
        require_resource(context, SubscriptionConfig)
        whose = account_of(caller, account_id)
        found = await credit.balances(context.read, whose)
        return CreditDocument(account_id=whose, balances=[BalanceDocument.of(each) for each in found])

    @routes.get("/entries", summary="List credit entries, newest first", responses=READS)
    async def list_credit_entries(
        context: AppContextDep,
        caller: Viewer,
        account_id: OfAccount = None,
        limit: Limit = PAGE_DEFAULT,
        before: Annotated[
            int | None, Query(ge=1, le=NUMBER_MAX, description="The last id of the previous page.")
        ] = None,
    ) -> EntryPage:
        require_resource(context, SubscriptionConfig)
        limit = min(limit, credit.LISTED_MAX)
        found = await credit.entries(context.read, account_of(caller, account_id), before, limit)
        following = found[-1].id if len(found) == limit else None
        return EntryPage(entries=[EntryDocument.of(each, caller) for each in found], next_before=following)


def _add_payouts(routes: APIRouter) -> None:
    @routes.get("/payouts", summary="List a customer's payouts, newest first", responses=READS)
    async def list_credit_payouts(
        context: AppContextDep,
        caller: Viewer,
        account_id: OfAccount = None,
        limit: Limit = PAGE_DEFAULT,
        before: Cursor = None,
    ) -> PayoutPage:
        require_resource(context, SubscriptionConfig)
        limit = min(limit, credit_payouts.LISTED_MAX)
        found = await credit_payouts.of_account(context.read, account_of(caller, account_id), before, limit)
        following = found[-1].id if len(found) == limit else None
        return PayoutPage(payouts=[PayoutDocument.of(each) for each in found], next_before=following)

    @routes.get("/payouts/{payout_id}", summary="Get a payout", responses=READS)
    async def show_credit_payout(payout_id: Id, context: AppContextDep, caller: Viewer) -> PayoutDocument:
        require_resource(context, SubscriptionConfig)
        found = await credit_payouts.find(context.read, payout_id)
        if found is None or not caller.may_see(found.account_id):
            raise not_found(f"payout {payout_id!r}")
        return PayoutDocument.of(found)


async def _change(
    tx: Tx, context: AppContext, order: CreditOrder, verdict: CreditVerdict, invoice: str | None, by: str
) -> CreditAnswer:
    """Like in the console: above the threshold a second person must approve."""
    amount = _amount(order.amount, order.currency)
    if await credit.now_of(tx, order.account_id) is None:
        raise not_found(f"account {order.account_id!r}")
    has = await credit.locked_or_created(tx, order.account_id, amount.asset)
    asked = CreditChange(
        account_id=order.account_id,
        currency=amount.asset.code,
        exponent=amount.asset.exponent,
        seen=has.revision,
        verdict=verdict,
        amount_minor=amount.minor,
        invoice=invoice,
        note=order.reason,
    )
    end = await submit(tx, context.actions[ACTION], asked, by, order.reason)
    if not isinstance(end, Executed):
        return CreditAnswer(approval=end.id, expires_at=end.expires_at)
    payout_id = end.result["payout"]
    payout = None if payout_id is None else await credit_payouts.find(tx, payout_id)
    return CreditAnswer(
        balance=BalanceDocument.of(await credit.balance(tx, order.account_id, amount.asset)),
        payout=None if payout is None else PayoutDocument.of(payout),
    )


def _amount(text: str, currency: str) -> Amount:
    try:
        asset: Asset = asset_of(currency)
    except Invalid:
        raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, f"unknown currency {currency}; use its ISO code") from None
    amount = Amount.from_decimal(text, asset)
    if amount.minor <= 0:
        raise Invalid(f"amount {text} must be above zero")
    return amount
