"""Outgoing webhooks: published in the commit they follow from, signed afresh, with the same id and bytes each time, and
recorded."""

from contextlib import suppress
from datetime import UTC, timedelta
from itertools import pairwise

import msgspec
import pytest
from standardwebhooks.webhooks import Webhook

from payonce.engine.messages.model import Message
from payonce.engine.messages.policy import override
from payonce.engine.monitoring import metrics
from payonce.engine.webhooks import (
    DELIVERIES,
    DeliveryState,
    EndpointState,
    Sender,
    announce,
    announce_to,
    attempts,
    deliver,
    delivery,
    disable_endpoint,
    enable_endpoint,
    event_body,
    remove_endpoint,
)
from payonce.engine.webhooks.delivery_attempt import ANSWER_MAX_BYTES, RETRY_AFTER_MAX_S, SCHEDULE_S
from payonce.kit.crypto import Keyring
from payonce.kit.outcomes import Invalid
from payonce.kit.webhooks import Scheme, Verified, verify
from payonce.testing import OpenStage
from tests.engine.webhooks_stage import KEYS, Say, open_post

DAY_S = 86_400.0


async def test_what_is_announced_arrives_signed_by_both_schemes(stage: OpenStage) -> None:
    async with open_post(stage) as post:
        _, secret = await post.add("invoice.*")
        event_id = await post.announce("invoice.paid", {"amount": "12.50", "to": "Zoë"})
        await post.run()
        [request] = post.shop.arrived
        body = msgspec.json.decode(request.body)
        assert body == {
            "id": event_id,
            "type": "invoice.paid",
            "timestamp": (await post.now()).astimezone(UTC).isoformat().replace("+00:00", "Z"),
            "data": {"amount": "12.50", "to": "Zoë"},
        }
        assert request.headers["content-type"] == "application/json"
        at = (await post.now()).replace(microsecond=0)
        assert verify(request.headers, request.body, [secret], await post.now()) == Verified(
            Scheme.STANDARD, at, event_id
        )
        older = {name: value for name, value in request.headers.items() if name.startswith("x-")}
        assert verify(older, request.body, [secret], await post.now()) == Verified(Scheme.OLDER, at, None)
        [told] = await post.deliveries()
        assert (told.state, told.attempts, told.last_status, told.event_id) == ("delivered", 1, 204, event_id)
        assert not await post.s.owner.fetchval("select count(*) from payonce.messages")


async def test_the_reference_package_verifies_what_is_delivered(stage: OpenStage) -> None:
    async with open_post(stage) as post:
        await post.s.clock.thaw()
        _, secret = await post.add()
        event_id = await post.announce()
        while await post.worker.step():
            pass
        [request] = post.shop.arrived
        assert Webhook(secret.reveal()).verify(request.body, request.headers)["id"] == event_id


async def test_nothing_is_told_of_what_was_rolled_back(stage: OpenStage) -> None:
    async with open_post(stage) as post:
        await post.add()
        with suppress(ZeroDivisionError):
            async with post.s.begin() as tx:
                await announce(tx, "invoice.paid", {})
                raise ZeroDivisionError
        await post.run(DAY_S)
        assert (post.shop.arrived, await post.deliveries()) == ([], [])


@pytest.mark.parametrize(
    ("wanted", "hears"),
    [
        (["*"], True),
        (["invoice.paid"], True),
        (["invoice.*"], True),
        (["plan.changed", "invoice.paid"], True),
        (["invoice"], False),
        (["invoice.paid.late"], False),
        (["invoice.pa"], False),
        (["invoices.*"], False),
        (["invoice.paid.*"], False),
    ],
)
async def test_an_endpoint_hears_of_what_it_listens_for(stage: OpenStage, wanted: list[str], hears: bool) -> None:
    async with open_post(stage) as post:
        await post.add(*wanted)
        await post.announce("invoice.paid")
        await post.run()
        assert len(post.shop.arrived) == hears


async def test_tenants_do_not_hear_of_each_other(stage: OpenStage) -> None:
    async with open_post(stage) as post:
        await post.add(tenant="acme", path="/acme")
        await post.add(tenant="bolt", path="/bolt")
        await post.announce(tenant="acme")
        await post.run()
        assert [request.path for request in post.shop.arrived] == ["/acme"]


