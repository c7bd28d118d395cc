"""The processes of the demo `billing`: both services, each with its port and its worker, killed in turn."""

import secrets
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from payonce.cli.demo.fleet import Fleet
from payonce.cli.demo.process_pool import ProcessPool
from payonce.kit.ports import reserved_ports

SUBSCRIPTIONS, PAYMENTS = "billing.subscriptions", "billing.payments"
ROLES: Final = (SUBSCRIPTIONS, PAYMENTS)
KEY_BYTES: Final = 32
QUEUES: Final = (
    "SUB_PAYMENT_INITIATION",
    "SUB_TRIAL_PAYMENT",
    "SUB_PLAN_CHANGE",
    "SUB_CLOCK",
    "PAY_CHARGE_INITIATION",
    "PAY_SUBSCRIPTION_UPDATE",
    "PAY_REFUND_INITIATION",
    "PAY_CREDIT_HOLD",
)
LEASE_S: Final = 30.0
"""Longer than a gateway call may take. A killed process's work waits for it: after each kill the lease clock is
advanced for all processes."""
POLICY: Final = {
    "LEASE_S": f"{LEASE_S:g}",
    "MAX_RETRIES": "40",
    "BASE_DELAY_SECONDS": "0.5",
    "MAX_DELAY_SECONDS": "4",
    "JITTER_SECONDS": "0.5",
}
"""A fault must not delay the demo by minutes."""


@contextmanager
def open_fleet(environment: Mapping[str, str], log_path: Path) -> Iterator[Fleet]:
    """Ports are reserved once: a restarted process listens on the same port."""
    with ExitStack() as stack:
        ports = dict(zip(ROLES, stack.enter_context(reserved_ports(len(ROLES))), strict=True))
        urls = {role: f"http://127.0.0.1:{port}" for role, port in ports.items()}
        everybody = {
            **environment,
            "SUBSCRIPTION_SERVICE_URL": urls[SUBSCRIPTIONS],
            "BILLING_TEST_CLOCKS": "true",
            "JWT_SECRET_KEY": secrets.token_hex(KEY_BYTES),
            "WEBHOOK_SIGNING_SECRET": secrets.token_hex(KEY_BYTES),
            **{f"QUEUE_POLICY__{queue}__{name}": value for queue in QUEUES for name, value in POLICY.items()},
        }
        pools = {role: ProcessPool(("run", role, "--port", str(ports[role])), everybody, log_path, 1) for role in ROLES}
        for pool in pools.values():
            stack.enter_context(pool)
        yield Fleet(pools, urls, ROLES)
