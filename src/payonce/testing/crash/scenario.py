"""Scenarios to explore: handlers, the vendors they call, the first messages, and the invariants."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Protocol, runtime_checkable

from payonce.engine.database.connections import Database
from payonce.engine.effects import Answer, EffectRecord, Review
from payonce.engine.janitors import Janitor
from payonce.engine.ledger.model import Reads
from payonce.engine.messages.transaction import NotifyingFeed, Tx
from payonce.engine.messages.work import Handler
from payonce.engine.outbox import Relay
from payonce.kit.http.inprocess import Application
from payonce.kit.http.transport import Transport

Now = Callable[[], datetime]
"""The store's due clock, which the explorer moves."""

Reach = Callable[[str], Transport]
"""Returns the transport to a host's simulator, for the vendor's own HTTP client."""

Simulators = Mapping[str, Application]
"""ASGI applications by host. They run in the explorer and outlive every killed child; their records are the oracle.
Their endpoints must be `async def`: others use threads, and a process with threads cannot be forked safely."""

Decision = tuple[Answer, Any, str | None]
"""An operator's answer, the outcome for HAPPENED, and the vendor's reference."""


class Scenario(Protocol):
    """The members of a scenario. They use only packages below `payonce.testing`, so that a service can define scenarios
    without importing it."""

    @property
    def name(self) -> str: ...

    @property
    def components(self) -> Sequence[tuple[str, str]]:
        """(name, package) pairs whose migrations are applied, as for `known_migrations`."""
        ...

    @property
    def handlers(self) -> Sequence[Handler]: ...

    @property
    def invariants(self) -> Mapping[str, str]:
        """Invariants as queries that return violating rows."""
        ...

    def simulators(self, now: Now) -> Simulators:
        """Creates simulators, with empty records and the same faults every time."""
        ...

    def resources(self, reach: Reach, database: Database, feed: NotifyingFeed) -> Sequence[object]:
        """Creates the handlers' parameters, in every child. `feed` puts messages into the run's queues."""
        ...

    def relays(self, reach: Reach) -> Sequence[Relay]:
        """Creates the relays, in every child."""
        ...

    def janitors(self, database: Database, feed: NotifyingFeed) -> Sequence[Janitor]:
        """Creates janitors that tick once in every child, when nothing else is due."""
        ...

    async def set_up(self, tx: Tx) -> None:
        """Creates the business rows and the first messages, once, before the first crossing."""
        ...

    def decide(self, review: Review, simulators: Simulators) -> Decision:
        """The answer of a truthful operator with access to the vendors' records."""
        ...

    async def answered(self, tx: Tx, effect: EffectRecord, answer: Answer) -> None:
        """What the operator does besides answering, in the same commit; a parked message is redriven."""
        ...

    def happened(self, simulators: Simulators) -> Mapping[str, int]:
        """How often each reference (`key:generation`) is in the vendors' records: more than once is a violation."""
        ...

    def expected_parked(self) -> int:
        """The number of messages parked at the end."""
        ...

    async def check(self, read: Reads, simulators: Simulators) -> list[str]:
        """Compares the vendors' records with ours exactly; one sentence per difference."""
        ...


@dataclass(frozen=True)
class ScenarioOptions:
    """Optional settings of a scenario."""

    wipes: bool = False
    """When a process crashes, a queue outside PostgreSQL loses everything."""
    redrives: bool = False
    """An operator redrives messages parked without a review."""
    redrives_reviews: bool = False
    """An operator redrives messages parked with a review before answering it."""
    pushed: Mapping[str, Sequence[bytes]] = field(default_factory=dict)
    """Bodies pushed directly into the queues' lists at the beginning."""
    leases_pass: bool = False
    """Handlers hold leases of their own: the lease clock advances with the due clock."""


def options_of(scenario: Scenario) -> ScenarioOptions:
    found: ScenarioOptions = getattr(scenario, "options", DEFAULT_OPTIONS)
    return found


DEFAULT_OPTIONS: Final = ScenarioOptions()


@runtime_checkable
class MovableScenario(Protocol):
    """A scenario with a variant for queues in Redis, for instance with fewer invariants."""

    def with_queues_in_redis(self) -> Scenario: ...


class PlainScenario:
    """Defaults for optional members of a scenario."""

    components: Sequence[tuple[str, str]] = ()
    invariants: Mapping[str, str] = {}

    def relays(self, reach: Reach) -> Sequence[Relay]:
        return ()

    def janitors(self, database: Database, feed: NotifyingFeed) -> Sequence[Janitor]:
        return ()

    def decide(self, review: Review, simulators: Simulators) -> Decision:
        raise AssertionError(f"the scenario decides no reviews: {review.question}")

    async def answered(self, tx: Tx, effect: EffectRecord, answer: Answer) -> None:
        return None

    def expected_parked(self) -> int:
        return 0
