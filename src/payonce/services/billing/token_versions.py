"""Which tokens of an account still count, remembered for a moment: most requests ask nobody for it."""

import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final

KNOWN_MAX: Final = 10_000
"""Accounts whose version a process remembers."""
KNOWN_FOR_S: Final = 30.0
"""So long may a token be read that was ended in another process, where no money moves."""


class KnownVersions:
    """`fetch` asks whoever keeps the accounts; None for an account that is not there."""

    def __init__(
        self, fetch: Callable[[str], Awaitable[int | None]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._fetch = fetch
        self._clock = clock
        self._known: OrderedDict[str, tuple[int | None, float]] = OrderedDict()

    async def version_of(self, account_id: str, *, fresh: bool) -> int | None:
        version, until = self._known.get(account_id, (None, 0.0))
        if not fresh and until > self._clock():
            return version
        found = await self._fetch(account_id)
        self._known.pop(account_id, None)
        self._known[account_id] = (found, self._clock() + KNOWN_FOR_S)
        while len(self._known) > KNOWN_MAX:
            self._known.popitem(last=False)
        return found

    def forget(self, account_id: str) -> None:
        """In this process its tokens have ended now."""
        self._known.pop(account_id, None)
