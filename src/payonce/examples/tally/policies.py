"""The queue of the example and its policy."""

from payonce import Exponential, Policy
from payonce.examples.tally.model import Change

CHANGES = Policy(
    "tally-changes",
    max_attempts=5,
    backoff=Exponential(base_delay_seconds=0.1, backoff_multiplier=2.0, max_delay_seconds=2.0, jitter_seconds=0.1),
    # Short, so that the demonstration shows how a killed worker's work is taken over.
    lease_s=2.0,
    run_limit_s=10.0,
    payload=Change,
)
