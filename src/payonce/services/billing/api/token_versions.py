"""The current token version of each account, cached briefly, since most requests do not need a fresh one."""

import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final

KNOWN_MAX: Final = 10_000
"""Accounts whose version a process caches."""
KNOWN_FOR_S: Final = 30.0
"""How long a token that another process revoked is still accepted where no money moves."""


class KnownVersions:
    """Caches what `fetch` returns from the account store; None for an unknown account."""

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
        """Drops the cached version, after this process revoked the account's tokens."""
        self._known.pop(account_id, None)
