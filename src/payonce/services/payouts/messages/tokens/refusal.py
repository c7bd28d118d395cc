"""The reasons for which a token is refused. No message shows a key, a field's value or any part of a token."""

from enum import StrEnum

from payonce.kit.outcomes import Invalid


class BadTokenReason(StrEnum):
    MALFORMED = "malformed"
    """Not the bytes of any token."""
    FORGED = "forged"
    """Made with other keys or for another hop, or tampered with."""
    EXPIRED = "expired"
    EARLY = "early"
    """Dated in the future: a clock is wrong."""
    UNNAMED = "unnamed"
    """A token of version 1 without the task's name, which alone distinguishes two tokens."""
    UNFIT = "unfit"
    """A field does not fit the token's format."""


class BadToken(Invalid):
    def __init__(self, reason: BadTokenReason, text: str) -> None:
        super().__init__(text)
        self.reason = reason
