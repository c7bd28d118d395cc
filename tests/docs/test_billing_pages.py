"""The page on billing: its shell lines are run as they stand, against a process that a newcomer would start."""

import asyncio
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from payonce.kit.ports import held_ports
from payonce.settings import Settings
from payonce.settings.billing import BillingSettings
from payonce.settings.variables import variables
from payonce.testing import Servers, eventually
from payonce.testing.processes import clean_environment
from tests.docs.test_documents import DOCS, sh_blocks
from tests.docs.test_payouts_pages import answers

PAGE = "billing.md"
WITHIN_S = 120.0
ROLES = ("billing.subscriptions", "billing.payments")


def test_every_variable_of_the_page_is_a_setting() -> None:
    text = (DOCS / PAGE).read_text(encoding="utf-8").partition("## Settings")[2]
    told = set(re.findall(r"`([A-Z][A-Z_]+)`", text))
    assert told
    assert told <= {*variables(Settings), *variables(BillingSettings)}


@pytest.mark.timeout(300)
def test_a_newcomer_gets_through_a_year_of_billing(servers: Servers, tmp_path: Path) -> None:
    script = "\n".join(["set -eu", *sh_blocks(PAGE)])
    with servers.of().lent() as database, held_ports(1) as [port]:
        ours = ("GATEWAY_", "BILLING_", "SUBSCRIPTION_")
        given = {
            **{name: value for name, value in clean_environment().items() if not name.startswith(ours)},
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PAYONCE_DATA_DIR": str(tmp_path / "data"),
            "DATABASE_URL": database.service_url, "DATABASE_OWNER_URL": database.owner_url,
            "JWT_SECRET_KEY": "k" * 32, "WEBHOOK_SIGNING_SECRET": "w" * 32, "BASE": f"http://127.0.0.1:{port}",
        }  # fmt: skip
        migrate = [sys.executable, "-m", "payonce", "db", "migrate"]
        subprocess.run(migrate, env=given, check=True, capture_output=True)
        command = [sys.executable, "-m", "payonce", "run", *ROLES, "--port", str(port)]
        with (tmp_path / "log").open("w+") as log:
            process = subprocess.Popen(command, env=given, stdout=log, stderr=log, start_new_session=True)
            try:

                async def ready() -> bool:
                    return await asyncio.to_thread(answers, f"{given['BASE']}/readyz")

                asyncio.run(eventually(ready, WITHIN_S, "billing is ready"))
                ran = subprocess.run(
                    ["sh", "-c", script], env=given, cwd=tmp_path, capture_output=True, text=True, check=False,
                    timeout=WITHIN_S,
                )  # fmt: skip
                assert ran.returncode == 0, ran.stdout + ran.stderr
                assert "13 invoices, each paid once" in ran.stdout
                assert (tmp_path / "invoice.pdf").read_bytes().startswith(b"%PDF")
            except BaseException:
                log.seek(0)
                print(log.read())
                raise
            finally:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
