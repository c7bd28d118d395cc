"""The headers that a worker reads, with Google's meaning, and the token that proves who sent."""

import base64
import json
from typing import Any

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from tests.taskserver.testbed import QUEUE, TaskServerTestbed

FAST = {"min_backoff": {"seconds": 60}, "max_backoff": {"seconds": 60}, "max_attempts": -1}
EMAIL = "payer@payonce-test.iam.gserviceaccount.com"


async def test_the_first_attempt_says_which_task_it_is_and_nothing_of_retries(still: TaskServerTestbed) -> None:
    await still.queue()
    created = await still.put("named", **still.http(headers={"X-Own": "kept"}))
    await still.steps()
    [arrival] = still.worker.arrived
    said = {name: value for name, value in arrival.headers.items() if name.startswith("x-cloudtasks-")}
    assert said == {
        "x-cloudtasks-queuename": "payments",
        "x-cloudtasks-taskname": "named",
        "x-cloudtasks-taskretrycount": "0",
        "x-cloudtasks-taskexecutioncount": "0",
        "x-cloudtasks-tasketa": f"{created.schedule_time.timestamp():.6f}",
    }
    assert arrival.headers["user-agent"] == "Google-Cloud-Tasks"
    assert arrival.headers["x-own"] == "kept"
    assert "content-type" not in arrival.headers, "Google sets none"


async def test_a_retry_says_how_it_came_about(still: TaskServerTestbed) -> None:
    await still.queue(retry_config=FAST)
    still.worker.answers(500, 404, 503, 200)
    await still.put("retried")
    for _ in range(4):
        await still.steps()
        await still.s.clock.advance(60)
    told = [
        tuple(
            arrival.headers.get(f"x-cloudtasks-task{name}")
            for name in ("retrycount", "executioncount", "previousresponse")
        )
        for arrival in still.worker.arrived
    ]
    assert told == [("0", "0", None), ("1", "0", "500"), ("2", "1", "404"), ("3", "1", "503")]
    assert "HTTP status code 404" in still.worker.arrived[2].headers["x-cloudtasks-taskretryreason"]


async def test_an_attempt_without_an_answer_is_a_retry_and_no_execution(still: TaskServerTestbed) -> None:
    await still.queue(retry_config=FAST)
    await still.put("lost")
    [claim] = (await still.claims(limit=1)).tasks
    await still.s.clock.advance_leases(31)
    await still.steps()
    [arrival] = still.worker.arrived
    assert claim.id == "lost"
    assert arrival.headers["x-cloudtasks-taskretrycount"] == "1"
    assert arrival.headers["x-cloudtasks-taskexecutioncount"] == "0"
    assert "x-cloudtasks-taskpreviousresponse" not in arrival.headers
    assert arrival.headers["x-cloudtasks-taskretryreason"] == "the dispatcher was lost"


async def test_what_is_googles_to_set_cannot_be_set(still: TaskServerTestbed) -> None:
    await still.queue()
    forged = {
        "User-Agent": "mine",
        "Host": "elsewhere",
        "X-CloudTasks-TaskName": "another",
        "X-Google-Trusted": "1",
        "X-AppEngine-QueueName": "q",
        "Content-Length": "7",
    }
    await still.put("honest", **still.http(headers=forged, body=b"abc"))
    await still.steps()
    [arrival] = still.worker.arrived
    assert arrival.headers["user-agent"] == "Google-Cloud-Tasks"
    assert arrival.headers["host"] in still.worker.url
    assert (arrival.task, arrival.headers["content-length"], arrival.body) == ("honest", "3", b"abc")
    assert not [name for name in arrival.headers if name.startswith(("x-google-", "x-appengine-"))]


@pytest.mark.parametrize("method", ["POST", "GET", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS"])
async def test_the_method_is_the_tasks(still: TaskServerTestbed, method: str) -> None:
    await still.queue()
    await still.put("method", **still.http(http_method=method))
    await still.steps()
    assert [arrival.method for arrival in still.worker.arrived] == [method]


@pytest.mark.parametrize("audience", ["", "https://payouts.example"])
async def test_an_oidc_token_is_signed_by_a_key_on_record(still: TaskServerTestbed, audience: str) -> None:
    await still.queue()
    await still.put("proven", **still.http("/pay", oidc_token={"service_account_email": EMAIL, "audience": audience}))
    await still.steps()
    [arrival] = still.worker.arrived
    scheme, _, token = arrival.headers["authorization"].partition(" ")
    assert scheme == "Bearer"
    claims = await verified(still, token)
    assert claims["iss"] == "https://cloudtasks.payonce.invalid"
    assert claims["aud"] == (audience or f"{still.worker.url}/pay")
    assert (claims["email"], claims["email_verified"], claims["sub"]) == (EMAIL, True, EMAIL)
    assert claims["exp"] - claims["iat"] == 3_600
    head, body, signature = token.split(".")
    with pytest.raises(InvalidSignature):
        await verified(still, f"{head}.{body[:-2]}AA.{signature}")


async def test_a_token_is_made_once_for_an_account_and_audience(still: TaskServerTestbed) -> None:
    await still.queue()
    for email in (EMAIL, EMAIL, "other@example.com"):
        await still.put(**still.http(oidc_token={"service_account_email": email, "audience": "a"}))
    await still.steps()
    tokens = {arrival.headers["authorization"] for arrival in still.worker.arrived}
    assert (len(still.worker.arrived), len(tokens)) == (3, 2)


async def test_a_task_without_a_token_carries_none(still: TaskServerTestbed) -> None:
    await still.queue()
    await still.put("plain")
    await still.steps()
    assert "authorization" not in still.worker.arrived[0].headers


async def verified(testbed: TaskServerTestbed, token: str) -> dict[str, Any]:
    """The claims; as the roles do it, with the key that the database has of the server."""
    head, body, signature = token.split(".")
    kid = json.loads(decoded(head))["kid"]
    pem = await testbed.s.database.work.fetchval("select public_key from cloudtasks.signing_keys where kid = $1", kid)
    key = serialization.load_pem_public_key(pem.encode())
    assert isinstance(key, rsa.RSAPublicKey)
    key.verify(decoded(signature), f"{head}.{body}".encode(), padding.PKCS1v15(), hashes.SHA256())
    claims: dict[str, Any] = json.loads(decoded(body))
    return claims


def decoded(part: str) -> bytes:
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))


async def test_the_queue_of_a_task_is_the_one_it_was_put_in(still: TaskServerTestbed) -> None:
    other = QUEUE.replace("payments", "other")
    await still.queue()
    await still.queue(other)
    await still.put("same")
    await still.put("same", other)
    await still.steps()
    assert sorted(each.headers["x-cloudtasks-queuename"] for each in still.worker.arrived) == ["other", "payments"]
