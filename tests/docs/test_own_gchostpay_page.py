"""The page's lines for an external GCHostPay, as processes: a six-field webhook arrives, and a small GCHostPay pays."""

import asyncio
import hashlib
import hmac
import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from payonce.kit.ports import reserved_ports
from payonce.testing import Servers, eventually
from payonce.testing.processes import clean_environment
from tests.docs.test_documents import DOCS, sh_blocks
from tests.docs.test_payouts_pages import HERE, KEY, WITHIN_S, answers
from tests.services.payouts.own_gchostpay import OwnGcHostPay, listening
from tests.services.payouts.payouts_stage import BTC_CLIENT

HOSTPAY_KEY = "a-hostpay-key-of-the-page-0123456789"
SIX: dict[str, Any] = {
    "user_id": 6_271_402,
    "closed_channel_id": "-1002345678901",
    "wallet_address": BTC_CLIENT,
    "payout_currency": "btc",
    "payout_network": "btc",
    "subscription_price": 29.99,
}


def posted(url: str, document: object, **headers: str) -> dict[str, Any]:
    body = json.dumps(document).encode()
    signature = hmac.new(KEY.encode(), body, hashlib.sha256).hexdigest()
    request = urllib.request.Request(  # noqa: S310 - of the loopback
        url, body, {"Content-Type": "application/json", "X-Webhook-Signature": signature, **headers}
    )
    with urllib.request.urlopen(request) as answer:  # noqa: S310
        found: dict[str, Any] = json.loads(answer.read() or b"{}")
    return found


def page_script(own: str, ports: list[int]) -> str:
    """The page's variables and processes, with its lines for an external hostpay in their place."""
    text = (DOCS / HERE).read_text(encoding="utf-8")
    [external] = re.findall(r"```\n(export PAYOUTS_HOSTPAY=external\n.*?)```", text, re.DOTALL)
    variables, processes = sh_blocks(HERE)
    processes = "".join(line for line in processes.splitlines(keepends=True) if "payouts.hostpay" not in line)
    before, migrate = variables.rsplit("payonce db migrate", 1)
    script = f"{before}\n{external}\npayonce db migrate{migrate}\n{processes}\nwait"
    script = re.sub(r"HOSTPAY_WEBHOOK_URL=http\S+/pay", f"HOSTPAY_WEBHOOK_URL={own}", script)
    script = re.sub(r"(SUCCESS_URL_SIGNING_KEY)=\$\(.*?\)", rf"\1={KEY}", script)
    script = re.sub(r"(TPS_HOSTPAY_SIGNING_KEY)=\$\(.*?\)", rf"\1={HOSTPAY_KEY}", script)
    *free, gateway = ports
    used = ("8123", "9001", "9002", "9003", "9004", "9101", "9102")
    for port, instead in zip(used, free, strict=True):
        script = re.sub(rf"\b{port}\b", str(instead), script)
    return script.replace("payonce simulators ", f"payonce simulators --gateway-port {gateway} ")


async def walk(script: str, own: OwnGcHostPay, owner: asyncpg.Connection) -> None:
    urls = dict(re.findall(r"export (GCSPLIT\d_URL|CHANGENOW_URL)=(\S+)", script))
    roles = [url for name, url in urls.items() if name != "CHANGENOW_URL"]

    async def ready() -> bool:
        return all([await asyncio.to_thread(answers, f"{url}/readyz") for url in roles])

    async def called() -> bool:
        return bool(own.calls)

    async def state(payout_id: str) -> str:
        return str(await owner.fetchval("select state from payouts.payouts where id = $1", payout_id))

    await eventually(ready, WITHIN_S, "every role is ready")
    first, again = [await asyncio.to_thread(posted, f"{urls['GCSPLIT1_URL']}/", SIX) for _ in range(2)]
    assert (first["state"], again["state"]) == ("received", "review"), "a repetition is for a person"
    await eventually(called, WITHIN_S, "GCHostPay is called")
    [call] = own.calls
    assert call["unique_id"] == first["unique_id"]
    deposit = {
        "payinAddress": call["payin_address"],
        "asset": "eth",
        "amount": repr(call["from_amount"]),
        "txHash": "0x" + "d1" * 32,
    }
    await asyncio.to_thread(posted, f"{urls['CHANGENOW_URL']}/simulator/deposits", deposit)

    async def deposit_seen() -> bool:
        return await state(first["payout_id"]) in ("paid_in", "finished")

    await eventually(deposit_seen, WITHIN_S, "the exchange has seen the deposit")
    assert await state(again["payout_id"]) == "review"
    assert len(own.calls) == 1
    with pytest.raises(urllib.error.HTTPError, match="401"):
        await asyncio.to_thread(posted, f"{urls['GCSPLIT1_URL']}/", SIX, **{"X-Webhook-Signature": "0" * 64})


@pytest.mark.timeout(300)
def test_your_own_gchostpay_pays_as_the_page_says(servers: Servers, tmp_path: Path) -> None:
    async def follow() -> None:
        own = OwnGcHostPay(HOSTPAY_KEY.encode())
        with reserved_ports(8) as ports, servers.of().lent() as database, (tmp_path / "log").open("w+") as log:
            async with listening(own) as address:
                script = page_script(address, ports)
                given = {
                    **clean_environment(),
                    "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
                    "PAYONCE_DATA_DIR": str(tmp_path / "data"),
                    "DATABASE_URL": database.service_url,
                    "DATABASE_OWNER_URL": database.owner_url,
                }
                shell = subprocess.Popen(  # noqa: ASYNC220 - it returns at once, and is ended below
                    ["sh", "-ec", script], env=given, stdout=log, stderr=log, start_new_session=True
                )
                owner = await asyncpg.connect(database.owner_url)
                try:
                    await walk(script, own, owner)
                except BaseException:
                    log.seek(0)
                    print(log.read())
                    raise
                finally:
                    await owner.close()
                    os.killpg(shell.pid, signal.SIGKILL)
                    shell.wait()

    asyncio.run(follow())
