"""Payouts over HTTP: the webhook that orders them, quotes, lists, statements, and operators' decisions."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from decimal import Decimal
from http import HTTPStatus
from typing import Annotated, Any, Final, TypeVar

import msgspec
from fastapi import APIRouter, Path, Query, Response
from pydantic import BaseModel, Field, StringConstraints
from starlette.requests import Request
from starlette.responses import StreamingResponse

from payonce.engine.controls import Executed, submit
from payonce.engine.messages.transaction import Tx
from payonce.engine.monitoring.metrics import SIGNATURE_FAILURES
from payonce.http.kit.auth import Caller, require
from payonce.http.kit.context import AppContext, AppContextDep, context_of, trace_of
from payonce.http.kit.idempotency import Once, moves_money
from payonce.http.kit.problems import Problem, not_found, responses
from payonce.http.kit.values import PAGE_DEFAULT, Limit, Moment, Note, RequestBody, no_such_parameters, wrong_query
from payonce.kit.money import Amount
from payonce.kit.outcomes import Invalid, Stale
from payonce.services.payouts.api import quotes
from payonce.services.payouts.api.statement import statement
from payonce.services.payouts.api.webhook import SIGNATURE_HEADER, WebhookRefused, read_webhook, refuse_direct
from payonce.services.payouts.decisions.payouts import ACTION, Decision, Verdict
from payonce.services.payouts.domain.addresses import MEMO_SHAPE
from payonce.services.payouts.domain.config import PayoutConfig
from payonce.services.payouts.domain.pricing import fee_and_rest
from payonce.services.payouts.handlers.wallet import HostWallet
from payonce.services.payouts.model import USDT, Payout, State
from payonce.services.payouts.scopes import DECIDE, READ
from payonce.services.payouts.store import payouts as store
from payonce.services.payouts.store import queries
from payonce.services.payouts.store import swaps as swap_store
from payonce.services.payouts.store.orders import Intake, check_currency, receive
from payonce.services.payouts.store.write_counts import count_writes
from payonce.vendors.changenow.port import ChangeNow

PREFIX: Final = "/v1/payouts"
READS: Final = responses(400, 401, 403, 422, 429, 503)
READS_ONE: Final = responses(400, 401, 403, 404, 422, 429, 503)
DECIDES: Final = responses(400, 401, 403, 404, 409, 413, 422, 429, 503)
EARLIEST: Final = datetime(2000, 1, 1, tzinfo=UTC)

Id = Annotated[str, Path(pattern=r"^[0-9a-zA-Z-]{1,100}$")]
Viewer = Annotated[Caller, require(READ)]
Ticker = Annotated[str, Query(pattern="^[a-zA-Z0-9]{1,30}$")]
Price = Annotated[
    str | None,
    Query(
        pattern=r"^[0-9]{1,12}(\.[0-9]{1,6})?$",
        description="In USDT, such as 29.99. Give `price` or `subscription_price`, not both.",
    ),
]
Found = TypeVar("Found")


class WebhookReceipt(msgspec.Struct, frozen=True):
    """The answer to the webhook; repeating a payment returns the same answer."""

    status: str
    payout_id: str
    unique_id: str
    state: State


class SwapDocument(BaseModel):
    part: int
    state: str
    amount_eth: str
    exchange: str | None = Field(description="ChangeNOW's id.")
    payin_address: str | None


class PayoutDocument(BaseModel):
    id: str
    unique_id: str
    payment_id: str | None
    state: State
    user_id: str
    closed_channel_id: str
    wallet_address: str
    payout_currency: str
    payout_network: str
    price_usdt: str
    fee_usdt: str
    adjusted_usdt: str
    value_eth: str | None
    hold: str | None
    reason: str | None
    held_from: State | None
    trace_id: str | None
    created_at: datetime
    updated_at: datetime
    revision: int = Field(
        description="Send it with a decision; the decision is refused if the payout has changed since."
    )


class PayoutTimeline(PayoutDocument):
    swaps: list[SwapDocument]


class PayoutPage(BaseModel):
    payouts: list[PayoutDocument]
    next_after: str | None = Field(description="Value of `after` for the next page; null on the last page.")


class Accumulated(BaseModel):
    payout_currency: str
    payout_network: str
    wallet_address: str
    extra_id: str | None
    payouts: int
    value_eth: str
    since: datetime


class QuoteDocument(BaseModel):
    price_usdt: str
    fee_usdt: str
    adjusted_usdt: str
    value_eth: str | None = Field(description="The pure market value; null if fees consume it.")
    minimum_eth: str = Field(description="Smaller payouts accumulate until the client's total reaches it.")
    accumulates: bool
    maximum_eth: str | None = Field(description="Larger payouts are paid in parts; null if there is no maximum.")
    client_gets: str | None = Field(description="The exchange's current estimate; if null, `reason` explains.")
    reason: str | None


class DecisionRequest(RequestBody):
    verdict: Verdict
    revision: int = Field(ge=0, le=2**31 - 1, description="The revision that GET returned.")
    note: Note = Field(description="The reason, recorded in the audit log.")
    address: Annotated[str, StringConstraints(pattern=r"^[!-~]{1,200}$")] | None = None
    extra_id: Annotated[str, StringConstraints(pattern=f"^({MEMO_SHAPE})?$")] | None = Field(
        None, description="Memo of the new address; empty if the address needs none."
    )
    transaction: Annotated[str, StringConstraints(pattern=r"^0x[0-9a-fA-F]{64}$")] | None = Field(
        None, description="Hash of the transaction that returned the deposit."
    )
    swap_id: Annotated[str, StringConstraints(pattern=r"^[!-~]{1,100}$")] | None = Field(
        None, description="The swap of the deposit, if several deposits are at the exchange."
    )


class DecisionResult(BaseModel):
    """`done`, or, above the threshold of an asset, waiting for a second person to grant `approval`."""

    payout: str
    done: bool
    state: State | None = None
    approval: int | None = None
    expires_at: datetime | None = None


def build_routes() -> APIRouter:
    routes = APIRouter(tags=["payouts"])
    _add_intake(routes)
    _add_reading(routes)
    _add_deciding(routes)
    return routes


def _add_intake(routes: APIRouter) -> None:
    async def order_payout(request: Request) -> Response:
        """Order a payout by signed webhook."""
        _refuse_query(request)
        context = context_of(request)
        config, signature = _resource(context, PayoutConfig), request.headers.get(SIGNATURE_HEADER)
        try:
            asked = read_webhook(config, signature, await request.body(), await _now(context))
            await check_currency(context.read, asked)
            payout = (await _receive_order(context, trace_of(request), asked)).payout
        except WebhookRefused as refusal:
            if refusal.status is HTTPStatus.UNAUTHORIZED:
                SIGNATURE_FAILURES.labels("payouts", "missing" if signature is None else "forged").inc()
            raise Problem(refusal.status, str(refusal)) from refusal
        receipt = WebhookReceipt("success", payout.id, payout.unique_id, payout.state)
        return Response(msgspec.json.encode(receipt), media_type="application/json")

    # Not in the OpenAPI description, which covers routes with API keys: callers sign, and the README is their contract.
    routes.add_route("/", order_payout, methods=["POST"], include_in_schema=False)

    @routes.get("/quote", summary="Quote fee, estimate and minimum", responses=READS_ONE)
    async def quote_payout(
        context: AppContextDep,
        caller: Viewer,
        payout_currency: Ticker,
        payout_network: Ticker,
        price: Price = None,
        subscription_price: Price = None,
    ) -> QuoteDocument:
        config, changenow = _resource(context, PayoutConfig), _resource(context, ChangeNow)  # type: ignore[type-abstract]
        if price is not None and subscription_price is not None:
            raise Problem(422, "price and subscription_price are names of the same parameter; give one of them")
        price = price if price is not None else subscription_price
        if price is None:
            raise Problem(422, "price is missing; give it in USDT, such as 29.99")
        amount = Amount.from_decimal(Decimal(price), USDT)
        if fee_and_rest(amount, config.fee_percent)[1].minor <= 0:
            raise Problem(422, f"price is {price}, which leaves nothing to pay out after the fee")
        coin = (payout_currency.lower(), payout_network.lower())
        if (refusal := refuse_direct(config, *coin)) is not None:
            raise Problem(422, refusal)
        host = None if config.external_hostpay else _resource(context, HostWallet)
        found = await quotes.quote(changenow, host, config, amount, *coin)
        return QuoteDocument(**found)


def _add_reading(routes: APIRouter) -> None:
    @routes.get(PREFIX, summary="List payouts, newest first", responses=READS)
    async def list_payouts(
        context: AppContextDep,
        caller: Viewer,
        state: State | None = None,
        since: Moment | None = None,
        limit: Limit = PAGE_DEFAULT,
        after: Annotated[str | None, Query(pattern=r"^[0-9a-zA-Z-]{1,100}$")] = None,
    ) -> PayoutPage:
        found = await store.list_payouts(context.read, state, after, limit, since)
        following = found[-1].id if len(found) == min(limit, store.LISTED_MAX) else None
        return PayoutPage(payouts=[PayoutDocument(**_document(each)) for each in found], next_after=following)

    @routes.get(f"{PREFIX}/accumulated", summary="List accumulating payouts by client", responses=READS)
    async def list_accumulated(context: AppContextDep, caller: Viewer) -> list[Accumulated]:
        return [
            Accumulated(
                payout_currency=each.payout_currency,
                payout_network=each.payout_network,
                wallet_address=each.wallet_address,
                extra_id=each.extra_id,
                payouts=each.payouts,
                value_eth=each.value.to_text(),
                since=each.since,
            )
            for each in await queries.accumulated(context.read)
        ]

    @routes.get(
        f"{PREFIX}/statement.csv",
        summary="Download payouts of a period as CSV",
        responses=READS,
        response_class=Response,
    )
    async def payout_statement(
        context: AppContextDep, caller: Viewer, since: Moment = EARLIEST, until: Moment | None = None
    ) -> Response:
        lines: AsyncIterator[str] = statement(context.read, since, until or await _now(context))
        return StreamingResponse(lines, media_type="text/csv")

    @routes.get(f"{PREFIX}/{{payout_id}}", summary="Show a payout with its swaps", responses=READS_ONE)
    async def show_payout(payout_id: Id, context: AppContextDep, caller: Viewer) -> PayoutTimeline:
        found = await store.find(context.read, payout_id)
        if found is None:
            raise not_found(f"payout {payout_id!r}")
        swaps = [
            SwapDocument(
                part=swap.part,
                state=swap.state,
                amount_eth=swap.amount.to_text(),
                exchange=swap.cn_api_id,
                payin_address=swap.payin_address,
            )
            for swap in await swap_store.active_swaps(context.read, found.id)
        ]
        return PayoutTimeline(**_document(found), swaps=swaps)


def _add_deciding(routes: APIRouter) -> None:
    @routes.post(
        f"{PREFIX}/{{payout_id}}/decide",
        summary="Decide about a payout: hold, release, readdress, reject, refund and more",
        response_model=DecisionResult,
        responses=DECIDES,
    )
    async def decide_payout(
        payout_id: Id, body: DecisionRequest, context: AppContextDep, once: Annotated[Once, moves_money(DECIDE)]
    ) -> Response:
        async def act(tx: Tx) -> DecisionResult:
            if await store.find(tx, payout_id) is None:
                raise not_found(f"payout {payout_id!r}")
            asked = Decision(
                payout_id=payout_id,
                seen=body.revision,
                verdict=body.verdict,
                note=body.note,
                address=body.address,
                extra_id=body.extra_id,
                transaction=body.transaction,
                swap_id=body.swap_id,
            )
            try:
                end = await submit(tx, context.actions[ACTION], asked, once.caller.holder, body.note)
            except Stale as error:
                raise Problem(409, str(error)) from error
            except Invalid as error:
                raise Problem(422, str(error)) from error
            if isinstance(end, Executed):
                return DecisionResult(payout=payout_id, done=True, state=end.result["state"])
            return DecisionResult(payout=payout_id, done=False, approval=end.id, expires_at=end.expires_at)

        return await once.answer(act)


def _refuse_query(request: Request) -> None:
    """Query parameters are refused on every route; this one bypasses the router that checks the others."""
    if request.query_params:
        raise wrong_query(no_such_parameters(set(request.query_params), ()))


async def _receive_order(context: AppContext, trace: str | None, asked: Any) -> Intake:
    with count_writes("payouts"):
        async with context.begin(trace) as tx:
            try:
                return await receive(tx, asked)
            except WebhookRefused as refusal:
                # The transaction commits nevertheless: it holds the audit note for the operator who investigates.
                refused = refusal
        raise refused


async def _now(context: AppContext) -> datetime:
    now: datetime = await context.read.fetchval("select payonce.due_now()")
    return now


def _resource(context: AppContext, kind: type[Found]) -> Found:
    for resource in context.resources:
        if isinstance(resource, kind):
            return resource
    raise Problem(404, "this process runs no role of payouts; call the process that runs payouts.orchestrator")


def _document(payout: Payout) -> dict[str, Any]:
    return {
        **store.payout_document(payout),
        "held_from": payout.held_from,
        "trace_id": payout.trace_id,
        "created_at": payout.created_at,
        "updated_at": payout.updated_at,
        "revision": payout.revision,
    }
