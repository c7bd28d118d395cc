"""Why a customer's wish is not followed; nothing was written. Routes answer 404 and 409 with the sentence."""

from typing import ClassVar

from payonce.kit.outcomes import PayonceError


class NotFound(PayonceError):
    """There is no such thing, or it is somebody else's: the asker cannot tell which."""


class Conflict(PayonceError):
    """The state of things does not allow it now; the sentence says what would."""

    kind: ClassVar[str] = "about:blank"
    """The type of the problem document, where a caller's code has to tell it apart."""
