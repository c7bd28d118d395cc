"""A gift card, its states, and its postings."""

from collections.abc import Mapping
from datetime import timedelta
from enum import StrEnum
from typing import Any, Final

import msgspec

from payonce import Amount, Asset, Invalid, Posting, Reference, moved, well_known

HOLDER_MAX_LENGTH: Final = 100
VALID_FOR: Final = timedelta(days=365)

AT_MINT: Final = "mint/float"
"""Our money at the mint, from which it issues cards."""
OUTSTANDING: Final = "giftcards/outstanding"
"""Issued and not expired."""
EXPIRED: Final = "giftcards/expired"


class State(StrEnum):
    ORDERED = "ordered"
    ISSUING = "issuing"
    """The order is at the mint, or about to be sent."""
    ISSUED = "issued"
    REFUSED = "refused"
    """The mint refused the order; nothing moved."""
    EXPIRED = "expired"


TRANSITIONS: Final[Mapping[State, frozenset[State]]] = {
    State.ORDERED: frozenset({State.ISSUING}),
    State.ISSUING: frozenset({State.ISSUED, State.REFUSED}),
    State.ISSUED: frozenset({State.EXPIRED}),
    State.REFUSED: frozenset(),
    State.EXPIRED: frozenset(),
}


class Card(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    holder: str
    amount: Amount
    state: State
    reason: str | None = None
    tenant: str | None = None

    def issued(self) -> Posting:
        return self._posting("issued", AT_MINT, OUTSTANDING)

    def expired(self) -> Posting:
        return self._posting("expired", OUTSTANDING, EXPIRED)

    def _posting(self, step: str, source: str, target: str) -> Posting:
        lines = moved(self.amount, source, target)
        return Posting(f"giftcard:{self.id}:{step}", Reference("giftcard", self.id), lines, step)


def ordered(card_id: str, holder: str, amount: str, currency: str, tenant: str | None = None) -> Card:
    """Raises Invalid for an order that can never be carried out."""
    if not 1 <= len(holder) <= HOLDER_MAX_LENGTH or not holder.isprintable():
        raise Invalid(f"the holder is {holder[:40]!r}; write 1 to {HOLDER_MAX_LENGTH} printable characters")
    value = Amount.from_decimal(amount, well_known(currency))
    if value.minor <= 0:
        raise Invalid(f"a card of {value} cannot be issued; write an amount above zero")
    return Card(id=card_id, holder=holder, amount=value, state=State.ORDERED, tenant=tenant)


def card_from(row: Any) -> Card:
    return Card(
        id=row["id"],
        holder=row["holder"],
        amount=Amount(int(row["amount_minor"]), Asset(row["asset"], row["exponent"])),
        state=State(row["state"]),
        reason=row["reason"],
        tenant=row["tenant"],
    )