async def test_each_attempt_has_the_same_id_and_bytes_and_a_fresh_timestamp(stage: OpenStage) -> None:
    async with open_post(stage) as post:
        _, secret = await post.add()
        post.shop.answers = [Say(500)] * 3
        started = await post.now()
        event_id = await post.announce()
        await post.run(DAY_S)
        requests = post.shop.arrived
        assert [request.id for request in requests] == [event_id] * 4
        assert len({request.body for request in requests}) == 1
        assert requests[0].body == await event_body(post.s.read, event_id)
        stamps = [int(request.headers["webhook-timestamp"]) - int(started.timestamp()) for request in requests]
        for stamp, planned in zip(stamps, [0, 5, 305, 2_105], strict=True):
            assert planned <= stamp <= planned + 20, "by the schedule, with its jitter"
        for request in requests:
            at = started + timedelta(seconds=int(request.headers["webhook-timestamp"]) - int(started.timestamp()))
            assert isinstance(verify(request.headers, request.body, [secret], at), Verified)


async def test_the_schedule_is_followed_to_its_end_and_the_delivery_is_given_up(stage: OpenStage) -> None:
    async with open_post(stage) as post:
        await post.add()
        post.shop.usual = Say(500, body=b"token=s3cret-of-theirs oops")
        started = await post.now()
        await post.announce()
        await post.run(2 * DAY_S)
        assert len(post.shop.arrived) == 1 + len(SCHEDULE_S) == 8
        [told] = await post.deliveries()
        assert (told.state, told.reason, told.attempts) == ("failed", "given up after 8 attempts", 8)
        tried = await attempts(post.s.read, told.id)
        assert [each.number for each in tried] == list(range(1, 9))
        gaps = [(later.at - earlier.at).total_seconds() for earlier, later in pairwise(tried)]
        assert all(planned <= gap <= planned + 5 for planned, gap in zip(SCHEDULE_S, gaps, strict=True))
        assert {each.error for each in tried} == {"answered 500"}
        assert {each.excerpt for each in tried} == {"token=[redacted] oops"}
        assert tried[0].at == started
        assert not await post.s.owner.fetchval("select count(*) from payonce.messages"), "nobody has to clear it away"
        endings = await post.s.owner.fetch("select status from payonce.job_logs order by id")
        assert [row["status"] for row in endings][-1] == "failed"


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
async def test_any_success_is_a_success(stage: OpenStage, status: int) -> None:
    async with open_post(stage) as post:
        await post.add()
        post.shop.usual = Say(status)
        await post.announce()
        await post.run(DAY_S)
        assert (len(post.shop.arrived), await post.states()) == (1, ["delivered"])


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_a_failure_and_is_not_followed(stage: OpenStage, status: int) -> None:
    async with open_post(stage) as post:
        await post.add()
        post.shop.answers = [Say(status, {"location": f"{post.url}/elsewhere"})]
        await post.announce()
        await post.run(60)
        assert [request.path for request in post.shop.arrived] == ["/hook", "/hook"]
        [told] = await post.deliveries()
        [first, _] = await attempts(post.s.read, told.id)
        assert first.error == f"answered {status}, and redirects are not followed"


async def test_gone_disables_the_endpoint_at_once_with_its_reason(stage: OpenStage) -> None:
    async with open_post(stage) as post:
        made, _ = await post.add()
        post.shop.usual = Say(410)
        await post.announce()
        await post.run()
        await post.announce()
        await post.run(2 * DAY_S)
        assert len(post.shop.arrived) == 1
        found = await post.look(made.id)
        assert (found.state, found.reason) == ("disabled", "it answered 410 Gone")
        assert await post.states() == ["failed", "skipped"]
        assert (await post.notes())[-1] == ("payonce", "SHOP disabled: it answered 410 Gone")


@pytest.mark.parametrize("status", [429, 503])
async def test_a_receiver_that_asks_for_patience_gets_it(stage: OpenStage, status: int) -> None:
    async with open_post(stage) as post:
        await post.add()
        post.shop.answers = [Say(status, {"retry-after": "3600"})]
        await post.announce()
        await post.run(3_599)
        assert len(post.shop.arrived) == 1
        await post.run(2)
        assert len(post.shop.arrived) == 2


@pytest.mark.parametrize(
    ("status", "retry_after", "least_s", "most_s"),
    [
        (503, "0", 5, 11),
        (503, "999999999", RETRY_AFTER_MAX_S, RETRY_AFTER_MAX_S + 1),
        (503, "soon", 5, 11),
        (500, "3600", 5, 11),
    ],
)
async def test_patience_is_bounded_and_never_haste(
    stage: OpenStage, status: int, retry_after: str, least_s: float, most_s: float
) -> None:
    async with open_post(stage) as post:
        await post.add()
        post.shop.answers = [Say(status, {"retry-after": retry_after})]
        await post.announce()
        await post.run(least_s - 1)
        assert len(post.shop.arrived) == 1
        await post.run(most_s - least_s + 2)
        assert len(post.shop.arrived) == 2


