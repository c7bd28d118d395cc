"""The payloads on the queues of payouts that no token carries; those of the five hops are in `tokens/hops.py`.
`docs/messages.md` is made from these types."""

from typing import Final

import msgspec

from payonce.engine.messages.contract import Contract, NoPayload


class Follow(msgspec.Struct, frozen=True, kw_only=True):
    """Look where a payment stands: on the chain, then at the exchange."""

    swap_id: str
    told: str | None = None
    """What a person was told of it last."""
    since: int | None = None
    """When a person said so, in seconds since 1970."""
    missing: int | None = None
    """At how many looks the chain did not show it."""
    refunded_since: int | None = None
    """Since when a refund is announced, in seconds since 1970."""
    returned_by: str | None = None
    """A person says that this transaction brought the deposit back."""
    written_off_by: str | None = None
    """People say that the deposit is lost."""


class HandedOver(msgspec.Struct, frozen=True, kw_only=True):
    """Tell the operator's own GCHostPay of a swap."""

    swap_id: str


class FollowExchange(msgspec.Struct, frozen=True, kw_only=True):
    """Look where the exchange of a swap stands that GCHostPay was told to pay."""

    swap_id: str
    told: str | None = None
    """What a person was told of it last."""
    unpaid_by: str | None = None
    """People say that GCHostPay never paid it."""
    written_off_by: str | None = None
    """People say that the deposit is lost."""


class LookForBatches(msgspec.Struct, frozen=True, kw_only=True):
    """Look which clients are owed enough by now for one swap."""

    after: list[str] | None = None
    """Of the client with whom the page before ended: currency, network, address and memo."""


HAND_OVER: Final = "hand_over_swap"
FOLLOW_EXCHANGE: Final = "follow_exchange"

FOLLOWS: Final = Contract({"": Follow})
EXTERNALS: Final = Contract({HAND_OVER: HandedOver, FOLLOW_EXCHANGE: FollowExchange})
KEEPINGS: Final = Contract(
    {
        "look_for_batches": LookForBatches,
        **dict.fromkeys(("batch_client", "refresh_currencies", "put_back_payouts", "compare_exchanges"), NoPayload),
    }
)
