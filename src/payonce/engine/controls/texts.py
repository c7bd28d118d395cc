"""What people write beside a brake: names, reasons, and who they are."""

from payonce.engine.messages.model import NAME_MAX_LENGTH, clean_text
from payonce.kit.outcomes import Invalid
from payonce.kit.redact import redact


def name(text: str, what: str) -> str:
    """A name as the store keeps it; a blank or overlong one is a slip that would match nothing."""
    stripped = text.strip()
    if not stripped or len(stripped) > NAME_MAX_LENGTH or clean_text(stripped) != stripped:
        raise Invalid(f"{what} is {text[:40]!r}; it must have 1 to {NAME_MAX_LENGTH} characters of valid text")
    return stripped


def reason(text: str, what: str = "the reason") -> str:
    """Why, in words that somebody else can act on later."""
    if not text.strip():
        raise Invalid(f"{what} is empty; say why, whoever looks next must be able to act on it")
    return clean_text(redact(text.strip()))


def same_person(one: str, other: str) -> bool:
    """As the table's constraint compares them."""
    return one.strip().lower() == other.strip().lower()
