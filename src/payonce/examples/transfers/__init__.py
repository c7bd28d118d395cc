"""Money that moves from an account at one bank to an account at another, in two steps, once."""

from payonce.examples.transfers.handlers import accept_transfer, pay_in, refund, withdraw
from payonce.examples.transfers.invariants import INVARIANTS
from payonce.examples.transfers.policies import QUEUES, VENDOR_TIMEOUT_S
from payonce.examples.transfers.scopes import SCOPES
from payonce.examples.transfers.statements import statements
from payonce.examples.transfers.store import REFERENCES, post_opening

ROLES = {"worker": (accept_transfer, withdraw, pay_in, refund)}

__all__ = ["INVARIANTS", "QUEUES", "REFERENCES", "ROLES", "SCOPES", "VENDOR_TIMEOUT_S", "post_opening", "statements"]
