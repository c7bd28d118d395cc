"""Payouts in the crash explorer: over their task service, from the first message to the end.

scenarios   what is explored, judged by the books of exchange and chain
stand       the queues as they are in production: brought by a task service, with everything of it in one process
ablations   safeguards taken out, each of which must be missed

Here and not beside the service's other rooms, as it needs the vendors' clients and simulators, which no service sees.
"""

from collections.abc import Sequence

from payonce.services.payouts.crash.scenarios import SCENARIOS
from payonce.testing.crash import Scenario

__all__ = ["SCENARIOS"]


def scenarios() -> Sequence[Scenario]:
    return SCENARIOS
