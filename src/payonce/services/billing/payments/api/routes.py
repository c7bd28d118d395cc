"""Routes of payments: one-off payments, transactions and their refunds, cards, and the gateway's webhooks."""

from http import HTTPStatus
from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter, Depends, Header, Path, Query, Response
from starlette.requests import Request

from payonce.engine.controls import Executed, submit
from payonce.engine.messages.transaction import Tx
from payonce.http.kit.context import AppContext, AppContextDep, Trace
from payonce.http.kit.idempotency import Once
from payonce.http.kit.json_bodies import refuse_repeated
from payonce.http.kit.problems import Problem, not_found, responses
from payonce.http.kit.values import PAGE_DEFAULT, Limit
from payonce.kit.ids import new_id
from payonce.kit.money import Amount, Asset, asset_of
from payonce.kit.outcomes import Invalid, NotSent, Retry
from payonce.kit.webhooks import Refusal
from payonce.services.billing.api.callers import (
    BillingCaller,
    account_of,
    caller_of,
    limit_attempts,
    require_account_or_key,
    require_idempotent,
    require_resource,
)
from payonce.services.billing.api.card_numbers import refuse_card_numbers
from payonce.services.billing.payments import decisions
from payonce.services.billing.payments.api import gateway_events
from payonce.services.billing.payments.api.documents import (
    ID,
    DeliveryDocument,
    GatewayEventReceipt,
    MethodDocument,
    MethodOrder,
    Methods,
    PaymentOrder,
    RefundAnswer,
    RefundDocument,
    RefundOrder,
    TransactionDetails,
    TransactionDocument,
    TransactionPage,
)
from payonce.services.billing.payments.api.gateway_events import GatewayEventReceiver
from payonce.services.billing.payments.api.payment_completion import CompletionWaiter, preferred_s
from payonce.services.billing.payments.decisions import RefundDecision
from payonce.services.billing.payments.handlers.notifications import NotificationSender
from payonce.services.billing.payments.model import State, Transaction, pending_transaction
from payonce.services.billing.payments.store import payment_methods, queries, transactions
from payonce.services.billing.payments.store import refunds as refund_store
from payonce.services.billing.policies import CHARGE_INITIATION
from payonce.services.billing.scopes import CHARGE, OPERATE, READ
from payonce.services.billing.wire import Action, charge_key
from payonce.vendors.gateway.port import AMOUNT_MAX, Gateway

TRANSACTIONS: Final = "/v1/transactions"
METHODS: Final = "/v1/payment-methods"
DECLINED: Final = "urn:payonce:problem:payment-failed:"
"""Followed by the gateway's code."""
ATTEMPTS_SHOWN: Final = 100
"""Per notification."""
READS: Final = responses(400, 401, 403, 404, 422, 429, 503)
CHANGES: Final = responses(400, 401, 403, 404, 409, 413, 422, 429, 503)
PAYS: Final = responses(400, 401, 402, 403, 404, 409, 413, 422, 429, 503)

Id = Annotated[str, Path(pattern=ID)]
OfAccount = Annotated[str | None, Query(pattern=ID, description="The account; customers see only their own.")]


def build_routes() -> APIRouter:
    routes = APIRouter(tags=["payments"], dependencies=[Depends(refuse_card_numbers)])
    _add_paying(routes)
    _add_transactions(routes)
    _add_refunding(routes)
    _add_methods(routes)
    _add_deliveries(routes)
    # The gateway's webhooks are signed; nothing parses them before the signature is verified.
    signed = APIRouter(tags=["payments"])
    _add_gateway(signed)
    both = APIRouter()
    both.include_router(routes)
    both.include_router(signed)
    return both


