"""The metrics of payouts and of the host wallet; gauges are read from the store."""

from prometheus_client import Counter, Gauge

from payonce.engine.database.connections import Database
from payonce.engine.monitoring.metrics import REGISTRY
from payonce.services.payouts.model import ENDED, State

PAYOUTS_OPEN = Gauge("payonce_payouts_open", "Payouts that have not ended.", ["state"], registry=REGISTRY)
PAYOUTS_OLDEST_SECONDS = Gauge(
    "payonce_payouts_oldest_seconds",
    "Seconds since the last change of the oldest payout in a state; 0 without one.",
    ["state"],
    registry=REGISTRY,
)
WALLET_PAYMENTS = Counter(
    "payonce_wallet_payments_total",
    "Payments of the host wallet, by outcome.",
    ["asset", "outcome"],
    registry=REGISTRY,
)
WALLET_BALANCE = Gauge(
    "payonce_wallet_balance",
    "Balance of the host wallet when a payment last read it, in major units.",
    ["asset"],
    registry=REGISTRY,
)
WALLET_LOW = Gauge(
    "payonce_wallet_low",
    "1 while the host wallet's balance is below its alert level or too low for a payment.",
    ["asset"],
    registry=REGISTRY,
)
HOP_TOKEN_FAILURES = Counter(
    "payonce_hop_token_failures_total",
    "Tokens between roles that could not be encoded or were refused.",
    ["hop", "operation", "why"],
    registry=REGISTRY,
)


async def observe_payouts(database: Database) -> None:
    """Sets the gauges of payouts that have not ended, in one pass over a partial index."""
    rows = await database.engine.fetch(
        """
        select state, count(*) as count,
            greatest(0, extract(epoch from payonce.due_now() - min(updated_at)))::float8 as oldest_s
        from payouts.payouts where state not in ('finished', 'rejected', 'refunded') group by state
        """
    )
    found = {row["state"]: (row["count"], row["oldest_s"]) for row in rows}
    for state in frozenset(State) - ENDED:
        count, oldest_s = found.get(state, (0, 0.0))
        PAYOUTS_OPEN.labels(state).set(count)
        PAYOUTS_OLDEST_SECONDS.labels(state).set(oldest_s)
