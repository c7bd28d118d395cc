"""What subscriptions are told: the same bytes under the same id, signed for each attempt, until they have them."""

import asyncio
import json
from datetime import UTC, datetime

import pytest
from standardwebhooks import Webhook

from payonce.engine.messages.ports import Filter
from payonce.kit.outcomes import Invalid
from payonce.kit.webhooks import Scheme, Secret, Verified, new_secret, verify
from payonce.kit.webhooks.signatures import signed_headers
from payonce.services.billing.payments.handlers import notifications
from payonce.services.billing.payments.handlers.notifications import NotificationSender
from payonce.services.billing.payments.model import State
from payonce.services.billing.policies import SUBSCRIPTION_UPDATE
from payonce.testing import OpenStage, eventually
from tests.services.billing.payments.till import AT, SECRET, Till, open_till

HEADERS = {
    "x-webhook-timestamp",
    "x-webhook-signature",
    "x-webhook-event-id",
    "webhook-id",
    "webhook-timestamp",
    "webhook-signature",
}


async def attempts(till: Till) -> list[tuple[str, int | None]]:
    rows = await till.s.owner.fetch(
        "select way, response_code from payments.webhook_outbound_requests where event_id like 'charge-%' order by id"
    )
    return [(row["way"], row["response_code"]) for row in rows]


async def test_it_arrives_at_once_and_the_queue_finds_it_delivered(stage: OpenStage) -> None:
    async with open_till(stage) as till:
        await till.card()
        await till.ask()
        await till.drain()
        assert till.subscriptions.told[-1]["action"] == "renewal"
        assert await till.queued(SUBSCRIPTION_UPDATE.queue) == 2
        await till.run()
        assert await attempts(till) == [("immediate", 200)]
        assert await till.queued(SUBSCRIPTION_UPDATE.queue) == 0
        assert till.subscriptions.duplicates == 0


async def test_both_schemes_are_in_the_headers_and_each_verifies(stage: OpenStage) -> None:
    async with open_till(stage) as till:
        await till.card()
        transaction = await till.charged()
        headers = till.subscriptions.headers[-1]
        assert set(headers) >= HEADERS
        assert headers["x-webhook-event-id"] == headers["webhook-id"] == f"charge-{transaction.id}"
        body = await till.s.owner.fetchval(
            "select body from payments.notifications where transaction_id = $1", transaction.id
        )
        at = datetime.fromtimestamp(int(headers["webhook-timestamp"]), UTC)
        for scheme in Scheme:
            assert isinstance(verify(headers, body, [SECRET], at, schemes=(scheme,)), Verified)


@pytest.mark.parametrize("answer", [400, 401, 404, 409, 500, 503])
async def test_whatever_is_no_2xx_is_tried_again_by_the_queue(stage: OpenStage, answer: int) -> None:
    async with open_till(stage) as till:
        await till.card()
        await till.run()
        till.subscriptions.answers = [answer, answer, answer]
        await till.ask()
        await till.run()
        assert await attempts(till) == [("immediate", answer), ("queued", answer), ("queued", answer), ("queued", 200)]
        assert [told["action"] for told in till.subscriptions.told] == ["payment_method", "renewal"]
        assert await till.broken() == {}


async def test_what_was_answered_is_kept_cut_and_without_secrets(stage: OpenStage) -> None:
    async with open_till(stage) as till:
        till.subscriptions.answers = [500]
        await till.card()
        [kept] = await till.s.owner.fetch("select * from payments.webhook_outbound_requests")
        assert kept["url"] == f"{AT}/v1/webhooks/payment"
        assert "not now" in kept["response_body"]
        assert "very-secret" not in kept["response_body"] + kept["error"]


async def test_when_it_never_arrives_the_message_is_parked_and_the_invariant_says_so(stage: OpenStage) -> None:
    async with open_till(stage) as till:
        till.subscriptions.answers = [500] * 7
        await till.card()
        await till.run()
        assert await till.broken() != {}
        parked = await till.s.owner.fetchval("select count(*) from payonce.messages where state = 'parked'")
        assert parked == 1
        await till.s.admin.redrive(SUBSCRIPTION_UPDATE.queue, Filter())
        await till.run()
        assert [told["action"] for told in till.subscriptions.told] == ["payment_method"]
        assert await till.broken() == {}


