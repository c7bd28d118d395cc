"""Messages that each change one row once, some of them with a fault on board."""

from payonce.examples.tally.handlers import apply_change
from payonce.examples.tally.invariants import INVARIANTS
from payonce.examples.tally.policies import CHANGES
from payonce.service import Service

ROLES = {"worker": (apply_change,)}

SERVICE = Service("tally", "payonce.examples.tally", ROLES, INVARIANTS)

__all__ = ["CHANGES", "INVARIANTS", "ROLES", "SERVICE"]