def _add_paying(routes: APIRouter) -> None:
    waiting = CompletionWaiter()

    pending: dict[int | str, dict[str, Any]] = {
        202: {"model": TransactionDocument, "description": "Still in progress."}
    }

    @routes.post(
        "/v1/payments/process",
        summary="Charge a card without an invoice",
        response_model=TransactionDocument,
        responses=pending | PAYS,
    )
    async def process_payment(
        body: PaymentOrder,
        context: AppContextDep,
        once: Annotated[Once, require_idempotent(CHARGE)],
        prefer: Annotated[
            str | None, Header(description="`wait=3`: seconds to wait, up to 10; `respond-async`: do not wait.")
        ] = None,
    ) -> Response:
        caller = caller_of(once)

        async def act(tx: Tx) -> TransactionDocument:
            account_id = account_of(caller, body.account_id)
            await limit_attempts(tx, caller)
            amount = _amount(body.amount, _asset(body.currency))
            if body.payment_method_id is not None:
                await payment_methods.hold(tx, account_id, body.payment_method_id)
            transaction = _one_off(account_id, amount, body, once.trace_id)
            await transactions.open_pending(tx, transaction)
            await tx.send(
                CHARGE_INITIATION,
                {"transaction_id": transaction.id},
                action=Action.PAYMENT.value,
                key=transaction.charge_key,
                correlation_id=transaction.id,
            )
            found = await transactions.find(tx, transaction.id)
            assert found is not None
            return TransactionDocument.of(found)

        # The order is executed once; the response always shows the current state, also for repeated requests.
        kept = await once.answer(
            _refusing(act), status=HTTPStatus.ACCEPTED, location=lambda made: f"{TRANSACTIONS}/{made.id}"
        )
        if kept.status_code != HTTPStatus.ACCEPTED:
            return kept
        transaction_id = msgspec.json.decode(bytes(kept.body))["id"]
        return _paid(kept, await waiting.ended(context.read, transaction_id, preferred_s(prefer)))


def _paid(kept: Response, transaction: Transaction | None) -> Response:
    if transaction is None or transaction.state is State.PENDING:
        return kept
    if transaction.state is State.FAILED:
        location = {"Location": f"{TRANSACTIONS}/{transaction.id}"}
        text = f"{transaction.decline_code}: {transaction.reason}; transaction {transaction.id}"
        raise Problem(HTTPStatus.PAYMENT_REQUIRED, text, kind=f"{DECLINED}{transaction.decline_code}", headers=location)
    headers = {name: value for name, value in kept.headers.items() if name not in ("content-length", "content-type")}
    shown = TransactionDocument.of(transaction).model_dump_json().encode()
    return Response(shown, HTTPStatus.OK, media_type="application/json", headers=headers)


def _add_transactions(routes: APIRouter) -> None:
    @routes.get(TRANSACTIONS, summary="List transactions, newest first", responses=READS)
    async def list_transactions(
        context: AppContextDep,
        caller: Annotated[BillingCaller, require_account_or_key(READ)],
        account_id: OfAccount = None,
        state: State | None = None,
        limit: Limit = PAGE_DEFAULT,
        after: Annotated[str | None, Query(pattern=ID)] = None,
    ) -> TransactionPage:
        whose = account_id if caller.operator else account_of(caller, account_id)
        found = await transactions.listed(context.read, whose, state, after, limit)
        following = found[-1].id if len(found) == min(limit, transactions.LISTED_MAX) else None
        return TransactionPage(transactions=[TransactionDocument.of(each) for each in found], next_after=following)

    @routes.get(f"{TRANSACTIONS}/{{transaction_id}}", summary="Get a transaction with its refunds", responses=READS)
    async def show_transaction(
        transaction_id: Id, context: AppContextDep, caller: Annotated[BillingCaller, require_account_or_key(READ)]
    ) -> TransactionDetails:
        found = await transactions.find(context.read, transaction_id)
        if found is None or not caller.may_see(found.account_id):
            raise not_found(f"transaction {transaction_id!r}")
        refunds = await refund_store.of_transaction(context.read, transaction_id)
        return TransactionDetails(
            transaction=TransactionDocument.of(found), refunds=[RefundDocument.of(each) for each in refunds]
        )


