"""What the endpoint answers to whom: every body and every token, and nothing written for those it refuses."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from payonce.engine.messages.model import Message, message_to_wire
from payonce.engine.messages.push import EnvelopeCodec
from payonce.engine.messages.work import Work, handles
from payonce.engine.monitoring.metrics import REGISTRY
from payonce.kit.http import HttpClient, Response
from payonce.kit.outcomes import Invalid
from payonce.kit.redact import redact
from payonce.queues.cloudtasks.deliveries import STALE
from payonce.queues.cloudtasks.names import LOCAL_ACCOUNT, task_id
from payonce.taskserver.tokens import TokenMaker
from payonce.testing import OpenStage, eventually
from tests.cloudtasks.testbed import POLICY, QUEUE, AppContext, open_testbed

PATH = f"/errands/runner/{QUEUE}"


@handles(POLICY)
async def run(work: Work) -> None:
    pass


@dataclass
class Caller:
    context: AppContext
    http: HttpClient
    signer: TokenMaker

    def token(self, account: str = LOCAL_ACCOUNT, audience: str | None = None) -> str:
        return self.signer.token(account, audience or self.context.url)

    async def knock(self, body: bytes, token: str | None = None, **headers: str) -> Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        authorization = {} if token == "" else {"Authorization": f"Bearer {token or self.token()}"}
        return await self.http.request("POST", PATH, body=body, headers={**authorization, **named})

    async def written(self) -> int:
        """The number of runs begun or ended."""
        count = await self.context.s.owner.fetchval(
            """
            select (select count(*) from payonce.outbox where holder is not null or attempts > 0)
                 + (select count(*) from payonce.inbox) + (select count(*) from payonce.job_logs)
            """
        )
        return int(count)


@asynccontextmanager
async def knocking(stage: OpenStage, *, working: bool = True, by_platform: bool = False) -> AsyncIterator[Caller]:
    signer = TokenMaker()
    async with open_testbed(
        stage, [run], working=working, dispatching=False, verified_by_platform=by_platform
    ) as context:
        await remember(context, signer)
        async with HttpClient("endpoint", context.url, allow_private=True) as http:
            yield Caller(context, http, signer)


async def remember(context: AppContext, signer: TokenMaker) -> None:
    await context.s.owner.execute(
        "insert into cloudtasks.signing_keys (kid, public_key, created_at) values ($1, $2, payonce.due_now())",
        signer.kid,
        signer.public_key,
    )


def counted(outcome: str) -> float:
    return REGISTRY.get_sample_value("payonce_pushed_deliveries_total", {"queue": QUEUE, "outcome": outcome}) or 0.0


async def test_a_task_with_the_right_token_is_run_and_answered(stage: OpenStage) -> None:
    async with knocking(stage) as k:
        [message_id] = await k.context.put({"n": 1})
        body = message_to_wire(Message(id=message_id, queue=QUEUE))
        answer = await k.knock(body, X_CloudTasks_TaskName=task_id(message_id, 0))
        assert (answer.status, answer.json()) == (200, {"outcome": "settled"})
        again = await k.knock(body)
        assert (again.status, again.json()) == (200, {"outcome": "already_settled"})


@pytest.mark.parametrize("by_platform", [True, False])
async def test_a_task_as_cloud_run_forwards_it_is_run_where_cloud_run_verifies_and_refused_elsewhere(
    stage: OpenStage, by_platform: bool
) -> None:
    async with knocking(stage, by_platform=by_platform) as k:
        [message_id] = await k.context.put({"n": 1})
        body = message_to_wire(Message(id=message_id, queue=QUEUE))
        forwarded = f"{k.token().rpartition('.')[0]}.SIGNATURE_REMOVED_BY_GOOGLE"
        with_another = await k.knock(body, forwarded, X_Serverless_Authorization="Bearer x.y.z")
        assert with_another.status == 401
        with capture_logs() as said:
            answer = await k.knock(body, forwarded, X_CloudTasks_TaskName=task_id(message_id, 0))
        if by_platform:
            assert (answer.status, answer.json()) == (200, {"outcome": "settled"})
        else:
            assert answer.status == 401
            assert await k.written() == 0
            [line] = [each for each in said if each["event"] == "task_refused"]
            reason = line["reason"]
            assert "Only if this service is deployed with --no-allow-unauthenticated" in reason
            assert "CLOUD_TASKS_VERIFIED_BY=cloud-run. On an open service somebody has forged it" in reason
            assert redact(reason) == reason, "the log shows all of it"


@pytest.mark.parametrize("by_platform", [True, False])
async def test_a_request_with_two_tokens_is_refused(stage: OpenStage, by_platform: bool) -> None:
    """It is unknown which of the headers Cloud Run has verified."""
    async with knocking(stage, by_platform=by_platform) as k:
        [message_id] = await k.context.put({"n": 1})
        body = message_to_wire(Message(id=message_id, queue=QUEUE))
        answer = await k.knock(body, "x.y.z", authorization=f"Bearer {k.token()}")
        assert answer.status == 401
        assert await k.written() == 0
        assert (await k.knock(body, X_CloudTasks_TaskName=task_id(message_id, 0))).status == 200


async def test_only_the_task_service_may_knock(stage: OpenStage) -> None:
    async with knocking(stage) as k:
        [message_id] = await k.context.put({"n": 1})
        body, before = message_to_wire(Message(id=message_id, queue=QUEUE)), counted("unauthorized")
        stranger = TokenMaker()
        head, claims, signature = k.token().split(".")
        forged = (
            base64.urlsafe_b64encode(json.dumps({"alg": "none", "kid": k.signer.kid}).encode()).decode().rstrip("=")
        )
        wrong = {
            "none": "",
            "of a stranger's key": stranger.token(LOCAL_ACCOUNT, k.context.url),
            "for another address": k.token(audience="https://elsewhere.example"),
            "for another account": k.token(account="somebody@payonce.invalid"),
            "unsigned": f"{forged}.{claims}.",
            "changed": f"{head}.{claims[:-2]}AA.{signature}",
            "no token": "abc",
            "endless": "a" * 9_000,
            "not base64": "!.!.!",
        }
        for what, token in wrong.items():
            answer = await k.knock(body, token)
            assert answer.status == 401, what
        assert counted("unauthorized") == before + len(wrong)
        assert await k.written() == 0


async def test_a_token_that_has_ended_is_refused(stage: OpenStage, monkeypatch: Any) -> None:
    async with knocking(stage) as k:
        monkeypatch.setattr("payonce.taskserver.tokens.LIFETIME_S", -120)
        assert (await k.knock(b"{}", k.token())).status == 401


async def test_bodies_that_cannot_be_read_are_refused_and_not_repeated_to_anybody(stage: OpenStage) -> None:
    async with knocking(stage) as k:
        before = counted("unreadable")
        bodies = [b"", b"{", b"[]", b"{}", b'{"id": "no"}', b'{"id": 1}', b"\xff\xfe", b'{"token": "secret-text"}']
        for body in bodies:
            answer = await k.knock(body)
            assert (answer.status, answer.json()) == (400, {"outcome": "unreadable"}), body
        assert counted("unreadable") == before + len(bodies)
        assert await k.written() == 0


async def test_a_body_beyond_the_bound_is_refused(stage: OpenStage) -> None:
    async with knocking(stage) as k:
        assert (await k.knock(b'{"id": "' + b"x" * 1_100_000 + b'"}')).status == 413
        assert await k.written() == 0


async def test_a_message_that_was_never_put_is_not_found(stage: OpenStage) -> None:
    async with knocking(stage) as k:
        answer = await k.knock(message_to_wire(Message(queue=QUEUE)))
        assert (answer.status, answer.json()) == (404, {"outcome": "unknown"})
        assert await k.written() == 0


async def test_what_the_body_says_beside_the_id_is_not_believed(stage: OpenStage) -> None:
    async with knocking(stage, working=False) as k:
        [message_id] = await k.context.put({"amount": "1"})
        forged = message_to_wire(Message(id=message_id, queue=QUEUE, payload={"amount": "1000000"}))
        asking = asyncio.create_task(k.knock(forged))
        queue = k.context.tasks.queue(POLICY, "worker-1")
        await eventually(lambda: bool(k.context.tasks._buffers[QUEUE]._waiting))
        [claim] = (await queue.exchange([], 10)).claims
        assert claim.message.payload == {"amount": "1"}
        k.context.tasks.close_endpoints()
        queue._answer(message_id, claim.token, STALE)
        assert (await asking).status == 503


async def test_a_door_without_work_says_when_to_come_back(stage: OpenStage) -> None:
    async with knocking(stage, working=False) as k:
        k.context.tasks.close_endpoints()
        [message_id] = await k.context.put({"n": 1})
        answer = await k.knock(message_to_wire(Message(id=message_id, queue=QUEUE)))
        assert (answer.status, answer.json()) == (503, {"outcome": "closing"})
        assert int(answer.headers["retry-after"]) > 0


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200) | st.text(max_size=100).map(lambda text: json.dumps({"id": text}).encode()))
def test_any_bytes_are_a_value_or_one_clear_error(body: bytes) -> None:
    try:
        arrived = EnvelopeCodec().decode(body, {})
    except Invalid:
        return
    assert arrived.message is None
