"""How the simulated exchange behaves beyond its books: how many requests it takes, and how exchanges end."""

import hashlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from payonce.vendors.changenow.books import Fate

WINDOW_S: Final = 1.0


@dataclass(frozen=True)
class Fates:
    """What share of exchanges ends other than well, drawn by seed and exchange."""

    seed: int = 0
    fail: float = 0.0
    refund: float = 0.0
    verify: float = 0.0

    def draw(self, exchange_id: str) -> Fate:
        digest = hashlib.blake2b(f"{self.seed}\x00{exchange_id}".encode(), digest_size=8).digest()
        place = int.from_bytes(digest, "big") / 2**64
        for fate, share in ((Fate.FAIL, self.fail), (Fate.REFUND, self.refund), (Fate.VERIFY, self.verify)):
            if place < share:
                return fate
            place -= share
        return Fate.FINISH


class Meter:
    """Counts the requests of the last second as the vendor does, and turns away those above its limit."""

    def __init__(self, limit_per_s: float | None, tick: Callable[[], float]) -> None:
        self.limit_per_s = limit_per_s
        self.requests = 0
        self.turned_away = 0
        self.peak_per_s = 0
        """The most that came within any one second, those turned away included."""
        self._tick = tick
        self._recent: deque[float] = deque()

    def admits(self) -> bool:
        now = self._tick()
        while self._recent and self._recent[0] <= now - WINDOW_S:
            self._recent.popleft()
        self._recent.append(now)
        self.requests += 1
        self.peak_per_s = max(self.peak_per_s, len(self._recent))
        if self.limit_per_s is None or len(self._recent) <= self.limit_per_s:
            return True
        self.turned_away += 1
        return False
