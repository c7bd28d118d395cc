"""Processes of several roles in a demonstration, at addresses that stay: started again, and killed in mid-work."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from payonce.cli.demo.process_pool import Disruption, ProcessPool


@dataclass(frozen=True)
class Fleet:
    pools: Mapping[str, ProcessPool]
    urls: Mapping[str, str]
    roles: Sequence[str]
    """Whose processes have work in hand, by the job log."""
    server: str | None = None
    """What has none, and is killed whenever it is its turn."""
    server_share: float = 0.0
    """Of the disruptions, those against the server."""

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
        """One process in mid-work. False when nobody works."""
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
