"""Messages that each change one row once, some of them with an injected fault."""

from payonce import Demo, Service, lazily
from payonce.examples.tally.handlers import apply_change
from payonce.examples.tally.invariants import INVARIANTS
from payonce.examples.tally.policies import CHANGES

ROLES = {"worker": (apply_change,)}

SERVICE = Service(
    "tally",
    "payonce.examples.tally",
    ROLES,
    INVARIANTS,
    demos=(
        Demo(
            "queue",
            lazily("payonce.examples.tally.demo.run:demonstrate"),
            "5,000 messages; some ask for a retry, some hit a bug, some always fail, some kill their worker. At the "
            "end each is applied once or parked, with its reason.",
            size_flag="--messages",
        ),
    ),
)

__all__ = ["CHANGES", "INVARIANTS", "ROLES", "SERVICE"]
