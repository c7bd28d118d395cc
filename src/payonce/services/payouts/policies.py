"""The queues of payouts, under the names of the original services, and their policies."""

from typing import Final

from payonce.engine.messages.contract import Contract
from payonce.engine.messages.policy import Exponential, Fixed, Policy, Steps
from payonce.services.payouts.messages.payloads import EXTERNALS, FOLLOWS, KEEPINGS
from payonce.services.payouts.messages.tokens import hops
from payonce.services.payouts.store.payouts import give_up

VENDOR_TIMEOUT_S: Final = 20.0
"""Of one call to ChangeNOW; well below the lease, so that no other run begins while this one waits for its answer."""
GIVE_UP_AFTER_S: Final = 86_400.0
RATE_PER_S: Final = 10.0
CONCURRENCY: Final = 50
"""Until `payonce queues tune` has measured: then 80 % of the vendor's rate, and the concurrency for its p95."""

_BACKOFF: Final = Fixed(60.0)
_LEASE_S: Final = 60.0
_RUN_LIMIT_S: Final = 115.0
"""Below the 120 seconds after which a role's request is aborted."""


def _policy(hop: hops.Hop) -> Policy:
    # Payouts are not given up after a number of attempts. After a day without success they go to review.
    return Policy(
        hop.queue,
        max_attempts=None,
        give_up_after_s=GIVE_UP_AFTER_S,
        backoff=_BACKOFF,
        lease_s=_LEASE_S,
        run_limit_s=_RUN_LIMIT_S,
        rate=RATE_PER_S,
        concurrency=CONCURRENCY,
        on_give_up=give_up,
        contract=Contract({"": hop.fields}, hops.read),
    )


ESTIMATE: Final = _policy(hops.ESTIMATE_REQUEST)
ESTIMATED: Final = _policy(hops.ESTIMATE_RESPONSE)
SWAP: Final = _policy(hops.SWAP_REQUEST)
SWAPPED: Final = _policy(hops.SWAP_RESPONSE)
HOSTPAY: Final = _policy(hops.HOST_PAY)

FOLLOW: Final = Policy(
    "payouts-hostpay-follow",
    max_attempts=None,
    backoff=Steps(15.0, 15.0, 30.0, 30.0, 60.0),
    lease_s=_LEASE_S,
    run_limit_s=_RUN_LIMIT_S,
    log="failures",
    contract=FOLLOWS,
)
"""Polls payments until they are final and exchanges until they end, however long that takes."""

EXTERNAL: Final = Policy(
    "payouts-hostpay-external",
    max_attempts=None,
    backoff=Steps(15.0, 15.0, 30.0, 30.0, 60.0),
    lease_s=_LEASE_S,
    run_limit_s=_RUN_LIMIT_S,
    log="failures",
    contract=EXTERNALS,
)
"""Hands swaps over to the operator's own GCHostPay and polls their exchanges until they end."""

QUEUES: Final = (ESTIMATE, ESTIMATED, SWAP, SWAPPED, HOSTPAY)

KEEPING: Final = Policy(
    "payouts-keeping",
    max_attempts=6,
    backoff=Exponential(10.0, 2.0, 300.0, 5.0),
    lease_s=_LEASE_S,
    concurrency=1,
    contract=KEEPINGS,
)
"""Scheduled jobs: the currency list, batches of small payouts, stalled payouts."""
