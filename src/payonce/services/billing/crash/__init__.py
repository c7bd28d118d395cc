"""Billing in the crash explorer: trials, renewals with dunning, changes of plan, credit, and what meets them, from the
first message to the end.

scenarios   what is explored, judged by the gateway's books
races       the same, where several things meet at one moment
customers   what people ask for over HTTP, as messages
notification_route
            the webhook's route in the struck process, which so dies in the receiver as well as in the sender
ablations   safeguards taken out, each of which must be missed
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
    """What is taken out lies above the queues, and is the same on both backends."""
    from payonce.services.billing.crash.ablations import ABLATIONS

    return ABLATIONS
