"""A transfer, its states, and what each step writes into the books."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

import msgspec

from payonce import Amount, Asset, Invalid, Posting, Reference, moved, well_known

ID_MAX_LENGTH: Final = 100
ACCOUNT_MAX_LENGTH: Final = 100

HOUSE: Final = "house"
"""Our own account, at either bank: withdrawals arrive there, payments leave from there."""
AT_NORTHBANK: Final = "northbank/house"
AT_SOUTHBANK: Final = "southbank/house"
IN_TRANSIT: Final = "transfers/in_transit"
"""What we owe to customers whose money is with us: never above zero."""


class State(StrEnum):
    REQUESTED = "requested"
    WITHDRAWING = "withdrawing"
    """Ordered at Northbank, or about to be."""
    REFUSED = "refused"
    """Northbank said no: nothing moved."""
    WITHDRAWN = "withdrawn"
    PAYING = "paying"
    """Ordered at Southbank, or about to be."""
    PAID = "paid"
    BOUNCED = "bounced"
    """Southbank said no: the money goes back."""
    REFUNDING = "refunding"
    REFUNDED = "refunded"
    HELD = "held"
    """Northbank does not take it back either: it stays with us until a person has spoken with the customer."""


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
    """What a customer asks for. The id is theirs: the same one again is the same transfer."""

    id: str
    source: str
    """Account at Northbank."""
    target: str
    """Account at Southbank."""
    amount: str
    """Major units, a decimal text."""
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
    """An order that is not taken in, now or later."""


def requested(order: Order) -> Transfer:
    """The order as a transfer, or BadOrder."""
    for what, text, length_max in (
        ("id", order.id, ID_MAX_LENGTH),
        ("source", order.source, ACCOUNT_MAX_LENGTH),
        ("target", order.target, ACCOUNT_MAX_LENGTH),
    ):
        # The id becomes part of the banks' keys, which travel in headers.
        if not 1 <= len(text) <= length_max or not (text.isascii() and text.isprintable()):
            raise BadOrder(
                f"the {what} of a transfer is {text[:40]!r}; it has 1 to {length_max} printable ASCII characters"
            )
    try:
        amount = Amount.from_decimal(order.amount, well_known(order.currency))
    except Invalid as error:
        raise BadOrder(f"transfer {order.id}: {error}") from error
    if amount.minor <= 0:
        raise BadOrder(f"transfer {order.id} moves {amount}; an amount above zero is wanted")
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
