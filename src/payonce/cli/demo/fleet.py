"""Processes of several roles in a demonstration, at addresses that stay: started again, and killed in mid-work."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from payonce.cli.crew import Blow, Crew


@dataclass(frozen=True)
class Fleet:
    crews: Mapping[str, Crew]
    urls: Mapping[str, str]
    roles: Sequence[str]
    """Whose processes have work in hand, by the job log."""
    server: str | None = None
    """What has none, and is killed whenever it is its turn."""
    server_share: float = 0.0
    """Of the blows, those against the server."""

    @property
    def kills(self) -> int:
        return sum(crew.kills for crew in self.crews.values())

    @property
    def restarts(self) -> int:
        return sum(crew.restarts for crew in self.crews.values())

    def revive(self) -> None:
        for crew in self.crews.values():
            crew.revive()

    def kill(self, busy: Mapping[int, int], chance: random.Random) -> bool:
        """One process in mid-work. False when nobody works."""
        if self.server is not None and chance.random() < self.server_share:
            victims = [(self.server, pid) for pid in sorted(self.crews[self.server].awake())]
        else:
            victims = [(role, pid) for role in self.roles for pid in sorted(self.crews[role].awake()) if busy.get(pid)]
        if not victims:
            return False
        role, pid = chance.choice(victims)
        self.crews[role].strike(Blow.KILL, pid, 0.0)
        return True
