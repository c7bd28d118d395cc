"""The queues of payouts, under the names that the callers of before know, and their policies."""

from typing import Final

from payonce.engine.messages.contract import Contract
from payonce.engine.messages.policy import Exponential, Fixed, Policy, Steps
from payonce.services.payouts.messages.payloads import EXTERNALS, FOLLOWS, KEEPINGS
from payonce.services.payouts.messages.tokens import hops
from payonce.services.payouts.store.payouts import give_up

VENDOR_TIMEOUT_S: Final = 20.0
"""Of one call to ChangeNOW; well below the lease, or another run could begin while this one waits for its answer."""
GIVE_UP_AFTER_S: Final = 86_400.0
RATE_PER_S: Final = 10.0
CONCURRENCY: Final = 50
"""Both until `payonce queues tune` has measured: then 80 % of the vendor's rate, and what its p95 needs."""

_BACKOFF: Final = Fixed(60.0)
_LEASE_S: Final = 60.0
_RUN_LIMIT_S: Final = 115.0
"""Below the 120 seconds after which a role's request is cut off."""


def _policy(hop: hops.Hop) -> Policy:
    # Money is not given up after so many tries. When a day has not helped, the payout goes before a person.
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
"""Looks at payments until they are final and at exchanges until they end, however long that takes: no giving up."""

EXTERNAL: Final = Policy(
    "payouts-hostpay-external",
    max_attempts=None,
    backoff=Steps(15.0, 15.0, 30.0, 30.0, 60.0),
    lease_s=_LEASE_S,
    run_limit_s=_RUN_LIMIT_S,
    log="failures",
    contract=EXTERNALS,
)
"""Hands swaps over to the operator's own GCHostPay, and looks at their exchanges until they end: no giving up."""

QUEUES: Final = (ESTIMATE, ESTIMATED, SWAP, SWAPPED, HOSTPAY)

KEEPING: Final = Policy(
    "payouts-keeping",
    max_attempts=6,
    backoff=Exponential(10.0, 2.0, 300.0, 5.0),
    lease_s=_LEASE_S,
    concurrency=1,
    contract=KEEPINGS,
)
"""What is done by the clock: the list of currencies, batches of small payouts, payouts that nothing works on."""
