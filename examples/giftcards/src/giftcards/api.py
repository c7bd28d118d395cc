"""Gift cards over HTTP: ordered once however often the order is sent, and shown to their tenant."""

from typing import Annotated, Any, Final

from fastapi import APIRouter, Response
from pydantic import BaseModel, Field

from giftcards import store
from giftcards.model import HOLDER_MAX_LENGTH, State, card_from, ordered
from giftcards.scopes import READ, WRITE
from payonce import Invalid, Tx, new_id
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

PREFIX: Final = "/v1/giftcards"


class CardRequest(RequestBody):
    holder: str = Field(min_length=1, max_length=HOLDER_MAX_LENGTH, description="Who gets the card.")
    amount: str = Field(pattern=r"^[0-9]{1,9}(\.[0-9]{1,2})?$", description="In major units, a text: 25.00.")
    currency: str = Field(pattern="^[A-Z]{3}$", description="Such as EUR.")


class CardDocument(BaseModel):
    id: str
    holder: str
    amount: Money
    state: State
    reason: str | None = Field(description="Why the mint refused it.")
    code: str | None = Field(description="The card's code, once it is issued.")


def build_routes() -> APIRouter:
    routes = APIRouter(prefix=PREFIX, tags=["giftcards"])

    @routes.post(
        "",
        status_code=201,
        summary="Order a gift card",
        response_model=CardDocument,
        responses=responses(400, 401, 403, 409, 413, 422, 429, 503),
    )
    async def order_card(body: CardRequest, once: Annotated[Once, moves_money(WRITE, tenants=True)]) -> Response:
        async def act(tx: Tx) -> CardDocument:
            try:
                card = ordered(str(new_id()), body.holder, body.amount, body.currency, once.caller.tenant)
            except Invalid as error:
                raise Problem(422, str(error)) from error
            await store.order(tx, card)
            return _document(await store.row_of(tx, card.id, card.tenant))

        return await once.answer(act, status=201, location=lambda card: f"{PREFIX}/{card.id}")

    @routes.get("/{card_id}", summary="One gift card", responses=responses(401, 403, 404, 429, 503))
    async def show_card(
        card_id: str, context: AppContextDep, caller: Annotated[Caller, require(READ, tenants=True)]
    ) -> CardDocument:
        row = await store.row_of(context.read, card_id, caller.tenant)
        if row is None:
            raise not_found(f"gift card {card_id!r}")
        return _document(row)

    return routes


def _document(row: Any) -> CardDocument:
    card = card_from(row)
    return CardDocument(
        id=card.id,
        holder=card.holder,
        amount=Money.of(card.amount),
        state=card.state,
        reason=card.reason,
        code=row["code"],
    )
