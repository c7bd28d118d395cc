"""Failed API keys and tokens by address, in a bounded memory: guessing is hopeless, and is not to cost the store its
time either."""

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
    """API keys and each kind of token by themselves: failures of one kind do not count against another, and the many
    tokens that are good do not push the few keys out of memory."""
    return defaultdict(Attempts)


class Attempts:
    """Of one kind. After so many failures in a window an address is heard again when the window is over. What was good
    of late is let through to be looked up: behind one proxy, one guesser must not shut everybody out."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures: OrderedDict[str, tuple[int, float]] = OrderedDict()
        self._good: OrderedDict[bytes, None] = OrderedDict()

    def wait_s(self, address: str, digest: bytes) -> float:
        """For how long the address is not heard; 0 when it is."""
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
