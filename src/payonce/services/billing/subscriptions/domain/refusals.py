"""Refusals of a request; nothing was written. Routes answer 404 or 409 with the message."""

from typing import ClassVar

from payonce.kit.outcomes import PayonceError


class NotFound(PayonceError):
    """There is no such object, or it belongs to another account; callers cannot tell which."""


class Conflict(PayonceError):
    """The current state does not allow the request; the message says what to do."""

    kind: ClassVar[str] = "about:blank"
    """The type of the problem document, for callers that distinguish conflicts."""
