"""Moves money from an account at one bank to an account at another, in two steps, once."""

from payonce import Demo, Service, lazily
from payonce.examples.transfers.handlers import accept_transfer, pay_in, refund, withdraw
from payonce.examples.transfers.invariants import INVARIANTS
from payonce.examples.transfers.policies import QUEUES, VENDOR_TIMEOUT_S
from payonce.examples.transfers.scopes import SCOPES
from payonce.examples.transfers.settings import TransfersSettings
from payonce.examples.transfers.statements import statements
from payonce.examples.transfers.store import REFERENCES, post_opening

ROLES = {"worker": (accept_transfer, withdraw, pay_in, refund)}

SERVICE = Service(
    "transfers",
    "payonce.examples.transfers",
    ROLES,
    INVARIANTS,
    settings=TransfersSettings,
    resources=lazily("payonce.examples.transfers.resources:open_banks"),
    references=REFERENCES,
    statements=statements,
    scenarios=lazily("payonce.examples.transfers.scenario:scenarios"),
    routes=lazily("payonce.examples.transfers.api:build_routes"),
    scopes=SCOPES,
    tenant_scopes=tuple(SCOPES),
    demos=(
        Demo(
            "transfers",
            lazily("payonce.examples.transfers.demo.run:demonstrate"),
            "2,000 transfers between two simulated banks of which one call in five goes wrong, while three worker "
            "processes are killed (SIGKILL) and stopped again and again. At the end the banks' own books and ours are "
            "compared, to the last unit.",
            is_default=True,
        ),
    ),
)

__all__ = [
    "INVARIANTS",
    "QUEUES",
    "REFERENCES",
    "ROLES",
    "SCOPES",
    "SERVICE",
    "VENDOR_TIMEOUT_S",
    "post_opening",
    "statements",
]
