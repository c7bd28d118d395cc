"""The pages on running payouts: their shell lines sign as the webhook requires, and they name existing settings."""

import asyncio
import hashlib
import hmac
import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from payonce.kit.ports import reserved_ports
from payonce.services.payouts.settings import PayoutsSettings
from payonce.settings import Settings
from payonce.settings.access import AccessSettings
from payonce.settings.references import ENDPOINT_VARIABLE
from payonce.settings.variables import variables
from payonce.testing import Servers, eventually
from payonce.testing.processes import clean_environment
from tests.docs.test_documents import DOCS, sh_blocks

GOOGLE, HERE = "running-payouts-on-google-cloud.md", "running-payouts-without-google.md"
SCRIPT = DOCS.parent / "deploy/gcp/payouts.sh"
WITHIN_S = 90.0
PORTS = 7
KEY = "a-signing-key-of-the-page-0123456789"
CURL = """#!/bin/sh
for each in "$@"; do printf '%s\\n' "$each"; done
"""


def test_the_shell_lines_sign_a_payout_as_the_webhook_asks(tmp_path: Path) -> None:
    """With a curl that prints its arguments."""
    [script] = sh_blocks(GOOGLE)
    (tmp_path / "curl").write_text(CURL)
    (tmp_path / "curl").chmod(0o755)
    given = {"PAYMENT": "p-1", "ADDRESS": "0x" + "c1" * 20, "GCSPLIT1_URL": "https://one.example"}
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "SUCCESS_URL_SIGNING_KEY": KEY, **given}
    ran = subprocess.run(["sh", "-ec", script], env=environment, capture_output=True, text=True, check=True)
    sent = ran.stdout.splitlines()
    body = sent[sent.index("--data-raw") + 1]
    signature = hmac.new(KEY.encode(), body.encode(), hashlib.sha256).hexdigest()
    assert f"X-Webhook-Signature: {signature}" in sent
    assert sent[-1] == "https://one.example/"
    fields = json.loads(body)
    assert (fields["payment_id"], fields["wallet_address"]) == ("p-1", given["ADDRESS"])
    assert set(fields) == {
        "payment_id",
        "user_id",
        "closed_channel_id",
        "wallet_address",
        "payout_currency",
        "payout_network",
        "subscription_price",
        "timestamp",
    }


@pytest.mark.parametrize("page", [GOOGLE, HERE])
def test_every_variable_of_the_page_is_a_setting(page: str) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    named = set(re.findall(r"(?<![\w$])([A-Z][A-Z0-9]+(?:_+[A-Z0-9]+)+)(?![\w])", text))
    of_the_script = set(re.findall(r"\b([A-Z][A-Z_]+)=", SCRIPT.read_text())) | {"HOST_WALLET_ADDRESS"}
    known = {
        *variables(Settings),
        *variables(AccessSettings),
        *variables(PayoutsSettings),
        *of_the_script,
        ENDPOINT_VARIABLE,
        "DB_OWNER_PASSWORD",
        "SIGNATURE_REMOVED_BY_GOOGLE",
    }
    assert named <= known, named - known


def test_no_address_on_cloud_run_ends_in_a_letter_that_it_keeps_to_itself() -> None:
    """https://cloud.google.com/run/docs/known-issues: some paths that end in z never reach the container."""
    paths = re.findall(r"run\.app(/[\w/.-]*)", (DOCS / GOOGLE).read_text(encoding="utf-8"))
    assert "/v1/health/detailed" in paths
    assert not [path for path in paths if path.endswith("z")]


@pytest.fixture
def held() -> Iterator[list[int]]:
    with reserved_ports(PORTS + 1) as ports:
        yield ports


@pytest.mark.timeout(300)
@pytest.mark.full
def test_a_process_for_each_role_pays_as_the_page_says(servers: Servers, held: list[int], tmp_path: Path) -> None:
    """The page's own lines, on free ports; from the webhook to the bytes that the wallet signs."""
    script = "\n".join([*sh_blocks(HERE), "wait"])
    ports = sorted(set(re.findall(r"(?:127\.0\.0\.1:|port )(\d{4})\b", script)))
    assert len(ports) == PORTS
    *free_ones, gateway = held
    for port, free in zip(ports, free_ones, strict=True):
        script = re.sub(rf"\b{port}\b", str(free), script)
    # The page leaves the gateway where it usually is, which is one place for all runs on a machine.
    script = script.replace("payonce simulators ", f"payonce simulators --gateway-port {gateway} ")
    assert str(gateway) in script
    [by_hand] = sh_blocks(GOOGLE)
    urls = dict(re.findall(r"export (GCSPLIT\d_URL|HOSTPAY_WEBHOOK_URL)=(\S+)", script))
    assert len(urls) == 4
    with servers.of().lent() as database:
        given = {
            **clean_environment(),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PAYONCE_DATA_DIR": str(tmp_path / "data"),
            "DATABASE_URL": database.service_url,
            "DATABASE_OWNER_URL": database.owner_url,
        }
        script = re.sub(r"(SUCCESS_URL_SIGNING_KEY)=\S+( rand -hex 32\))?", rf"\1={KEY}", script)
        with (tmp_path / "log").open("w+") as log:
            shell = subprocess.Popen(["sh", "-ec", script], env=given, stdout=log, stderr=log, start_new_session=True)
            try:
                payout = {
                    **given,
                    "PAYMENT": "p-1",
                    "ADDRESS": "0x" + "c1" * 20,
                    "SUCCESS_URL_SIGNING_KEY": KEY,
                    **urls,
                }

                async def ready() -> bool:
                    # A task that finds its role shut is brought again after a minute.
                    return all([await asyncio.to_thread(answers, f"{url}/readyz") for url in urls.values()])

                def order() -> str:
                    called = ["sh", "-ec", by_hand]
                    return subprocess.run(called, env=payout, capture_output=True, text=True, check=True).stdout

                async def signed() -> bool:
                    owner = await asyncpg.connect(database.owner_url)
                    try:
                        return bool(await owner.fetchval("select count(*) from payouts.split_payout_hostpay"))
                    finally:
                        await owner.close()

                async def paid() -> None:
                    await eventually(ready, WITHIN_S, "every role is ready")
                    assert "payout_id" in await asyncio.to_thread(order)
                    await eventually(signed, WITHIN_S, "the wallet signs")

                asyncio.run(paid())
            except BaseException:
                log.seek(0)
                print(log.read())
                raise
            finally:
                os.killpg(shell.pid, signal.SIGKILL)
                shell.wait()


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url) as answer:  # noqa: S310 - of the loopback
            return bool(answer.status == 200)
    except OSError:
        return False


def test_every_step_of_the_page_is_one_of_the_script() -> None:
    [steps] = re.findall(r'^STEPS="(.*)"$', SCRIPT.read_text(), re.MULTILINE)
    text = (DOCS / GOOGLE).read_text(encoding="utf-8")
    used = [step for line in re.findall(r"payouts\.sh --apply ([a-z ]+)", text) for step in line.split()]
    assert used == steps.split()


def test_the_table_of_services_is_that_of_the_script() -> None:
    rows = re.findall(r"^\| `(g\S+)` \| `(\S+)` \| (\d), (\S+) \|", (DOCS / GOOGLE).read_text(), re.MULTILINE)
    listed = re.findall(r"^(?:\$\(.* echo \")?(g\S+-10-26) +(\S+) +(\d) +(\S+) ", SCRIPT.read_text(), re.MULTILINE)
    assert rows == listed
