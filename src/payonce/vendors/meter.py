"""The rate limit of a simulated vendor."""

from collections import deque
from collections.abc import Callable
from typing import Final

WINDOW_S: Final = 1.0


class Meter:
    """Counts the requests of the last second and rejects those above the limit."""

    def __init__(self, limit_per_s: float | None, tick: Callable[[], float]) -> None:
        self.limit_per_s = limit_per_s
        self.requests = 0
        self.turned_away = 0
        self.peak_per_s = 0
        """The maximum number of requests within any second, including rejected ones."""
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
