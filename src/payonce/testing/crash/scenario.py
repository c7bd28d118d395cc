"""What is explored: a scenario names its handlers, the vendors they call, the first messages, and what must hold."""

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
"""The store's due clock, which stands still but for the explorer's hops."""

Reach = Callable[[str], Transport]
"""From a host to what carries requests to its simulator: give it to the vendor's own HTTP client."""

Simulators = Mapping[str, Application]
"""ASGI applications by host. They live in the explorer and outlive every killed child; their books are the oracle.
Their endpoints must be `async def`: others run in threads, and a process with threads cannot be forked safely."""

Decision = tuple[Answer, Any, str | None]
"""A person's answer, the outcome that goes with HAPPENED, and the vendor's name for it."""


class Scenario(Protocol):
    """Names only what lies below `payonce.testing`, so that a service can bring its own without importing it."""

    @property
    def name(self) -> str: ...

    @property
    def components(self) -> Sequence[tuple[str, str]]:
        """(name, package) of those whose migrations are applied, as for `known_migrations`."""
        ...

    @property
    def handlers(self) -> Sequence[Handler]: ...

    @property
    def invariants(self) -> Mapping[str, str]:
        """What must always hold, as queries that return the rows that break it."""
        ...

    def simulators(self, now: Now) -> Simulators:
        """Fresh ones, with empty books and the same faults every time."""
        ...

    def resources(self, reach: Reach, database: Database, feed: NotifyingFeed) -> Sequence[object]:
        """What the handlers take as parameters; made in every child. `feed` puts where the queues of this run lie."""
        ...

    def relays(self, reach: Reach) -> Sequence[Relay]:
        """What carries the outbox on; made in every child."""
        ...

    def janitors(self, database: Database, feed: NotifyingFeed) -> Sequence[Janitor]:
        """What ticks once in every child, when nothing else is due."""
        ...

    async def set_up(self, tx: Tx) -> None:
        """The business rows and the first messages, once, before the first crossing."""
        ...

    def decide(self, review: Review, simulators: Simulators) -> Decision:
        """What a truthful person answers, who can see the vendors' books."""
        ...

    async def answered(self, tx: Tx, effect: EffectRecord, answer: Answer) -> None:
        """What the person does beside answering, in the same commit; the message is redriven if it is parked."""
        ...

    def happened(self, simulators: Simulators) -> Mapping[str, int]:
        """How often each reference (`key:generation`) is in the vendors' books: more than once is a violation."""
        ...

    def expected_parked(self) -> int:
        """How many messages rest parked at the end."""
        ...

    async def check(self, read: Reads, simulators: Simulators) -> list[str]:
        """The vendors' books against ours, exactly; one sentence per difference."""
        ...


@dataclass(frozen=True)
class ScenarioOptions:
    """What a scenario may say beside the members of Scenario; most have none of it."""

    wipes: bool = False
    """When a process is struck, a queue that lives outside PostgreSQL loses everything."""
    redrives: bool = False
    """A person redrives whatever rests parked without a question."""
    redrives_reviews: bool = False
    """A person redrives what is parked with a question, before they answer it."""
    pushed: Mapping[str, Sequence[bytes]] = field(default_factory=dict)
    """Bodies that are in the queues' lists at the beginning, put there by hand."""
    leases_pass: bool = False
    """Handlers hold leases of their own: when time is let pass for messages, it passes for leases as well."""


def options_of(scenario: Scenario) -> ScenarioOptions:
    found: ScenarioOptions = getattr(scenario, "options", DEFAULT_OPTIONS)
    return found


DEFAULT_OPTIONS: Final = ScenarioOptions()


@runtime_checkable
class MovableScenario(Protocol):
    """A scenario that is another one where its queues are in Redis, for instance with fewer invariants."""

    def with_queues_in_redis(self) -> Scenario: ...


class PlainScenario:
    """What most scenarios need not say."""

    components: Sequence[tuple[str, str]] = ()
    invariants: Mapping[str, str] = {}

    def relays(self, reach: Reach) -> Sequence[Relay]:
        return ()

    def janitors(self, database: Database, feed: NotifyingFeed) -> Sequence[Janitor]:
        return ()

    def decide(self, review: Review, simulators: Simulators) -> Decision:
        raise AssertionError(f"nobody is there to answer: {review.question}")

    async def answered(self, tx: Tx, effect: EffectRecord, answer: Answer) -> None:
        return None

    def expected_parked(self) -> int:
        return 0
