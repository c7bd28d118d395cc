"""The cards on record, each function with its SQL beside it."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final

from giftcards.model import AT_MINT, TRANSITIONS, Card, State, card_from
from giftcards.policies import ISSUE, OrderedCard
from payonce import Amount, Connection, Posting, Reader, Reference, Retry, Tx, Unprocessable, moved, post

OPENING: Final = "giftcards-opening"
REFERENCES: Final = {
    "giftcard": "select id from giftcards.cards where id = any($1::text[])",
    OPENING: f"select id from unnest($1::text[]) as given (id) where id = '{AT_MINT}'",
}
"""For each kind of posting reference, the ids that exist."""


async def order(tx: Tx, card: Card) -> None:
    """The card and the message that issues it exist together, or neither does."""
    await tx.execute(
        """
        insert into giftcards.cards (id, holder, asset, exponent, amount_minor, tenant) values ($1, $2, $3, $4, $5, $6)
        """,
        card.id,
        card.holder,
        card.amount.asset.code,
        card.amount.asset.exponent,
        card.amount.minor,
        card.tenant,
    )
    await tx.send(ISSUE, OrderedCard(card.id), key=f"issue:{card.id}", correlation_id=card.id, lane=card.tenant)


async def card_of(read: Reader | Tx, card_id: str) -> Card:
    row = await read.fetchrow("select * from giftcards.cards where id = $1", card_id)
    if row is None:
        raise Unprocessable(f"there is no gift card {card_id!r}")
    return card_from(row)


async def row_of(read: Reader | Tx, card_id: str, tenant: str | None) -> Any | None:
    """The card as a caller sees it; a tenant finds only its own cards."""
    return await read.fetchrow(
        "select * from giftcards.cards where id = $1 and ($2::text is null or tenant = $2)", card_id, tenant
    )


async def move(
    tx: Tx, card: Card, before: State, after: State, *, reason: str | None = None, code: str | None = None
) -> None:
    """Compare-and-set. Raises Retry for a card whose state has changed since it was read."""
    assert after in TRANSITIONS[before], f"a card does not go from {before} to {after}"
    changed = await tx.fetchval(
        """
        update giftcards.cards
        set state = $3, reason = $4, code = coalesce($5, code),
            issued_at = case when $3 = 'issued' then payonce.due_now() else issued_at end
        where id = $1 and state = $2 returning true
        """,
        card.id,
        before,
        after,
        reason,
        code,
    )
    if changed is None:
        raise Retry(f"gift card {card.id} is no longer {before}")


async def issued_before(tx: Tx, moment: datetime, limit: int) -> list[Card]:
    """The oldest cards that were issued before that moment, locked."""
    rows = await tx.fetch(
        """
        select * from giftcards.cards where state = 'issued' and issued_at < $1
        order by issued_at limit $2 for update skip locked
        """,
        moment,
        limit,
    )
    return [card_from(row) for row in rows]


async def post_opening(connection: Connection, amounts: Iterable[Amount]) -> None:
    """The money that the mint holds for us before the first card; posted once."""
    for amount in amounts:
        lines = moved(amount, "equity/opening", AT_MINT)
        await post(connection, Posting(f"giftcards:opening:{amount.asset.code}", Reference(OPENING, AT_MINT), lines))


async def counts(read: Reader) -> dict[State, int]:
    rows = await read.fetch("select state, count(*) as count from giftcards.cards group by state")
    return {State(row["state"]): row["count"] for row in rows}