async def test_an_answer_that_is_lost_after_it_was_taken_makes_a_duplicate_and_nothing_else(
    stage: OpenStage, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The process dies between the answer and its record."""
    async with open_till(stage) as till:
        await till.card()
        await till.run()
        whole = NotificationSender.record

        async def dies(*_: object) -> None:
            monkeypatch.setattr(NotificationSender, "record", whole)
            raise OSError("the power is gone")

        monkeypatch.setattr(NotificationSender, "record", dies)
        await till.ask()
        await till.run()
        assert "notification_not_sent_at_once" in capsys.readouterr().out
        assert till.subscriptions.duplicates == 1
        assert len(till.subscriptions.told) == 2
        assert await till.broken() == {}


async def test_a_refund_is_told_after_the_charge_that_it_gives_back(stage: OpenStage) -> None:
    async with open_till(stage) as till:
        await till.card()
        await till.run()
        till.subscriptions.answers = [503]
        transaction = await till.charged(action="trial", amount_minor=100)
        assert transaction.state is State.REFUNDED
        assert [told["action"] for told in till.subscriptions.told] == ["payment_method", "trial", "refund"]
        assert await till.broken() == {}


async def test_nothing_is_told_before_the_commit(stage: OpenStage, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_till(stage) as till:
        await till.card()
        seen: list[str] = []
        whole = NotificationSender.post

        async def looks(
            self: NotificationSender, due: notifications.DueNotification, *rest: object
        ) -> notifications.DeliveryAttempt:
            # Another connection sees what is committed, and nothing else.
            seen.append(await till.s.owner.fetchval("select state from payments.transactions"))
            return await whole(self, due, *rest)  # type: ignore[arg-type]

        monkeypatch.setattr(NotificationSender, "post", looks)
        await till.charged()
        assert seen == ["succeeded"]


async def test_the_first_secret_signs_and_every_one_verifies_while_they_are_exchanged(stage: OpenStage) -> None:
    old, new = SECRET, new_secret()
    steps = (([old], [old, new]), ([new, old], [old, new]), ([new, old], [new]), ([new], [new]))
    async with open_till(stage) as till:
        for number, (signs, knows) in enumerate(steps, start=1):
            till.notifier._secrets, till.subscriptions.secrets = tuple(signs), knows
            await till.card(account_id=f"acc-{number}")
            assert len(till.subscriptions.told) == number


def test_without_a_secret_there_is_no_notifier() -> None:
    with pytest.raises(Invalid, match="WEBHOOK_SIGNING_SECRET"):
        NotificationSender(None, AT, [], None)  # type: ignore[arg-type]


async def test_others_verify_what_we_sign(stage: OpenStage) -> None:
    secret = new_secret()
    async with open_till(stage, secrets=[secret]) as till:
        till.subscriptions.secrets = [secret]
        await till.card()
        body = await till.s.owner.fetchval("select body from payments.notifications")
        headers = till.subscriptions.headers[-1]
        assert Webhook(secret.reveal()).verify(body, headers)["action"] == "payment_method"


def test_we_verify_what_others_sign() -> None:
    secret, now, body = new_secret(), datetime.now(UTC), json.dumps({"event_id": "charge-1"})
    signature = Webhook(secret.reveal()).sign("charge-1", now, body)
    headers = {"webhook-id": "charge-1", "webhook-timestamp": str(int(now.timestamp())), "webhook-signature": signature}
    assert isinstance(verify(headers, body.encode(), [secret], now, schemes=(Scheme.STANDARD,)), Verified)
    assert signed_headers([secret], "charge-1", now, body.encode())["webhook-signature"] == signature


async def test_a_slow_receiver_holds_up_no_worker_and_no_more_than_so_many_wait_for_it(
    stage: OpenStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifications, "AT_ONCE_MAX", 2)
    # Nothing that the receiver holds is to end by the time.
    monkeypatch.setattr(notifications, "AT_ONCE_S", 60.0)
    async with open_till(stage, aside=True) as till:
        held = asyncio.Event()
        whole = till.subscriptions._take

        async def slow(*asked: object) -> object:
            await held.wait()
            return await whole(*asked)  # type: ignore[arg-type]

        monkeypatch.setattr(till.subscriptions, "_take", slow)
        await till.card()
        for number in range(3):
            await till.ask(f"inv-{number}")
        await till.drain()
        assert (await till.transaction("inv-2")).state is State.SUCCEEDED
        assert len(till.notifier._under_way) == 2
        held.set()
        await eventually(lambda: _is(not till.notifier._under_way))
        await till.run()
        assert len(till.subscriptions.told) == 4
        assert await till.broken() == {}


async def _is(true: bool) -> bool:
    return true


async def test_another_secret_than_ours_is_refused_and_on_record(stage: OpenStage) -> None:
    async with open_till(stage, secrets=[Secret("another-secret-of-32-characters!")]) as till:
        await till.card()
        kept = await till.s.owner.fetchval("select response_code from payments.webhook_outbound_requests")
        assert kept == 401
