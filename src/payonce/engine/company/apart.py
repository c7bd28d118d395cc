"""Why company ends."""

from payonce.kit.outcomes import PayonceError


class Apart(PayonceError):
    """What several runs shared was undone as if it had never been: each has to do its own part alone. No fault of
    whoever gets it."""
