"""A transfer, its states, and the postings of each step."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

import msgspec

from payonce import Amount, Asset, Invalid, Posting, Reference, moved, well_known

ID_MAX_LENGTH: Final = 100
ACCOUNT_MAX_LENGTH: Final = 100

HOUSE: Final = "house"
"""Our own account, at either bank: withdrawals are paid into it, payments out of it."""
AT_NORTHBANK: Final = "northbank/house"
AT_SOUTHBANK: Final = "southbank/house"
IN_TRANSIT: Final = "transfers/in_transit"
"""Our debt to customers whose money we hold: never above zero."""


class State(StrEnum):
    REQUESTED = "requested"
    WITHDRAWING = "withdrawing"
    """Ordered at Northbank, or about to be."""
    REFUSED = "refused"
    """Northbank refused: no money has moved."""
    WITHDRAWN = "withdrawn"
    PAYING = "paying"
    """Ordered at Southbank, or about to be."""
    PAID = "paid"
    BOUNCED = "bounced"
    """Southbank refused: the money is refunded."""
    REFUNDING = "refunding"
    REFUNDED = "refunded"
    HELD = "held"
    """Northbank refuses the refund, too: we keep the money until an operator has contacted the customer."""


TRANSITIONS: Final[Mapping[State, frozenset[State]]] = {
    State.REQUESTED: frozenset({State.WITHDRAWING}),
    State.WITHDRAWING: frozenset({State.WITHDRAWN, State.REFUSED}),
    State.WITHDRAWN: frozenset({State.PAYING}),
    State.PAYING: frozenset({State.PAID, State.BOUNCED}),
    State.BOUNCED: frozenset({State.REFUNDING}),
    State.REFUNDING: frozenset({State.REFUNDED, State.HELD}),
    State.REFUSED: frozenset(),
    State.PAID: frozenset(),
    State.REFUNDED: frozenset(),
    State.HELD: frozenset(),
}

ENDED: Final = frozenset(state for state, following in TRANSITIONS.items() if not following)


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """A customer's order. The id is the customer's: repeating it refers to the same transfer."""

    id: str
    source: str
    """An account at Northbank."""
    target: str
    """An account at Southbank."""
    amount: str
    """Major units, as decimal text."""
    currency: str


class Transfer(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    source: str
    target: str
    amount: Amount
    state: State
    reason: str | None = None
    tenant: str | None = None

    @property
    def scope(self) -> str:
        """At most one order of a transfer is open at the banks."""
        return f"transfer:{self.id}"

    def withdrawn(self) -> Posting:
        return self._posting("withdrawn", IN_TRANSIT, AT_NORTHBANK)

    def paid(self) -> Posting:
        return self._posting("paid", AT_SOUTHBANK, IN_TRANSIT)

    def refunded(self) -> Posting:
        return self._posting("refunded", AT_NORTHBANK, IN_TRANSIT)

    def _posting(self, step: str, source: str, target: str) -> Posting:
        return Posting(
            f"transfer:{self.id}:{step}", Reference("transfer", self.id), moved(self.amount, source, target), step
        )


class BadOrder(Invalid):
    """An order that can never be accepted."""


def requested(order: Order) -> Transfer:
    """Converts an order to a transfer. Raises BadOrder."""
    for what, text, length_max in (
        ("id", order.id, ID_MAX_LENGTH),
        ("source", order.source, ACCOUNT_MAX_LENGTH),
        ("target", order.target, ACCOUNT_MAX_LENGTH),
    ):
        # The id becomes part of the banks' keys, which are sent in headers.
        if not 1 <= len(text) <= length_max or not (text.isascii() and text.isprintable()):
            raise BadOrder(
                f"the {what} of a transfer is {text[:40]!r}; it has 1 to {length_max} printable ASCII characters"
            )
    try:
        amount = Amount.from_decimal(order.amount, well_known(order.currency))
    except Invalid as error:
        raise BadOrder(f"transfer {order.id}: {error}") from error
    if amount.minor <= 0:
        raise BadOrder(f"transfer {order.id} moves {amount}; the amount must be above zero")
    return Transfer(id=order.id, source=order.source, target=order.target, amount=amount, state=State.REQUESTED)


def transfer_from(row: Any) -> Transfer:
    return Transfer(
        id=row["id"],
        source=row["source"],
        target=row["target"],
        amount=Amount(int(row["amount_minor"]), Asset(row["asset"], row["exponent"])),
        state=State(row["state"]),
        reason=row["reason"],
        tenant=row["tenant"],
    )
