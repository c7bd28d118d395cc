"""What a service's own objects need of an operator: the cards that it adds to the console's first page."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from payonce.engine.ledger.model import Reads


@dataclass(frozen=True)
class Attention:
    """Objects that wait for a person. The page under `path` and `query` lists exactly the objects counted here."""

    title: str
    count: int
    text: str
    path: str
    """Of a console page, without the console's root."""
    query: Mapping[str, str] = field(default_factory=dict)
    tone: Literal["bad", "warn"] = "bad"
    cause: str | None = None
    """Why most of them wait."""


AttentionSource = Callable[[Reads], Awaitable[Sequence[Attention]]]
"""Answers with nothing in a database that does not have the service's tables."""
