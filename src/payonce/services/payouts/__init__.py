"""Split payouts: a subscription payment is priced, swapped at ChangeNOW, and paid by the host wallet."""

from payonce.service import Demo, Option, Service, Simulators, lazily
from payonce.services.payouts.decisions.payouts import decision_action
from payonce.services.payouts.decisions.wallet_limits import limit_action
from payonce.services.payouts.domain.config import PayoutConfig
from payonce.services.payouts.handlers.accumulation import batch_client, look_for_batches
from payonce.services.payouts.handlers.estimator import price_payout
from payonce.services.payouts.handlers.external_hostpay import create_hostpay_task, follow_exchange
from payonce.services.payouts.handlers.hostpay import pay_swap
from payonce.services.payouts.handlers.orchestrator import record_swap, value_payout
from payonce.services.payouts.handlers.payment_follow import follow_payment
from payonce.services.payouts.handlers.swapper import create_swap
from payonce.services.payouts.invariants.payouts import INVARIANTS
from payonce.services.payouts.metrics import observe_payouts
from payonce.services.payouts.policies import QUEUES
from payonce.services.payouts.reconciliation import compare_exchanges, statements
from payonce.services.payouts.schedules import SCHEDULES, put_back_payouts, refresh_currencies
from payonce.services.payouts.scopes import SCOPES
from payonce.services.payouts.settings import PayoutsSettings
from payonce.services.payouts.store.lookup import find_payouts, waiting_payouts
from payonce.services.payouts.store.payouts import NAMES, REFERENCES
from payonce.services.payouts.store.wallet_limits import clearance_action

ROLES = {
    "orchestrator": (
        value_payout,
        record_swap,
        refresh_currencies,
        look_for_batches,
        batch_client,
        put_back_payouts,
        compare_exchanges,
        create_hostpay_task,
        follow_exchange,
    ),
    "estimator": (price_payout,),
    "swapper": (create_swap,),
    "hostpay": (pay_swap, follow_payment),
}

LOOKUPS = (find_payouts,)

SERVICE = Service(
    "payouts",
    "payonce.services.payouts",
    ROLES,
    INVARIANTS,
    SCHEDULES,
    settings=PayoutsSettings,
    requires=("grpc", "Crypto"),
    distribution="payonce[payouts]",
    resources=lazily("payonce.services.payouts.resources:open_payouts"),
    references=REFERENCES,
    statements=statements,
    scenarios=lazily("payonce.services.payouts.crash:scenarios"),
    ablations=lazily("payonce.services.payouts.crash:ablations"),
    crash_backend=lazily("payonce.services.payouts.crash:crash_backend"),
    explored_when_named=True,
    routes=lazily("payonce.services.payouts.api.routes:build_routes"),
    scopes=SCOPES,
    pushes=lazily("payonce.services.payouts.resources:payout_targets"),
    observes=observe_payouts,
    names=NAMES,
    lookups=LOOKUPS,
    attention=waiting_payouts,
    console=lazily("payonce.services.payouts.console.pages:service_pages"),
    actions=(decision_action, clearance_action, limit_action),
    demos=(
        Demo(
            "payouts",
            lazily("payonce.services.payouts.demo.run:demonstrate"),
            "Runs 200 split payouts through four roles and a Cloud Tasks server. Each is a process of its own and is "
            "killed repeatedly, while 30 % of the calls to the exchange fail and the exchange is down for two minutes "
            "of simulated time. At the end the books of exchange and chain prove that every client was paid exactly "
            "once. It takes a minute or two, longer on a busy machine. If no payout ends for two minutes, the run "
            "stops, and the unfinished payouts count as lost.",
            size_flag="--payouts",
        ),
    ),
    runnable=lazily("payonce.services.payouts.resources:runnable"),
    simulators=Simulators(
        ("ChangeNOW", "chain"),
        (
            Option("--exchange-port", "Port of the exchange; 0 chooses a free one.", default=9101, min=0, max=65535),
            Option("--chain-port", "Port of the chain; 0 chooses a free one.", default=9102, min=0, max=65535),
        ),
        lazily("payonce.services.payouts.demo.simulator_server:serve"),
    ),
)

__all__ = [
    "INVARIANTS",
    "LOOKUPS",
    "NAMES",
    "QUEUES",
    "REFERENCES",
    "ROLES",
    "SCHEDULES",
    "SCOPES",
    "SERVICE",
    "PayoutConfig",
    "clearance_action",
    "decision_action",
    "limit_action",
    "observe_payouts",
    "statements",
    "waiting_payouts",
]