async def test_a_long_answer_is_read_within_its_bound(stage: OpenStage) -> None:
    """A receiver that answers 200 with a page has received it, however long the page is."""
    async with open_post(stage) as post:
        await post.add()
        post.shop.answers = [Say(500, body=b"x" * (ANSWER_MAX_BYTES + 1)), Say(200, body=b"x" * (ANSWER_MAX_BYTES + 1))]
        await post.announce()
        await post.run(60)
        [told] = await post.deliveries()
        first, second = await attempts(post.s.read, told.id)
        assert (told.state, first.status, second.status) == ("delivered", 500, 200)
        assert first.excerpt == second.excerpt == f"an answer over {ANSWER_MAX_BYTES} bytes"


async def test_nobody_listening_is_on_record_without_the_path(stage: OpenStage) -> None:
    async with open_post(stage) as post:
        made, _ = await post.add(url="http://127.0.0.1:1/their-secret-path")
        await post.announce()
        await post.run()
        [told] = await post.deliveries()
        [tried] = await attempts(post.s.read, told.id)
        assert (told.state, tried.status) == ("pending", None)
        assert "Connection refused" in (tried.error or "")
        rows = await post.s.owner.fetch("select last_error from payonce.messages")
        for text in (tried.error, repr(made), repr(told), rows[0]["last_error"]):
            assert "their-secret-path" not in str(text)


async def test_an_endpoint_that_only_fails_is_disabled_after_days_and_a_success_saves_it(stage: OpenStage) -> None:
    async with open_post(stage) as post:
        made, _ = await post.add()
        post.shop.usual = Say(500)
        for _ in range(4):
            await post.announce()
            await post.run(DAY_S)
        assert (await post.look(made.id)).state is EndpointState.ENABLED
        post.shop.answers = [Say(204)]
        await post.announce()
        await post.run(2 * DAY_S)
        await post.announce()
        await post.run(DAY_S)
        assert (await post.look(made.id)).state is EndpointState.ENABLED, "it was not failing all the time"
        for _ in range(4):
            await post.announce()
            await post.run(DAY_S)
        found = await post.look(made.id)
        assert found.state is EndpointState.DISABLED
        assert found.reason == "nothing but failures for 5 days, the last one: answered 500"
        assert (await post.notes())[-1][0] == "payonce"
        count = len(post.shop.arrived)
        await post.announce()
        await post.run(2 * DAY_S)
        assert len(post.shop.arrived) == count
        assert (await post.states())[-1] == "skipped"


async def test_a_disabled_endpoint_is_left_alone_whatever_was_announced_before(stage: OpenStage) -> None:
    async with open_post(stage) as post:
        made, _ = await post.add()
        await post.announce()
        async with post.s.begin() as tx:
            await disable_endpoint(tx, made.id, by="ada", reason="they move house")
        await post.announce()
        await post.run(2 * DAY_S)
        assert (post.shop.arrived, await post.states()) == ([], ["skipped", "skipped"])
        reasons = {each.reason for each in await post.deliveries()}
        assert reasons == {"the endpoint is disabled: they move house"}
        async with post.s.begin() as tx:
            await enable_endpoint(tx, made.id, by="bob")
        await post.announce()
        await post.run()
        assert len(post.shop.arrived) == 1
        assert (await post.notes())[1:] == [("ada", "SHOP disabled: they move house"), ("bob", "SHOP enabled")]


async def test_a_removed_endpoint_hears_nothing_and_its_secrets_are_gone(stage: OpenStage) -> None:
    async with open_post(stage) as post:
        made, _ = await post.add()
        await post.announce()
        async with post.s.begin() as tx:
            await remove_endpoint(tx, made.id, by="ada", reason="closed")
        await post.announce()
        await post.run(2 * DAY_S)
        assert (post.shop.arrived, await post.states()) == ([], ["skipped"])
        assert await post.s.owner.fetchval("select bool_and(sealed = '') from payonce.webhook_secrets")
        with pytest.raises(Invalid, match="is removed: closed"):
            async with post.s.begin() as tx:
                await enable_endpoint(tx, made.id, by="ada")


