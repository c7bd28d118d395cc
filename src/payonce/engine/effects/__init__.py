"""Effects: calls that change the outside world, recorded before they happen and resolved, never blindly repeated."""

from payonce.engine.effects.declaration import (
    Blind,
    CannotTell,
    DidNot,
    Effect,
    Findable,
    Happened,
    Harmless,
    Keyed,
    Rebroadcast,
    Safety,
)
from payonce.engine.effects.model import OPEN, TRANSITIONS, Cause, Event, State, Stored
from payonce.engine.effects.review import (
    Answer,
    Answered,
    Evidence,
    Review,
    answer_review,
    give_up_effects,
    next_generation,
    reviews,
)
from payonce.engine.effects.send import IntentCheck, Sending

__all__ = [
    "OPEN",
    "TRANSITIONS",
    "Answer",
    "Answered",
    "Blind",
    "CannotTell",
    "Cause",
    "DidNot",
    "Effect",
    "Event",
    "Evidence",
    "Findable",
    "Happened",
    "Harmless",
    "IntentCheck",
    "Keyed",
    "Rebroadcast",
    "Review",
    "Safety",
    "Sending",
    "State",
    "Stored",
    "answer_review",
    "give_up_effects",
    "next_generation",
    "reviews",
]
