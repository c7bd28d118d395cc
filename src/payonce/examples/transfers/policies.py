"""The queues of the example and their policies."""

from typing import Final, TypeVar

from payonce import Exponential, NoPayload, Policy
from payonce.examples.transfers.model import Order

VENDOR_TIMEOUT_S: Final = 1.0
"""Time limit of a call to a bank; well below the lease, so that no other run begins meanwhile."""

_BACKOFF: Final = Exponential(base_delay_seconds=0.2, backoff_multiplier=2.0, max_delay_seconds=1.0, jitter_seconds=0.2)
_DAY_S: Final = 86_400.0
PayloadT = TypeVar("PayloadT")


def _policy(queue: str, payload: type[PayloadT]) -> Policy[PayloadT]:
    # Transfers are not given up after a number of attempts, but after a day: then an operator decides.
    # Lease and delays are short for the demonstration: a killed worker's work is taken over in seconds. A real bank
    # requires longer delays; set QUEUE_POLICY__TRANSFERS_PAY_IN__MAX_DELAY_SECONDS and the like.
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
