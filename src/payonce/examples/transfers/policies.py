"""The queues of the example and their policies."""

from typing import Final, TypeVar

from payonce import Exponential, NoPayload, Policy
from payonce.examples.transfers.model import Order

VENDOR_TIMEOUT_S: Final = 1.0
"""Of one call to a bank; well below the lease, or another run could begin while this one waits for its answer."""

_BACKOFF: Final = Exponential(base_delay_seconds=0.2, backoff_multiplier=2.0, max_delay_seconds=1.0, jitter_seconds=0.2)
_DAY_S: Final = 86_400.0
PayloadT = TypeVar("PayloadT")


def _policy(queue: str, payload: type[PayloadT]) -> Policy[PayloadT]:
    # Money is not given up after so many tries, but when a day has not helped: then a person looks.
    # Lease and delays are short, so that one can watch: the work of a killed worker is taken over in seconds. A real
    # bank deserves longer delays; QUEUE_POLICY__TRANSFERS_PAY_IN__MAX_DELAY_SECONDS and its like set them.
    return Policy(
        queue,
        max_attempts=None,
        give_up_after_s=_DAY_S,
        backoff=_BACKOFF,
        lease_s=2.0,
        run_limit_s=10.0,
        payload=payload,
    )


REQUESTS: Final = _policy("transfers-requests", Order)
WITHDRAW: Final = _policy("transfers-withdraw", NoPayload)
PAY_IN: Final = _policy("transfers-pay-in", NoPayload)
REFUND: Final = _policy("transfers-refund", NoPayload)

QUEUES: Final = (REQUESTS, WITHDRAW, PAY_IN, REFUND)
