"""Transfers over HTTP: an order takes effect once, however often it is sent; tenants see only their own."""

from datetime import datetime
from typing import Annotated, Final

from fastapi import APIRouter, Path, Response
from pydantic import BaseModel, Field, StringConstraints

from payonce import Tx, new_id
from payonce.examples.transfers import store
from payonce.examples.transfers.model import ACCOUNT_MAX_LENGTH, ID_MAX_LENGTH, BadOrder, Order, State, Transfer
from payonce.examples.transfers.scopes import READ, WRITE
from payonce.http.kit import (
    AppContextDep,
    Caller,
    Money,
    Once,
    Problem,
    RequestBody,
    moves_money,
    not_found,
    require,
    responses,
)

PREFIX: Final = "/v1/transfers"
Account = Annotated[str, StringConstraints(pattern=rf"^[ -~]{{1,{ACCOUNT_MAX_LENGTH}}}$")]
Id = Annotated[str, Path(pattern=rf"^[ -~]{{1,{ID_MAX_LENGTH}}}$")]


class TransferOrder(RequestBody):
    source: Account = Field(description="Account at Northbank.")
    target: Account = Field(description="Account at Southbank.")
    amount: str = Field(
        pattern=r"^[0-9]{1,15}(\.[0-9]{1,18})?$", description="In major units, a text: 12.50. Above zero."
    )
    currency: str = Field(pattern="^[A-Z]{3,10}$", description="Such as EUR.")


class TransferDocument(BaseModel):
    id: str
    source: str
    target: str
    amount: Money
    state: State
    reason: str | None = Field(description="Why a bank said no.")
    trace_id: str | None = Field(description="GET /v1/traces follows it, for those of the house.")
    created_at: datetime
    updated_at: datetime


def build_routes() -> APIRouter:
    routes = APIRouter(prefix=PREFIX, tags=["transfers"])

    @routes.post(
        "",
        status_code=201,
        summary="Order a transfer",
        response_model=TransferDocument,
        responses=responses(400, 401, 403, 409, 413, 422, 429, 503),
    )
    async def order_transfer(body: TransferOrder, once: Annotated[Once, moves_money(WRITE, tenants=True)]) -> Response:
        async def act(tx: Tx) -> TransferDocument:
            # The id is ours, so a tenant's order can neither collide with nor reveal another tenant's.
            order = Order(id=str(new_id()), **body.model_dump())
            try:
                await store.request(tx, order, once.caller.tenant, once.trace_id)
            except BadOrder as error:
                raise Problem(422, str(error)) from error
            found = await store.seen(tx, order.id, once.caller.tenant)
            assert found is not None
            return _document(found)

        return await once.answer(act, status=201, location=lambda made: f"{PREFIX}/{made.id}")

    @routes.get("/{transfer_id}", summary="One transfer", responses=responses(401, 403, 404, 422, 429, 503))
    async def show_transfer(
        transfer_id: Id, context: AppContextDep, caller: Annotated[Caller, require(READ, tenants=True)]
    ) -> TransferDocument:
        found = await store.seen(context.read, transfer_id, caller.tenant)
        if found is None:
            raise not_found(f"transfer {transfer_id!r}")
        return _document(found)

    return routes


def _document(found: store.Seen) -> TransferDocument:
    transfer: Transfer = found.transfer
    return TransferDocument(
        id=transfer.id,
        source=transfer.source,
        target=transfer.target,
        amount=Money.of(transfer.amount),
        state=transfer.state,
        reason=transfer.reason,
        trace_id=found.trace_id,
        created_at=found.created_at,
        updated_at=found.updated_at,
    )
