"""The page on billing: its shell lines are executed, against a process that a newcomer would start."""

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from payonce.kit.ports import reserved_ports
from payonce.kit.webhooks import new_secret
from payonce.services.billing.settings import BillingSettings
from payonce.settings import Settings
from payonce.settings.variables import variables
from payonce.testing import ScratchDatabase, Servers, eventually
from payonce.testing.processes import clean_environment
from tests.docs.test_documents import DOCS, sh_blocks
from tests.docs.test_payouts_pages import answers

PAGE, APART = "billing.md", "running-billing.md"
WITHIN_S = 120.0
ROLES = ("billing.subscriptions", "billing.payments")


def test_every_variable_of_the_page_is_a_setting() -> None:
    text = (DOCS / PAGE).read_text(encoding="utf-8").partition("## Settings")[2]
    named = set(re.findall(r"`([A-Z][A-Z_]+)`", text))
    assert named
    assert named <= {*variables(Settings), *variables(BillingSettings)}


@pytest.mark.timeout(300)
def test_a_newcomer_gets_through_a_year_of_billing(servers: Servers, tmp_path: Path) -> None:
    with servers.of().lent() as database, reserved_ports(1) as [port]:
        given = {**environment(database, tmp_path), "BASE": f"http://127.0.0.1:{port}"}
        with started(f"payonce run {' '.join(ROLES)} --port {port}", given, tmp_path, given["BASE"]):
            live_a_year(given, tmp_path)


@pytest.mark.timeout(300)
def test_a_newcomer_runs_both_services_and_the_gateway_in_a_process_each(servers: Servers, tmp_path: Path) -> None:
    """The lines of the page, on free ports."""
    [script] = [block for block in sh_blocks(APART) if "payonce simulators" in block]
    with servers.of().lent() as database, reserved_ports(5) as [subscriptions, payments, gateway, exchange, chain]:
        given = {
            **environment(database, tmp_path),
            "SUBSCRIPTION_SERVICE_URL": f"http://127.0.0.1:{subscriptions}",
            "GATEWAY_WEBHOOK_SECRET": new_secret().reveal(),
            "BASE": f"http://127.0.0.1:{subscriptions}",
            "PAYMENTS": f"http://127.0.0.1:{payments}",
            "GATEWAY": f"http://127.0.0.1:{gateway}",
        }
        for usual, free in (("8001", subscriptions), ("8002", payments), ("9103", gateway)):
            script = script.replace(usual, str(free))
        ports = f"--gateway-port {gateway} --exchange-port {exchange} --chain-port {chain}"
        script = script.replace("payonce simulators", f"payonce simulators {ports}")
        script = script.replace("billing.subscriptions", f"billing.subscriptions --port {subscriptions}")
        script = script.replace("billing.payments", f"billing.payments --port {payments}")
        with started(f"{script}\nwait", given, tmp_path, given["BASE"], given["PAYMENTS"]):
            live_a_year(given, tmp_path)


@pytest.mark.timeout(300)
def test_the_services_run_with_a_database_each(servers: Servers, tmp_path: Path) -> None:
    [script] = [block for block in sh_blocks(APART) if "BILLING_DATABASE=" in block]
    with (
        servers.of().lent() as first,
        servers.of().lent() as second,
        reserved_ports(2) as [subscriptions, payments],
    ):
        given = {
            **environment(first, tmp_path),
            "BASE": f"http://127.0.0.1:{subscriptions}",
            "PAYMENTS": f"http://127.0.0.1:{payments}",
            "GATEWAY": f"http://127.0.0.1:{payments}/simulated-gateway",
            "SUBSCRIPTIONS_URL": first.service_url,
            "SUBSCRIPTIONS_OWNER_URL": first.owner_url,
            "PAYMENTS_URL": second.service_url,
            "PAYMENTS_OWNER_URL": second.owner_url,
        }
        del given["DATABASE_URL"], given["DATABASE_OWNER_URL"]
        script = script.replace("8001", str(subscriptions)).replace("8002", str(payments))
        script = script.replace("run billing.subscriptions", f"run billing.subscriptions --port {subscriptions}")
        script = script.replace("run billing.payments", f"run billing.payments --port {payments}")
        with started(f"{script}\nwait", given, tmp_path, given["BASE"], given["PAYMENTS"], migrated=True):
            # The rest needs an API key, which belongs to one database.
            blocks = sh_blocks(PAGE)
            run_lines(
                blocks[: 1 + next(n for n, block in enumerate(blocks) if "change-plan" in block)], given, tmp_path
            )


def environment(database: ScratchDatabase, folder: Path) -> dict[str, str]:
    ours = ("GATEWAY", "BILLING_", "SUBSCRIPTION_", "PAYMENTS", "BASE")
    return {
        **{name: value for name, value in clean_environment().items() if not name.startswith(ours)},
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PAYONCE_DATA_DIR": str(folder / "data"),
        "DATABASE_URL": database.service_url,
        "DATABASE_OWNER_URL": database.owner_url,
        "JWT_SECRET_KEY": "k" * 32,
        "WEBHOOK_SIGNING_SECRET": "w" * 32,
    }


@contextmanager
def started(script: str, given: dict[str, str], folder: Path, *urls: str, migrated: bool = False) -> Iterator[None]:
    """Migrates unless the script does, runs it until the end of the context, and waits until all `urls` are ready. Its
    log is printed if the context fails."""
    if not migrated:
        migrate = [sys.executable, "-m", "payonce", "db", "migrate"]
        subprocess.run(migrate, env=given, check=True, capture_output=True)
    with (folder / "log").open("w+") as log:
        shell = subprocess.Popen(["sh", "-ec", script], env=given, stdout=log, stderr=log, start_new_session=True)
        try:

            async def ready() -> bool:
                return all([await asyncio.to_thread(answers, f"{url}/readyz") for url in urls])

            asyncio.run(eventually(ready, WITHIN_S, "billing is ready"))
            yield
        except BaseException:
            log.seek(0)
            print(log.read())
            raise
        finally:
            os.killpg(shell.pid, signal.SIGKILL)
            shell.wait()


def live_a_year(given: dict[str, str], folder: Path) -> None:
    run_lines(sh_blocks(PAGE), given, folder)


def run_lines(blocks: list[str], given: dict[str, str], folder: Path) -> None:
    script = "\n".join(["set -eu", *blocks])
    ran = subprocess.run(
        ["sh", "-c", script], env=given, cwd=folder, capture_output=True, text=True, check=False, timeout=WITHIN_S
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "13 invoices, each paid once" in ran.stdout
    assert (folder / "invoice.pdf").read_bytes().startswith(b"%PDF")
