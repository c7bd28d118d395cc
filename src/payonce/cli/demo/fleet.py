"""Processes of several roles in a demonstration, at fixed addresses, killed while busy and restarted."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from payonce.cli.demo.process_pool import Disruption, ProcessPool


@dataclass(frozen=True)
class Fleet:
    pools: Mapping[str, ProcessPool]
    urls: Mapping[str, str]
    roles: Sequence[str]
    """Roles whose processes hold messages."""
    server: str | None = None
    """A server that holds no messages and is killed at any time."""
    server_share: float = 0.0
    """Share of kills that hit the server."""

    @property
    def kills(self) -> int:
        return sum(pool.kills for pool in self.pools.values())

    @property
    def restarts(self) -> int:
        return sum(pool.restarts for pool in self.pools.values())

    def restore(self) -> None:
        for pool in self.pools.values():
            pool.restore()

    def kill(self, busy: Mapping[int, int], chance: random.Random) -> bool:
        """Kills one busy process. Returns False if none is busy."""
        if self.server is not None and chance.random() < self.server_share:
            victims = [(self.server, pid) for pid in sorted(self.pools[self.server].running())]
        else:
            victims = [
                (role, pid) for role in self.roles for pid in sorted(self.pools[role].running()) if busy.get(pid)
            ]
        if not victims:
            return False
        role, pid = chance.choice(victims)
        self.pools[role].disrupt(Disruption.KILL, pid, 0.0)
        return True
