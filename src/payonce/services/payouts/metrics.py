"""The metrics of payouts and of the host wallet; gauges are read from the store."""

from prometheus_client import Counter, Gauge

from payonce.engine.database.connections import Database
from payonce.engine.monitoring.metrics import REGISTRY
from payonce.services.payouts.model import ENDED, State

PAYOUTS_OPEN = Gauge("payonce_payouts_open", "Payouts that have not ended.", ["state"], registry=REGISTRY)
PAYOUTS_OLDEST_SECONDS = Gauge(
    "payonce_payouts_oldest_seconds",
    "For how long the payout that moved longest ago has stood in a state; 0 without one.",
    ["state"],
    registry=REGISTRY,
)
WALLET_PAYMENTS = Counter(
    "payonce_wallet_payments_total",
    "Payments of the host wallet, by what became of them.",
    ["asset", "outcome"],
    registry=REGISTRY,
)
WALLET_BALANCE = Gauge(
    "payonce_wallet_balance",
    "What the host wallet held when a payment last looked, in major units.",
    ["asset"],
    registry=REGISTRY,
)
WALLET_LOW = Gauge(
    "payonce_wallet_low",
    "1 while the host wallet holds less than it should or than a payment needs.",
    ["asset"],
    registry=REGISTRY,
)
HOP_TOKEN_FAILURES = Counter(
    "payonce_hop_token_failures_total",
    "Tokens between roles that could not be made or were refused.",
    ["hop", "operation", "why"],
    registry=REGISTRY,
)


async def observe_payouts(database: Database) -> None:
    """Those that have not ended, in one pass over their own index."""
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
