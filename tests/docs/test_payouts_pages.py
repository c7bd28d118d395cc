"""The pages on running payouts: their shell lines sign as the webhook asks, and they name what there is."""

import hashlib
import hmac
import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from payonce.settings import Settings
from payonce.settings.payouts import PayoutsSettings
from payonce.settings.references import ENDPOINT_VARIABLE
from payonce.settings.variables import variables
from tests.docs.test_documents import DOCS, sh_blocks

GOOGLE, HERE = "running-payouts-on-google-cloud.md", "running-payouts-without-google.md"
SCRIPT = DOCS.parent / "deploy/gcp/payouts.sh"
KEY = "a-signing-key-of-the-page-0123456789"
CURL = """#!/bin/sh
for each in "$@"; do printf '%s\\n' "$each"; done
"""


def test_the_shell_lines_sign_a_payout_as_the_webhook_asks(tmp_path: Path) -> None:
    """With a curl that says what it would send."""
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
        "payment_id", "user_id", "closed_channel_id", "wallet_address", "payout_currency", "payout_network",
        "subscription_price", "timestamp",
    }  # fmt: skip


@pytest.mark.parametrize("page", [GOOGLE, HERE])
def test_every_variable_of_the_page_is_a_setting(page: str) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    told = set(re.findall(r"(?<![\w$])([A-Z][A-Z0-9]+(?:_+[A-Z0-9]+)+)(?![\w])", text))
    of_the_script = set(re.findall(r"\b([A-Z][A-Z_]+)=", SCRIPT.read_text())) | {"HOST_WALLET_ADDRESS"}
    known = {*variables(Settings), *variables(PayoutsSettings), ENDPOINT_VARIABLE, *of_the_script}
    assert told <= known, told - known


def test_every_step_of_the_page_is_one_of_the_script() -> None:
    [steps] = re.findall(r'^STEPS="(.*)"$', SCRIPT.read_text(), re.MULTILINE)
    text = (DOCS / GOOGLE).read_text(encoding="utf-8")
    used = [step for line in re.findall(r"payouts\.sh --apply ([a-z ]+)", text) for step in line.split()]
    assert used == steps.split()


def test_the_table_of_services_is_that_of_the_script() -> None:
    rows = re.findall(r"^\| `(g\S+)` \| `(\S+)` \| (\d), (\S+) \|", (DOCS / GOOGLE).read_text(), re.MULTILINE)
    listed = re.findall(r"^(g\S+-10-26) +(\S+) +(\d) +(\S+) ", SCRIPT.read_text(), re.MULTILINE)
    assert rows == listed