def _add_refunding(routes: APIRouter) -> None:
    @routes.post(
        f"{TRANSACTIONS}/{{transaction_id}}/refund",
        status_code=202,
        summary="Refund a charge, in full or in part",
        response_model=RefundAnswer,
        responses=CHANGES,
    )
    async def refund_transaction(
        transaction_id: Id,
        body: RefundOrder,
        context: AppContextDep,
        once: Annotated[Once, require_idempotent(CHARGE, operators=True)],
    ) -> Response:
        async def act(tx: Tx) -> RefundAnswer:
            found = await transactions.find(tx, transaction_id)
            if found is None:
                raise not_found(f"transaction {transaction_id!r}")
            amount = None if body.amount is None else _amount(body.amount, found.amount.asset)
            return await _refund(tx, context, found, amount, body, once.caller.holder)

        return await once.answer(
            _refusing(act), status=HTTPStatus.ACCEPTED, location=lambda _: f"{TRANSACTIONS}/{transaction_id}"
        )


async def _refund(
    tx: Tx, context: AppContext, transaction: Transaction, amount: Amount | None, body: RefundOrder, by: str
) -> RefundAnswer:
    """Like in the console: above the threshold a second person must approve."""
    asked = RefundDecision(
        transaction_id=transaction.id,
        left_minor=transaction.left.minor,
        amount_minor=None if amount is None else amount.minor,
        beyond_credit=body.beyond_credit,
        outside=body.outside,
        note=body.reason,
    )
    end = await submit(tx, context.actions[decisions.ACTION], asked, by, body.reason)
    if not isinstance(end, Executed):
        return RefundAnswer(approval=end.id, expires_at=end.expires_at)
    refund = await refund_store.find(tx, end.result["refund"])
    assert refund is not None
    return RefundAnswer(refund=RefundDocument.of(refund))


def _add_methods(routes: APIRouter) -> None:
    @routes.post(f"{METHODS}/", status_code=201, summary="Add a card by its gateway token", responses=CHANGES)
    async def add_payment_method(
        body: MethodOrder,
        context: AppContextDep,
        trace: Trace,
        caller: Annotated[BillingCaller, require_account_or_key(OPERATE)],
    ) -> MethodDocument:
        account_id = account_of(caller, body.account_id)
        gateway = require_resource(context, Gateway)  # type: ignore[type-abstract]
        async with context.begin(trace) as tx:
            await limit_attempts(tx, caller)
        try:
            card = await payment_methods.describe_token(gateway, body.token)
        except (Retry, NotSent) as error:
            raise Problem(HTTPStatus.SERVICE_UNAVAILABLE, "the gateway does not answer; try again") from error
        except Invalid as refusal:
            raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, str(refusal)) from refusal
        async with context.begin(trace) as tx:
            attached = await _refused(payment_methods.attach(tx, account_id, card))
        return await _notified(context, attached)

    @routes.get(f"{METHODS}/", summary="List an account's cards, newest first", responses=READS)
    async def list_payment_methods(
        context: AppContextDep,
        caller: Annotated[BillingCaller, require_account_or_key(READ)],
        account_id: OfAccount = None,
    ) -> Methods:
        found = await payment_methods.of_account(context.read, account_of(caller, account_id))
        return Methods(payment_methods=[MethodDocument.of(each) for each in found])

    @routes.post(f"{METHODS}/{{method_id}}/default", summary="Make this card the default", responses=CHANGES)
    async def choose_payment_method(
        method_id: Id,
        context: AppContextDep,
        trace: Trace,
        caller: Annotated[BillingCaller, require_account_or_key(OPERATE)],
        account_id: OfAccount = None,
    ) -> MethodDocument:
        async with context.begin(trace) as tx:
            await limit_attempts(tx, caller)
            attached = await _refused(payment_methods.make_default(tx, account_of(caller, account_id), method_id))
        return await _notified(context, attached)

    @routes.delete(f"{METHODS}/{{method_id}}", status_code=204, summary="Remove a card", responses=CHANGES)
    async def remove_payment_method(
        method_id: Id,
        context: AppContextDep,
        trace: Trace,
        caller: Annotated[BillingCaller, require_account_or_key(OPERATE)],
        account_id: OfAccount = None,
    ) -> None:
        async with context.begin(trace) as tx:
            await _refused(payment_methods.remove(tx, account_of(caller, account_id), method_id))


