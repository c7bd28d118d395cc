"""The processes of the demonstration `payouts`: each role and the Cloud Tasks server alone, at addresses that stay."""

import random
import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from payonce.cli.crew import Blow, Crew

ROLES: Final = {
    "payouts.orchestrator": "GCSPLIT1_URL",
    "payouts.estimator": "GCSPLIT2_URL",
    "payouts.swapper": "GCSPLIT3_URL",
    "payouts.hostpay": "HOSTPAY_WEBHOOK_URL",
}
"""By role, the variable that says where it answers."""
SERVER: Final = "cloudtasks"
SERVER_SHARE: Final = 0.25
"""Of the blows, those against the Cloud Tasks server."""


@dataclass(frozen=True)
class Fleet:
    crews: Mapping[str, Crew]
    urls: Mapping[str, str]

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
        if chance.random() < SERVER_SHARE:
            victims = [(SERVER, pid) for pid in sorted(self.crews[SERVER].awake())]
        else:
            victims = [(role, pid) for role in ROLES for pid in sorted(self.crews[role].awake()) if busy.get(pid)]
        if not victims:
            return False
        role, pid = chance.choice(victims)
        self.crews[role].strike(Blow.KILL, pid, 0.0)
        return True


@contextmanager
def open_fleet(environment: Mapping[str, str], log_path: Path) -> Iterator[Fleet]:
    """Ports are chosen once: a process that is started again answers where it did before."""
    ports = dict(zip((*ROLES, SERVER), _free_ports(len(ROLES) + 1), strict=True))
    urls = {role: f"http://127.0.0.1:{ports[role]}" for role in ROLES}
    everybody = {
        **environment, **{ROLES[role]: url for role, url in urls.items()},
        "CLOUD_TASKS_ENDPOINT": f"127.0.0.1:{ports[SERVER]}",
    }  # fmt: skip
    with ExitStack() as stack:
        crews = {SERVER: Crew((SERVER, "--port", str(ports[SERVER])), everybody, log_path, 1)}
        for role in ROLES:
            crews[role] = Crew(("run", role, "--port", str(ports[role])), everybody, log_path, 1)
        for crew in crews.values():
            stack.enter_context(crew)
        yield Fleet(crews, urls)


def _free_ports(count: int) -> list[int]:
    taken = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(each.getsockname()[1]) for each in taken]
    for each in taken:
        each.close()
    return ports
