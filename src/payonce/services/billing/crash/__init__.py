"""Billing in the crash explorer: trials, renewals with dunning, plan changes, credit and races between them, from the
first message to the final state.

scenarios   the explored sequences, checked against the gateway's books
races       scenarios in which several operations run at the same moment
customers   HTTP requests of customers and operators, as messages
notification_route
            the webhook route in the crashing process, which thereby crashes in the receiver as well as the sender
ablations   safeguards that are removed; each removal must be detected
"""

from collections.abc import Sequence

from payonce.services.billing.crash.races import RACES
from payonce.services.billing.crash.scenarios import SEQUENTIAL
from payonce.testing.crash import Ablation, Scenario

SCENARIOS = (*SEQUENTIAL, *RACES)

__all__ = ["SCENARIOS"]


def scenarios() -> Sequence[Scenario]:
    return SCENARIOS


def ablations() -> Sequence[Ablation]:
    """The removed safeguards are above the queues and the same on both backends."""
    from payonce.services.billing.crash.ablations import ABLATIONS

    return ABLATIONS