def _add_deliveries(routes: APIRouter) -> None:
    @routes.get(
        "/v1/webhooks/delivery/{event_id}",
        summary="Get the delivery status of a notification to subscriptions",
        responses=READS,
    )
    async def show_notification_delivery(
        event_id: Annotated[str, Path(pattern=r"^[0-9a-zA-Z_-]{1,200}$")],
        context: AppContextDep,
        caller: Annotated[BillingCaller, require_account_or_key(READ)],
    ) -> DeliveryDocument:
        found = await queries.delivery(context.read, event_id)
        if found is None or not caller.may_see(found.account_id):
            raise not_found(f"notification {event_id!r}")
        return DeliveryDocument.of(found, await queries.attempts(context.read, event_id, ATTEMPTS_SHOWN))


def _add_gateway(routes: APIRouter) -> None:
    # Not in the OpenAPI document of routes for API keys: the gateway signs its requests, and the README describes them.
    @routes.post(
        "/v1/webhooks/gateway",
        summary="Receive the gateway's signed events",
        include_in_schema=False,
        responses=responses(400, 401, 404, 413, 503),
    )
    async def take_gateway_event(request: Request, context: AppContextDep, trace: Trace) -> GatewayEventReceipt:
        receiver = require_resource(context, GatewayEventReceiver)
        body = await request.body()
        received = await receiver.receive(context.read, request.headers.items(), body)
        if isinstance(received, Refusal):
            raise Problem(received.status, received.detail)
        refuse_repeated(body)
        async with context.begin(trace) as tx:
            outcome = await gateway_events.apply_event(tx, received)
        return GatewayEventReceipt(status=outcome)


def _asset(currency: str) -> Asset:
    try:
        return asset_of(currency)
    except Invalid:
        raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, f"unknown currency {currency}; use its ISO code") from None


def _amount(text: str, asset: Asset) -> Amount:
    try:
        amount = Amount.from_decimal(text, asset)
    except Invalid as refusal:
        raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, f"amount: {refusal}") from refusal
    if not 0 < amount.minor <= AMOUNT_MAX:
        most = Amount(AMOUNT_MAX, asset).to_text()
        raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, f"amount {text} must be above zero and at most {most} {asset}")
    return amount


def _one_off(account_id: str, amount: Amount, body: PaymentOrder, trace_id: str | None) -> Transaction:
    transaction_id = str(new_id())
    return pending_transaction(
        transaction_id,
        charge_key(transaction_id, 1),
        account_id,
        Action.PAYMENT,
        amount,
        payment_method_id=body.payment_method_id,
        metadata={} if body.description is None else {"description": body.description},
        trace_id=trace_id,
    )


def _refusing(act: Any) -> Any:
    async def acting(tx: Tx) -> Any:
        return await _refused(act(tx))

    return acting


async def _refused(doing: Any) -> Any:
    """Turns refusals of the store into problems: 404 for unknown objects, 422 for invalid requests."""
    try:
        return await doing
    except payment_methods.UnknownMethod as refusal:
        raise Problem(HTTPStatus.NOT_FOUND, str(refusal)) from refusal
    except Invalid as refusal:
        raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, str(refusal)) from refusal


async def _notified(context: AppContext, attached: payment_methods.AttachedMethod) -> MethodDocument:
    """Notifies subscriptions at once if possible; otherwise the queue does."""
    if attached.notice is not None:
        for resource in context.resources:
            if isinstance(resource, NotificationSender):
                await resource.at_once(attached.notice)
    return MethodDocument.of(attached.method)
