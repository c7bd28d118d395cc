"""The one way a benchmark fails: a sentence that names what was waited for, and the child's last words."""

from payonce.kit.outcomes import PayonceError


class BenchFailed(PayonceError):
    """A child process ended, answered with an error, or did not answer within its bound."""
