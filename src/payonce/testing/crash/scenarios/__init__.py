"""The built-in scenarios: one for each safety of effects, and a chain of steps with a compensation."""

from dataclasses import replace
from typing import Final

from payonce.testing.crash.scenario import Scenario
from payonce.testing.crash.scenarios import payments
from payonce.testing.crash.scenarios.bank_scenario import BankScenario

PAID: Final = frozenset({"paid"})

CHARGE: Final = BankScenario(
    "charge",
    (payments.charge, payments.send_receipt),
    payments.CHARGE,
    {"c-1": 1_000, "c-2": 2_500},
    {"c-1": PAID, "c-2": PAID},
    {("charges", "c-2:1"): ("lost after",)},
    repeated=("c-1",),
    prunes=True,
)
PURCHASE: Final = BankScenario(
    "purchase",
    (payments.purchase, payments.send_receipt),
    payments.PURCHASE,
    {"p-1": 700, "p-2": 900},
    {"p-1": PAID, "p-2": PAID},
    {("payments", "p-2:1"): ("lost before",)},
)
BROADCAST: Final = BankScenario(
    "broadcast",
    (payments.broadcast, payments.send_receipt),
    payments.BROADCAST,
    {"b-1": 40},
    {"b-1": PAID},
    {("quotes", "b-1:1"): ("lost after",), ("broadcasts", "b-1:1"): ("lost after",)},
)
WIRE: Final = BankScenario(
    "wire",
    (payments.wire, payments.send_receipt),
    payments.WIRE,
    {"w-1": 10_000, "w-2": 20_000},
    {payment_id: frozenset({"paid", "rejected"}) for payment_id in ("w-1", "w-2")},
    {("wires", "w-1:1"): ("lost after",), ("wires", "w-2:1"): ("refused connection", "lost before")},
)
REDRIVEN: Final = replace(WIRE, name="wire-redriven", redrives_reviews=True, redrives=True)
"""The redrive leaves one attempt for the run after the answer. A server crash uses it up, and the operator redrives
again."""
TRANSFER: Final = BankScenario(
    "transfer",
    (payments.transfer, payments.credit, payments.return_money),
    payments.TRANSFER,
    {"t-1": 5_000, "t-2": 6_000},
    {"t-1": frozenset({"credited"}), "t-2": frozenset({"returned"})},
    away_faults={("charges", "credit t-2:1"): ("declined",)},
    publishes=True,
)

BY_HAND: Final = BankScenario(
    "by-hand",
    (payments.charge, payments.insist, payments.send_receipt),
    payments.CHARGE,
    {"h-1": 300, "h-2": 400},
    {"h-1": PAID, "h-2": PAID},
    {("charges", "h-1:1"): ("refused connection", "refused connection")},
    by_hand={"h-1": payments.CHARGE, "h-2": payments.INSIST},
    redrives=True,
)
MISFITS: Final = BankScenario(
    "misfits",
    (payments.charge_checked, payments.send_receipt),
    payments.CHECKED,
    {"m-1": 300},
    {"m-1": PAID},
    {},
    by_hand={"m-1": payments.CHECKED},
    misfits=(b"no json", b'{"id": 7}', b'{"payload": {"before": 1}}', b'{"action": "reticulate", "payload": {}}'),
)
WIPED: Final = replace(CHARGE, name="wiped", wipes=True)
WIPED_PARKED: Final = replace(WIRE, name="wiped-wire", wipes=True)

BUILT_IN: Final[tuple[Scenario, ...]] = (CHARGE, PURCHASE, BROADCAST, WIRE, REDRIVEN, TRANSFER)
ON_REDIS_ALONE: Final[tuple[Scenario, ...]] = (BY_HAND, MISFITS, WIPED, WIPED_PARKED)
"""Problems of queues outside PostgreSQL alone: directly pushed bodies, and the loss of all messages."""
