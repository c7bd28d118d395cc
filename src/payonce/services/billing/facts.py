"""One thing that happened to a subscription, as a person reads it; both services tell theirs so."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from payonce.kit.money import Amount


@dataclass(frozen=True)
class Fact:
    """With the names that the engine's own scenes have, so that one list can hold both."""

    at: datetime
    """By the store's clock: a test clock goes by leaps, and this is the order in which things happened."""
    kind: str
    title: str
    state: str
    detail: str | None = None
    amount: Amount | None = None
    who: str | None = None
    lines: Sequence[tuple[str, Amount]] = ()
    message_id: None = None
    effect_id: None = None
    queue: None = None
