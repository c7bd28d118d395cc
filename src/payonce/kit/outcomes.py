"""The exception tree: how work ends when it does not simply return, and what a person is told.

    PayonceError
    ├── Outcome              raised on purpose, read by the engine
    │   ├── Retry            a handler: not now, try again by policy
    │   │   └── Held         an operator's brake: not now, and no attempt is used up
    │   ├── Unknown          a handler: it may or may not have happened
    │   ├── Unprocessable    a handler: no run will ever carry this message out; parked at once
    │   ├── Refused          an effect: the vendor said a definite no
    │   └── NotSent          an effect: it provably never left
    ├── Stale                the lease passed to somebody else; nothing was written
    ├── Invalid              bad input: names the value and the way out
    ├── KeyReused            an effect's key is on record with another request: parked at once
    └── Unavailable          something we stand on is missing, unreachable or of the wrong version
        └── QueueAway        the server of the queues: not now, and no attempt is used up

Any other exception out of a handler is a bug: retried by policy, then parked with a redacted traceback.
"""


class PayonceError(Exception):
    """Whatever payonce raises on purpose; its text is one sentence for a reader who must act."""


class Outcome(PayonceError):
    """An end of a run that the engine acts on."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Retry(Outcome):
    """Not now. Tried again after `after_s`, or when the policy says."""

    def __init__(self, reason: str, after_s: float | None = None) -> None:
        super().__init__(reason)
        self.after_s = after_s


class Held(Retry):
    """An operator's brake keeps it from being sent. Tried again after `after_s`, however long that goes on."""


class Unknown(Outcome):
    """It may have happened. Tried again by policy; the next run finds out before it acts."""


class Unprocessable(Outcome):
    """The message names what is not there, or asks for what cannot be: trying again does not help, so it is parked with
    the reason. Raised before anything was sent."""


class Refused(Outcome):
    """The vendor's definite no."""


class NotSent(Outcome):
    """Provably never reached the vendor."""


class Stale(PayonceError):
    """The lease ended and the message may be somebody else's; nothing of this run was written."""


class Invalid(PayonceError, ValueError):
    """Refused input. Nothing was written."""


class KeyReused(PayonceError):
    """An effect was asked for under a key that is on record with another request, amount or service. A bug of the
    caller that trying again does not mend: the message is parked. Nothing was sent or written."""


class Unavailable(PayonceError):
    """Something payonce stands on cannot be used."""


class QueueAway(Unavailable):
    """The server of the queues does not answer or takes nothing. A run that meets it has done nothing wrong."""
