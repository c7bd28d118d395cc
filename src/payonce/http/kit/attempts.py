"""Limits failed API keys and tokens per address, in bounded memory. Keys cannot be guessed; the limit spares the
database the lookups."""

import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from typing import Final

from payonce.kit.networks import network_of

FAILURES_MAX: Final = 20
WINDOW_S: Final = 60.0
ADDRESSES_MAX: Final = 10_000
GOOD_KEYS_MAX: Final = 1_000


def attempts_by_kind() -> dict[str, "Attempts"]:
    """Separate counts for API keys and each kind of token: failures of one kind do not count against another, and many
    valid tokens do not displace the few keys."""
    return defaultdict(Attempts)


class Attempts:
    """Failures of one kind of credentials. After FAILURES_MAX failures an address is refused until its window ends.
    Recently valid credentials are still looked up, so that a guesser behind a proxy cannot lock out others."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures: OrderedDict[str, tuple[int, float]] = OrderedDict()
        self._good: OrderedDict[bytes, None] = OrderedDict()

    def wait_s(self, address: str, digest: bytes) -> float:
        """Seconds until the address is accepted again; 0 if it is accepted now."""
        count, until = self._failures.get(network_of(address), (0, 0.0))
        left_s = until - self._clock()
        return 0.0 if count < FAILURES_MAX or left_s <= 0 or digest in self._good else left_s

    def failed(self, address: str, digest: bytes) -> None:
        network, now = network_of(address), self._clock()
        count, until = self._failures.pop(network, (0, 0.0))
        self._failures[network] = (count + 1, until) if until > now else (1, now + WINDOW_S)
        self._good.pop(digest, None)
        while len(self._failures) > ADDRESSES_MAX:
            self._failures.popitem(last=False)

    def succeeded(self, digest: bytes) -> None:
        self._good[digest] = None
        self._good.move_to_end(digest)
        while len(self._good) > GOOD_KEYS_MAX:
            self._good.popitem(last=False)
