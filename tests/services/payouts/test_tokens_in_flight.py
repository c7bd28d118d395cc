"""A payout goes through all roles of a real process in tokens that the task service brings, and none is refused. Tasks
of older services become payouts or stay with the task service."""

import asyncio
import http.client
import json
import time
from typing import Any, Final
from uuid import uuid4

import pytest
from prometheus_client.parser import text_string_to_metric_families

from payonce.kit.crypto import sign_hex, to_base64url
from payonce.kit.webhooks.secrets import Secret
from payonce.queues.cloudtasks.client import Config, TaskRequest, TaskService
from payonce.queues.cloudtasks.names import LOCAL_ACCOUNT, LOCAL_PROJECT, ProjectLocation
from payonce.services.payouts.messages.tokens import ESTIMATE_REQUEST, ESTIMATE_RESPONSE, HOPS
from payonce.services.payouts.messages.tokens.packed import Packer
from payonce.testing import ScratchDatabase, eventually
from tests.cli.conftest import (
    PATIENCE_S,
    SIGNING_KEY,
    Payonce,
    ask,
    clean_environment,
    database,
    payonce,
    until,
    warm_parent,
)
from tests.cli.test_serve import fetch, started
from tests.services.payouts.tokens_made import CLIENT, FIELDS

__all__ = ["clean_environment", "database", "payonce", "warm_parent"]


def ordered(port: int) -> dict[str, Any]:
    body = json.dumps(
        {
            "payment_id": str(uuid4()),
            "user_id": 6_271_402,
            "closed_channel_id": "-1002345678901",
            "wallet_address": CLIENT,
            "payout_currency": "usdt",
            "payout_network": "eth",
            "subscription_price": "300.00",
            "timestamp": int(time.time()),
        }
    )
    headers = {"X-Webhook-Signature": sign_hex(SIGNING_KEY.encode(), body.encode()), "Content-Type": "application/json"}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    try:
        connection.request("POST", "/", body, headers)
        answer = connection.getresponse()
        said: dict[str, Any] = json.loads(answer.read())
        assert answer.status == 200, said
        return said
    finally:
        connection.close()


def counted(port: int, name: str) -> list[dict[str, str]]:
    """The labels of what was counted."""
    families = text_string_to_metric_families(fetch(port, "/metrics")[1])
    return [sample.labels for family in families for sample in family.samples if sample.name == name]


ONCE_TRIGGERED: Final = ("paying", "paid_in", "finished")
ONCE_PAID: Final = ("paid_in", "finished")
"""The exchange is asked for it every quarter of a minute."""


@pytest.mark.parametrize("v1", ["off", "emit"])
@pytest.mark.parametrize("ends", [ONCE_TRIGGERED, pytest.param(ONCE_PAID, marks=pytest.mark.full)])
def test_a_payout_passes_every_hop(payonce: Payonce, database: ScratchDatabase, v1: str, ends: tuple[str, ...]) -> None:
    # The port of the task server may be taken, of which gRPC would tell in a line of its own between those of the log.
    process = payonce.start("up", "--port", "0", PAYOUTS_TOKENS_V1=v1, GRPC_VERBOSITY="NONE")
    port = int(started(process, "listening")["url"].rpartition(":")[2])
    payout_id = ordered(port)["payout_id"]

    def passed() -> Any:
        state = ask(database.owner_url, "select state from payouts.payouts where id = $1", payout_id)
        brought = counted(port, "payonce_pushed_deliveries_total")
        return state in ends and {labels["queue"] for labels in brought} == {hop.queue for hop in HOPS}

    until(passed, f"every task was brought, and the payout is {ends[0]}")
    assert counted(port, "payonce_hop_token_failures_total") == []


PATHS = {hop: f"/payouts/{hop.role}{hop.path}" for hop in HOPS}
TAKEN_UP = (ESTIMATE_REQUEST, ESTIMATE_RESPONSE)
SERVER_TOKEN = "token-of-the-task-server"


async def bring(address: str, port: int) -> None:
    """One task of an older service for each hop, made with Google's client."""
    service = TaskService(
        Config(ProjectLocation(LOCAL_PROJECT, "us-central1"), LOCAL_ACCOUNT, address, lambda: SERVER_TOKEN)
    )
    here = f"http://127.0.0.1:{port}"
    key = Secret(SIGNING_KEY)
    try:
        for hop in HOPS:
            made = Packer(hop, [key]).make(FIELDS[hop], time.time())
            body = json.dumps({"token": to_base64url(made)}).encode()
            name = service.config.location.task(hop.queue, f"of-an-older-service-{hop.role}-{len(hop.path)}")
            task = TaskRequest(name, here + PATHS[hop], here, body, 30.0)

            async def is_made(queue: str = hop.queue, task: TaskRequest = task) -> bool:
                [said] = await service.create(queue, [task])
                assert said.code in ("OK", "NOT_FOUND"), said
                return said.code == "OK"

            # The process makes its queues at the task service as soon as it leads, and listens before that.
            await eventually(is_made, what=f"a task for {hop.queue}")
    finally:
        await service.close()


def test_tasks_of_older_services_become_payouts_or_stay(payonce: Payonce, database: ScratchDatabase) -> None:
    process = payonce.start(
        "up",
        "--port",
        "0",
        PAYOUTS_TOKENS_V1="accept",
        GRPC_VERBOSITY="NONE",
        TPS_HOSTPAY_SIGNING_KEY=SIGNING_KEY,
        CLOUD_TASKS_TOKEN=SERVER_TOKEN,
    )
    address = started(process, "cloud_tasks_server_listening")["address"]
    port = int(started(process, "listening")["url"].rpartition(":")[2])
    asyncio.run(bring(address, port))

    def taken_up() -> Any:
        return ask(database.owner_url, "select count(*) = 2 from payouts.payouts")

    def refused() -> Any:
        retried = [each for each in counted(port, "payonce_pushed_deliveries_total") if each["outcome"] == "retried"]
        return {each["queue"] for each in retried} == {hop.queue for hop in HOPS if hop not in TAKEN_UP}

    until(taken_up, "both requests are payouts")
    until(refused, "the others were answered with an error")
    left = ask(database.owner_url, "select count(*) from cloudtasks.tasks where id like '%older-service%'")
    assert left == 3, "they are still with the task service"
