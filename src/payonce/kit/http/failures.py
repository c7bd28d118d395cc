"""How a request ends without an answer, and the faults that a simulator may raise to bring that about.

    NotSent                 nothing left: refused, name not found, TLS not agreed, timed out while connecting
    └── Unsendable          refused by us: a bad URL or header (also Invalid)
        └── NotPublic       where the request would have gone is no address of the open internet
    Unknown                 it may have happened: timed out, dropped or unreadable after it may have left
    └── BodyTooLarge        answered with more than we are willing to hold

Cancellation passes through as it is; whoever catches it must take the request for unknown.
"""

from payonce.kit.outcomes import Invalid, NotSent, Unknown


class Unsendable(NotSent, Invalid):
    """Never sent, because we refused to: trying again helps only if a name or a setting changes."""


class NotPublic(Unsendable):
    """Its text names the address: for those who run the network that it is in, and for nobody else."""


class BodyTooLarge(Unknown):
    """The vendor answered, and the answer is longer than the limit; it was not kept."""

    def __init__(self, reason: str, status: int) -> None:
        super().__init__(reason)
        self.status = status
        """What it answered: for those to whom the body says nothing."""


class Broken(Exception):
    """A transport's word for a connection that failed; the client judges whether the request had left."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Fault(Exception):
    """Raised by an application under the in-process transport in place of an answer; it wins over one already given."""


class ConnectionRefused(Fault):
    """As if nobody had listened: the application must not have done anything."""


class AnswerLost(Fault):
    """As if the connection had dropped after the request was read."""


class TimedOut(Fault):
    """As if the client's time had run out, without the waiting."""
