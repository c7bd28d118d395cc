"""Effects: calls that change the outside world. They are recorded before they are sent, resolved when in doubt, and
never repeated blindly."""

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
from payonce.engine.effects.model import OPEN, TRANSITIONS, Cause, EffectRecord, Event, State
from payonce.engine.effects.review import (
    Answer,
    AnsweredReview,
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
    "AnsweredReview",
    "Blind",
    "CannotTell",
    "Cause",
    "DidNot",
    "Effect",
    "EffectRecord",
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
    "answer_review",
    "give_up_effects",
    "next_generation",
    "reviews",
]
