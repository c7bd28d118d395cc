"""The exception tree: how work ends other than by returning.

    PayonceError
    ├── Outcome              raised on purpose, evaluated by the engine
    │   ├── Retry            a handler: not now, retry by policy
    │   │   └── Held         an operator's freeze or limit: not now, and no attempt is used up
    │   ├── Unknown          a handler: it may or may not have happened
    │   ├── Unprocessable    a handler: no run can ever process this message; parked at once
    │   ├── Refused          an effect: the vendor refused definitely
    │   └── NotSent          an effect: it provably was not sent
    ├── Stale                another run holds the lease; nothing was written
    ├── Invalid              bad input: names the value and the remedy
    ├── KeyReused            an effect's key is recorded with another request: parked at once
    └── Unavailable          a dependency is missing, unreachable or of the wrong version
        └── QueueAway        the queue server: not now, and no attempt is used up

Any other exception from a handler is a bug: retried by policy, then parked with a redacted traceback.
"""


class PayonceError(Exception):
    """Raised by payonce on purpose; the text is one sentence for a reader who must act."""


class Outcome(PayonceError):
    """A result of a run that the engine acts on."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Retry(Outcome):
    """Not now. Retried after `after_s`, or when the policy says."""

    def __init__(self, reason: str, after_s: float | None = None) -> None:
        super().__init__(reason)
        self.after_s = after_s


class Held(Retry):
    """A freeze or limit prevents sending. Retried after `after_s`, as long as that lasts."""


class Unknown(Outcome):
    """It may have happened. Retried by policy; the next run finds out before it acts."""


class Unprocessable(Outcome):
    """The message names something that does not exist, or requests the impossible: a retry does not help, so it is
    parked with the reason. Raised before anything was sent."""


class Refused(Outcome):
    """The vendor refused definitely."""


class NotSent(Outcome):
    """Provably did not reach the vendor."""


class Stale(PayonceError):
    """The lease ended, and another run may hold the message; nothing of this run was written."""


class Invalid(PayonceError, ValueError):
    """Invalid input. Nothing was written."""


class KeyReused(PayonceError):
    """An effect's key is recorded with another request, amount or service. This bug of the caller persists on retries:
    the message is parked. Nothing was sent or written."""


class Unavailable(PayonceError):
    """A dependency of payonce cannot be used."""


class QueueAway(Unavailable):
    """The queue server does not respond or refuses commands. The run is not at fault."""
