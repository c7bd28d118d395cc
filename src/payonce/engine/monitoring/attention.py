"""Attention cards: what a service's objects need from an operator, for the console's first page."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from payonce.engine.ledger.model import Reads


@dataclass(frozen=True)
class Attention:
    """Objects that wait for a person. The page at `path` with `query` lists exactly the objects counted here."""

    title: str
    count: int
    text: str
    path: str
    """Path of a console page below the console's root."""
    query: Mapping[str, str] = field(default_factory=dict)
    tone: Literal["bad", "warn"] = "bad"
    cause: str | None = None
    """Why most of them wait."""


AttentionSource = Callable[[Reads], Awaitable[Sequence[Attention]]]
"""Returns nothing in a database without the service's tables."""
