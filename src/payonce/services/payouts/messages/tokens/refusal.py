"""Why a token is refused. No text of it shows a key, a field's value or any part of a token."""

from enum import StrEnum

from payonce.kit.outcomes import Invalid


class BadTokenReason(StrEnum):
    MALFORMED = "malformed"
    """Not the bytes of any token."""
    FORGED = "forged"
    """Made with other keys, for another hop, or changed on the way."""
    EXPIRED = "expired"
    EARLY = "early"
    """Made later than now: a clock is wrong."""
    UNNAMED = "unnamed"
    """A token of version 1 without the task's name, which is all that tells two of them apart."""
    UNFIT = "unfit"
    """A field that the token cannot carry as it is."""


class BadToken(Invalid):
    def __init__(self, reason: BadTokenReason, text: str) -> None:
        super().__init__(text)
        self.reason = reason
