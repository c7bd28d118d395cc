"""The processes of the demonstration `payouts`: one per role and one Cloud Tasks server, at fixed addresses."""

import secrets
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from payonce.cli.demo.fleet import Fleet
from payonce.cli.demo.process_pool import ProcessPool
from payonce.kit.ports import reserved_ports

ROLES: Final = {
    "payouts.orchestrator": "GCSPLIT1_URL",
    "payouts.estimator": "GCSPLIT2_URL",
    "payouts.swapper": "GCSPLIT3_URL",
    "payouts.hostpay": "HOSTPAY_WEBHOOK_URL",
}
"""By role, the environment variable of its address."""
SERVER: Final = "cloudtasks"
SERVER_SHARE: Final = 0.25
"""Of the disruptions, those against the Cloud Tasks server."""


@contextmanager
def open_fleet(environment: Mapping[str, str], log_path: Path) -> Iterator[Fleet]:
    """Starts the processes. Ports are chosen once, so that a restarted process keeps its address."""
    with ExitStack() as stack:
        ports = dict(zip((*ROLES, SERVER), stack.enter_context(reserved_ports(len(ROLES) + 1)), strict=True))
        urls = {role: f"http://127.0.0.1:{ports[role]}" for role in ROLES}
        everybody = {
            **environment,
            **{ROLES[role]: url for role, url in urls.items()},
            "CLOUD_TASKS_ENDPOINT": f"127.0.0.1:{ports[SERVER]}",
            "CLOUD_TASKS_TOKEN": secrets.token_hex(16),
        }
        pools = {SERVER: ProcessPool((SERVER, "--port", str(ports[SERVER])), everybody, log_path, 1)}
        for role in ROLES:
            pools[role] = ProcessPool(("run", role, "--port", str(ports[role])), everybody, log_path, 1)
        for pool in pools.values():
            stack.enter_context(pool)
        yield Fleet(pools, urls, tuple(ROLES), SERVER, SERVER_SHARE)
