"""Names and reasons that operators enter with a control."""

from payonce.engine.messages.model import NAME_MAX_LENGTH, clean_text
from payonce.kit.outcomes import Invalid
from payonce.kit.redact import redact


def name(text: str, what: str) -> str:
    """A name as the store keeps it. A blank or overlong name is refused: it would match nothing."""
    stripped = text.strip()
    if not stripped or len(stripped) > NAME_MAX_LENGTH or clean_text(stripped) != stripped:
        raise Invalid(f"{what} is {text[:40]!r}; it must have 1 to {NAME_MAX_LENGTH} characters of valid text")
    return stripped


def reason(text: str, what: str = "the reason") -> str:
    """A reason that others can act on later."""
    if not text.strip():
        raise Invalid(f"{what} is empty; give a reason that others can act on later")
    return clean_text(redact(text.strip()))


def same_person(one: str, other: str) -> bool:
    """Compares names as the table's constraint does."""
    return one.strip().lower() == other.strip().lower()
