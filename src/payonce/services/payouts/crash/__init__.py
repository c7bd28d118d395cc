"""Payouts in the crash explorer: over their task service, from the first message to the end.

scenarios   the scenarios, judged by the books of exchange and chain
queues      the queues as in production, delivered by a task service, with all roles in one process
ablations   removed safeguards, each of which must be missed
"""

from collections.abc import Sequence

from payonce.kit.outcomes import Invalid, Unavailable
from payonce.queues.cloudtasks.client import NO_PACKAGE
from payonce.services.payouts.crash.scenarios import SCENARIOS
from payonce.testing.crash import ON_POSTGRES, Ablation, Backend, Scenario

__all__ = ["SCENARIOS"]


def scenarios() -> Sequence[Scenario]:
    return SCENARIOS


def crash_backend(asked: str) -> Backend:
    """The backend of these scenarios: our task server, whose tasks are in PostgreSQL."""
    if asked != ON_POSTGRES.name:
        names = ", ".join(sorted(scenario.name for scenario in SCENARIOS))
        raise Invalid(f"{names} are explored over their task service; leave out --backend")
    try:
        from payonce.services.payouts.crash.queues import open_backend
    except ModuleNotFoundError as error:
        raise Unavailable(NO_PACKAGE) from error
    return open_backend()


def ablations() -> Sequence[Ablation]:
    try:
        from payonce.services.payouts.crash.ablations import ABLATIONS
    except ModuleNotFoundError as error:
        raise Unavailable(NO_PACKAGE) from error
    return ABLATIONS
