"""How a request ends without an answer, and the faults with which a simulator causes that.

    NotSent                 nothing left: refused, name not found, TLS failed, timed out while connecting
    └── Unsendable          refused by us: a bad URL or header (also Invalid)
        └── NotPublic       the target is not a public address
    Unknown                 it may have happened: timed out, dropped or unreadable after it may have left
    └── BodyTooLarge        the answer is larger than the limit

CancelledError passes through; treat the request as unknown.
"""

from payonce.kit.outcomes import Invalid, NotSent, Unknown


class Unsendable(NotSent, Invalid):
    """Refused before sending; a retry helps only if a name or a setting changes."""


class NotPublic(Unsendable):
    """The target is not public. The message names the address, so it is for operators only."""


class BodyTooLarge(Unknown):
    """The vendor answered with more than the limit; the body was discarded."""

    def __init__(self, reason: str, status: int) -> None:
        super().__init__(reason)
        self.status = status
        """The status of the answer, for callers that do not need the body."""


class Broken(Exception):
    """Raised by a transport when a connection fails; the client decides between NotSent and Unknown."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Fault(Exception):
    """Raised by an in-process application instead of an answer; it overrides an answer already given."""


class ConnectionRefused(Fault):
    """Connection refused. The application must not have done anything."""


class AnswerLost(Fault):
    """The connection drops after the request was read."""


class TimedOut(Fault):
    """The client times out, without the wait."""