async def test_a_message_without_a_delivery_on_record_is_parked(stage: OpenStage) -> None:
    async with open_post(stage) as post:
        payload = {"event": "none", "type": "invoice.paid", "endpoint": "none"}
        await post.s.feed.put([Message(queue=DELIVERIES.queue, action="deliver", payload=payload)])
        await post.run()
        [left] = await post.s.owner.fetch("select id, state, last_error from payonce.messages")
        assert (left["state"], post.shop.arrived) == ("parked", [])
        assert f"there is no delivery {left['id']}" in left["last_error"]


async def test_a_slow_endpoint_does_not_hold_up_the_others(stage: OpenStage) -> None:
    """Guards the lanes: thirty for one endpoint, and the delivery for the other is not behind them."""
    async with open_post(stage) as post:
        await post.add("many", path="/many")
        await post.add("one", path="/one")
        for _ in range(30):
            await post.announce("many")
        await post.announce("one")
        for _ in range(3):
            await post.worker.step()
        assert "/one" in [request.path for request in post.shop.arrived]


async def test_without_keys_deliveries_wait_and_use_up_no_attempt(stage: OpenStage) -> None:
    async with open_post(stage, keys=None) as post:
        await post.add()
        await post.announce()
        await post.run(600.0)
        assert (post.shop.arrived, await post.states()) == ([], ["pending"])
        strangers = Sender(post.sender.http, post.s.database, Keyring({1: b"x" * 32}))
        await post.s.run(await post.s.worker(deliver, resources=[strangers]), 600.0)
        assert (post.shop.arrived, await post.states()) == ([], ["pending"])
        able = Sender(post.sender.http, post.s.database, KEYS)
        await post.s.run(await post.s.worker(deliver, resources=[able]), 120.0)
        [told] = await post.deliveries()
        assert (len(post.shop.arrived), told.state, told.attempts) == (1, "delivered", 1)


async def test_an_endpoint_is_tried_out_alone(stage: OpenStage) -> None:
    async with open_post(stage) as post:
        made, _ = await post.add("plan.changed")
        await post.add("*", path="/other")
        async with post.s.begin() as tx:
            await announce_to(tx, made.id, "payonce.ping", {})
        await post.run()
        assert [request.path for request in post.shop.arrived] == ["/hook"]


async def test_a_delivery_carries_the_trace_on(stage: OpenStage) -> None:
    async with open_post(stage) as post:
        await post.add()
        await post.announce(trace_id="payment-7")
        [told] = await post.deliveries()
        assert told.trace_id == "payment-7"
        assert await post.s.owner.fetchval("select trace_id from payonce.messages") == "payment-7"
        assert (await delivery(post.s.read, told.id)) == told


async def test_attempts_are_measured_by_what_came_of_them(stage: OpenStage) -> None:
    def count(outcome: str) -> float:
        return metrics.REGISTRY.get_sample_value("webhook_delivery_seconds_count", {"outcome": outcome}) or 0.0

    before = {outcome: count(outcome) for outcome in ("delivered", "refused", "unanswered")}
    async with open_post(stage) as post:
        await post.add()
        await post.add(url="http://127.0.0.1:1/")
        post.shop.answers = [Say(500)]
        await post.announce()
        await post.run(60)
    assert count("delivered") == before["delivered"] + 1
    assert count("refused") == before["refused"] + 1
    assert count("unanswered") == before["unanswered"] + 2


async def test_the_schedule_is_a_policy_that_the_environment_can_change() -> None:
    changed = override(DELIVERIES, {"steps_seconds": "1,2", "max_attempts": "3"})
    assert (changed.backoff.delay_s(1, 0), changed.backoff.delay_s(9, 0), changed.max_attempts) == (1, 2, 3)


@pytest.mark.parametrize(
    ("event_type", "data", "words"),
    [
        ("invoice paid", {}, "event type 'invoice paid'"),
        ("", {}, "event type ''"),
        ("a" * 101, {}, "event type"),
        ("a..b", {}, "event type"),
        ("x", {"n": float("nan")}, "NaN"),
        ("x", {"text": "x" * 300_000}, "the limit is"),
        ("x", {"o": object()}, "not JSON"),
    ],
)
async def test_what_cannot_be_told_is_refused_and_nothing_is_written(
    stage: OpenStage, event_type: str, data: dict[str, object], words: str
) -> None:
    async with open_post(stage) as post:
        await post.add()
        with pytest.raises(Invalid, match=words):
            await post.announce(event_type, data)
        assert not await post.s.owner.fetchval("select count(*) from payonce.webhook_events")


def test_the_states_are_those_of_the_table() -> None:
    assert {str(state) for state in DeliveryState} == {"pending", "delivered", "failed", "skipped"}
    assert {str(state) for state in EndpointState} == {"enabled", "disabled", "removed"}
