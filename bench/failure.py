"""The error of benchmarks: a sentence that names what was waited for, and the child's last output."""

from payonce.kit.outcomes import PayonceError


class BenchFailed(PayonceError):
    """A child process ended, replied with an error, or did not reply in time."""
