"""The queues and their policies."""

from typing import Final

import msgspec

from payonce import Exponential, NoPayload, Policy

MINT_TIMEOUT_S: Final = 1.0
"""Of one call; well below the lease, so that no other run begins while one waits for its answer."""

# Delays and leases are short, so that one can watch a killed worker's cards being taken over.
_BACKOFF: Final = Exponential(base_delay_seconds=0.2, backoff_multiplier=2.0, max_delay_seconds=1.0, jitter_seconds=0.2)


class OrderedCard(msgspec.Struct, frozen=True):
    """The payload of the queue that issues cards."""

    card_id: str


ISSUE: Final = Policy(
    "giftcards-issue",
    max_attempts=None,
    give_up_after_s=86_400,
    backoff=_BACKOFF,
    lease_s=2.0,
    run_limit_s=10.0,
    payload=OrderedCard,
)
EXPIRY: Final = Policy("giftcards-expiry", backoff=_BACKOFF, payload=NoPayload)
