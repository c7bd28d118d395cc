"""The payloads of the queues that carry no tokens; those of the five hops are in `tokens/hops.py`. `docs/messages.md`
is generated from these types."""

from typing import Final

import msgspec

from payonce.engine.messages.contract import Contract, NoPayload


class Follow(msgspec.Struct, frozen=True, kw_only=True):
    """Check the state of a payment: on the chain, then at the exchange."""

    swap_id: str
    told: str | None = None
    """The state that was last reported to operators."""
    since: int | None = None
    """When an operator declared it, in seconds since 1970."""
    missing: int | None = None
    """The number of checks in which the chain did not show the payment."""
    refunded_since: int | None = None
    """When the refund was announced, in seconds since 1970."""
    returned_by: str | None = None
    """Operators declared that this transaction returned the deposit."""
    written_off_by: str | None = None
    """Operators who declared the deposit lost."""


class HandOver(msgspec.Struct, frozen=True, kw_only=True):
    """Create a task for the operator's own GCHostPay to pay a swap."""

    swap_id: str


class FollowExchange(msgspec.Struct, frozen=True, kw_only=True):
    """Check the exchange of a swap that was handed over to GCHostPay."""

    swap_id: str
    told: str | None = None
    """The state that was last reported to operators."""
    unpaid_by: str | None = None
    """Operators who declared that GCHostPay has not paid it."""
    written_off_by: str | None = None
    """Operators who declared the deposit lost."""


class LookForBatches(msgspec.Struct, frozen=True, kw_only=True):
    """Find the clients whose accumulated payouts are enough for one swap."""

    after: list[str] | None = None
    """The last client of the previous page: currency, network, address and memo."""


HAND_OVER: Final = "hand_over_swap"
FOLLOW_EXCHANGE: Final = "follow_exchange"

FOLLOWS: Final = Contract({"": Follow})
EXTERNALS: Final = Contract({HAND_OVER: HandOver, FOLLOW_EXCHANGE: FollowExchange})
KEEPINGS: Final = Contract(
    {
        "look_for_batches": LookForBatches,
        **dict.fromkeys(("batch_client", "refresh_currencies", "put_back_payouts", "compare_exchanges"), NoPayload),
    }
)
