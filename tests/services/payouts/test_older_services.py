"""Tasks of older services: a payout is taken up from what their tokens say, or the task stays with its sender."""

import json
from collections import Counter
from dataclasses import replace
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from payonce.engine.messages.model import Ending, Message, SettleAnswer
from payonce.engine.messages.ports import Exchange
from payonce.engine.messages.push import DecodedTask
from payonce.services.payouts.messages.tokens import (
    ESTIMATE_REQUEST,
    ESTIMATE_RESPONSE,
    HOPS,
    HOST_PAY,
    SWAP_REQUEST,
    SWAP_RESPONSE,
    Hop,
)
from payonce.services.payouts.model import Hold, State, payout_from
from payonce.services.payouts.policies import ESTIMATE, ESTIMATED, HOSTPAY, SWAP, SWAPPED
from payonce.services.payouts.store import payouts as store
from payonce.testing import OpenStage
from payonce.vendors.changenow import prices
from tests.cloudtasks.testbed import Runs, open_runs
from tests.services.payouts.payouts_stage import BTC_CLIENT, Office, open_office
from tests.services.payouts.test_tokens import as_older_services_send
from tests.services.payouts.tokens_made import TASK, Clock, codec

TO: dict[str, Any] = {"wallet_address": BTC_CLIENT, "payout_currency": "btc", "payout_network": "btc"}
ROLES = ("orchestrator", "estimator", "swapper", "hostpay")
TAKEN_UP = [ESTIMATE_REQUEST, ESTIMATE_RESPONSE]
REFUSED = [(SWAP_REQUEST, SWAP), (SWAP_RESPONSE, SWAPPED), (HOST_PAY, HOSTPAY)]


async def bring(office: Office, hop: Hop, task: str = "task-1", v1: str = "accept", **changes: Any) -> Message:
    """As the task service does it: the codec reads the older service's body, and its message gets a record."""
    message = await made_by_older_service(office, hop, task, v1, **changes)
    await office.s.feed.put([message])
    return message


async def made_by_older_service(
    office: Office, hop: Hop, task: str = "task-1", v1: str = "accept", **changes: Any
) -> Message:
    clock = Clock((await office.s.clock.now()).timestamp())
    changes = {**TO, **changes} if hop in (ESTIMATE_REQUEST, ESTIMATE_RESPONSE) else changes
    body = as_older_services_send(hop, clock, **changes)
    message = codec(hop, clock=clock, v1=v1).decode(body, {"x-cloudtasks-taskname": task}).message
    assert message is not None
    return message


async def payouts(office: Office) -> list[Any]:
    rows = await office.s.owner.fetch("select * from payouts.payouts order by created_at, id")
    return [payout_from(row) for row in rows]


async def rows(office: Office, queue: str) -> list[Any]:
    return list(await office.s.owner.fetch("select * from payonce.messages where queue = $1", queue))


@pytest.mark.parametrize("hop", TAKEN_UP, ids=lambda hop: hop.name)
async def test_a_payout_is_taken_up_from_an_older_services_token(stage: OpenStage, hop: Hop) -> None:
    async with open_office(stage) as office:
        await bring(office, hop)
        await office.run()
        [payout] = await payouts(office)
        assert payout.state is State.SWAPPED
        assert (payout.user_id, payout.closed_channel_id) == (6_271_402, "-1002345678901")
        assert (payout.wallet_address, payout.payout_currency) == (BTC_CLIENT, "btc")
        assert (str(payout.adjusted), payout.fee.minor) == ("29.100000 USDT", 0), "the older service kept its fee"
        [told] = await office.hostpay_told()
        assert told["unique_id"] == payout.unique_id
        assert await office.broken() == {}


@pytest.mark.parametrize("hop", TAKEN_UP, ids=lambda hop: hop.name)
async def test_the_same_task_is_one_payout_and_another_like_it_goes_to_review(stage: OpenStage, hop: Hop) -> None:
    async with open_office(stage) as office:
        for task in ("task-1", "task-1", "task-2"):
            await bring(office, hop, task)
            await office.run()
        first, second = await payouts(office)
        assert first.state is State.SWAPPED
        assert (second.state, second.hold) == (State.REVIEW, Hold.REPEATED)
        assert await office.broken() == {}


async def test_what_an_older_service_handed_over_is_not_paid_again_by_webhook(stage: OpenStage) -> None:
    async with open_office(stage, config=terms_without_payment_ids()) as office:
        await bring(office, ESTIMATE_REQUEST)
        await office.run()
        taken = await office.order(
            payment_id=None, user_id=6_271_402, closed_channel_id="-1002345678901", subscription_price="30.00"
        )
        assert (await office.payout(taken)).hold is Hold.REPEATED


def terms_without_payment_ids() -> Any:
    from tests.services.payouts.payouts_stage import TERMS

    return replace(TERMS, allow_missing_payment_id=True)


async def test_an_address_that_is_none_is_held_and_not_lost(stage: OpenStage) -> None:
    async with open_office(stage) as office:
        await bring(office, ESTIMATE_REQUEST, wallet_address=BTC_CLIENT[:-1] + "q")
        await office.run()
        [payout] = await payouts(office)
        assert (payout.state, payout.hold) == (State.HELD, Hold.BAD_ADDRESS)
        assert "checksum" in (payout.reason or "")


@pytest.mark.parametrize(
    "changes",
    [
        {"adjusted_amount_usdt": "0"},
        {"adjusted_amount_usdt": "9e23"},
        {"payout_currency": ""},
        {"closed_channel_id": ""},
        {"wallet_address": ""},
        {"wallet_address": "x" * 201},
    ],
)
async def test_what_cannot_become_a_payout_stays_with_its_sender(stage: OpenStage, changes: dict[str, Any]) -> None:
    async with open_office(stage) as office:
        await bring(office, ESTIMATE_REQUEST, **changes)
        await office.drain()
        [left] = await rows(office, ESTIMATE.queue)
        assert left["attempts"] == 1
        assert left["last_error"].startswith("the token"), "its sentence, and no error of the database or of reckoning"
        assert await payouts(office) == []


@pytest.mark.parametrize(("hop", "policy"), REFUSED, ids=lambda each: getattr(each, "name", ""))
async def test_a_token_about_another_services_record_is_refused_and_parked_after_a_day(
    stage: OpenStage, hop: Hop, policy: Any
) -> None:
    async with open_office(stage, roles=ROLES) as office:
        message = await bring(office, hop)
        await office.drain()
        [left] = await rows(office, policy.queue)
        assert (left["id"], left["attempts"]) == (message.id, 1), "a retry: the task service hears no success"
        await office.s.clock.advance(86_400)
        await office.drain()
        [left] = await rows(office, policy.queue)
        assert left["state"] == "parked"
        assert "older" in left["last_error"]
        assert "failed" not in left["last_error"]
        assert await payouts(office) == []


async def test_a_refused_task_whose_token_has_expired_is_still_parked_with_the_reason(stage: OpenStage) -> None:
    """Tasks wait while services are replaced, so the token is older than its message, and its day ends first."""
    async with stage() as s, open_runs(s, SWAP) as runs:
        await s.clock.freeze()
        made = Clock((await s.clock.now()).timestamp())
        body, at_once = as_older_services_send(SWAP_REQUEST, made), codec(SWAP_REQUEST, clock=made, v1="accept")
        begun = at_once.decode(body, TASK)
        [claim] = [*(await bring_to(runs, begun)).claims]
        assert await runs.settle(claim, Ending.RETRY, "no payout has this unique_id", 60) is SettleAnswer.SETTLED
        await s.clock.advance(86_500)
        a_day_later = codec(SWAP_REQUEST, clock=Clock(made.now_s + 86_500), v1="accept")
        [again] = [*(await bring_to(runs, a_day_later.decode(body, TASK))).claims]
        assert (again.message.id, again.message.payload["unique_id"]) == (begun.id, "A1B2C3D4E5F6G7H8")
        never_begun = a_day_later.decode(body, {**TASK, "x-cloudtasks-taskname": "another"})
        told = await runs.told(runs.bring(never_begun.id, message=never_begun.message))
        assert told.status == 404, "it is no success, and nothing begins by it"


async def bring_to(runs: Runs, arrived: DecodedTask) -> Exchange:
    runs.bring(arrived.id, message=arrived.message)
    return await runs.queue.exchange([], 10)


async def test_the_answer_of_an_older_estimator_prices_the_payout_that_asked(stage: OpenStage) -> None:
    async with open_office(stage, roles=("orchestrator", "swapper")) as office:
        taken = await office.order(user_id=6_271_402, closed_channel_id="-1002345678901", subscription_price="123.47")
        [asked] = await rows(office, ESTIMATE.queue)
        assert json.loads(asked["payload"])["adjusted_amount_usdt"] == "119.765900"
        answer = {
            "from_amount_usdt": "119.7659",
            "to_amount_eth_post_fee": "0.0471",
            "deposit_fee": "0",
            "withdrawal_fee": "0.0007",
        }
        for task in ("task-1", "task-2"):
            await bring(office, ESTIMATE_RESPONSE, task, v1="emit", **answer)
            await office.run()
        assert await office.state(taken) is State.SWAPPED
        assert [each.id for each in await payouts(office)] == [taken.payout.id], "a second answer is no second payout"
        assert await office.broken() == {}


@pytest.mark.parametrize("taken_elsewhere", [False, True])
async def test_an_older_estimator_is_not_asked_again_once_it_has_answered(
    stage: OpenStage, taken_elsewhere: bool
) -> None:
    """It settles nothing here, so its task, done over there, would be taken for lost and made anew every minute."""
    async with (
        open_office(stage, roles=("orchestrator", "swapper")) as office,
        open_runs(office.s, ESTIMATE) as runs,
    ):
        taken = await office.order(user_id=6_271_402, closed_channel_id="-1002345678901", subscription_price="30")
        [request] = await runs.put({"as": "it was sent"}, correlation_id=taken.payout.id)
        [other] = await runs.put({"as": "it was sent"}, correlation_id="another payout")
        if taken_elsewhere:
            async with office.s.begin() as tx:
                await store.hold_payout(tx, taken.payout, Hold.PERSON, "ann: looked into it")
        await bring(office, ESTIMATE_RESPONSE, v1="emit")
        await office.run()
        assert await office.state(taken) is (State.HELD if taken_elsewhere else State.SWAPPED)
        assert await runs.has_ended(request)
        assert await runs.statuses(request) == ["success"]
        assert await runs.row(other) is not None


@pytest.mark.parametrize(("v1", "answered_s_before"), [("accept", 0), ("emit", 3_600)])
async def test_an_estimate_for_another_services_payout_is_not_lost_to_one_of_ours(
    stage: OpenStage, v1: str, answered_s_before: int
) -> None:
    """Nobody was asked by us, or only after the answer was made: it is about a payment that the older service took."""
    async with open_office(stage, config=terms_without_payment_ids()) as office:
        await office.s.admin.pause(ESTIMATE.queue, "so that ours waits for its price")
        answer = await made_by_older_service(office, ESTIMATE_RESPONSE, v1=v1)
        await office.s.clock.advance(answered_s_before)
        ours = await office.order(user_id=6_271_402, closed_channel_id="-1002345678901", subscription_price="30")
        await office.s.feed.put([answer])
        await office.drain()
        assert await office.state(ours) is State.RECEIVED
        [other] = [each for each in await payouts(office) if each.id != ours.payout.id]
        assert (other.state, other.hold) == (State.REVIEW, Hold.REPEATED), (
            "a person tells whether it is another payment"
        )


async def test_an_old_answer_of_an_older_estimator_is_asked_for_anew(stage: OpenStage) -> None:
    async with open_office(stage) as office:
        await office.s.admin.pause(ESTIMATE.queue, "an older estimator has it")
        taken = await office.order(user_id=6_271_402, closed_channel_id="-1002345678901", subscription_price="30")
        await office.s.admin.pause(ESTIMATED.queue, "to be late")
        await bring(office, ESTIMATE_RESPONSE, v1="emit")
        await office.s.clock.advance(3_600)
        await office.s.admin.resume(ESTIMATED.queue)
        await office.drain()
        assert await office.state(taken) is State.RECEIVED
        assert len(await rows(office, ESTIMATE.queue)) == 2


PRICES = ("2487.31", "1847.0103")
ON_THEIR_WAY = (ESTIMATE, ESTIMATED, SWAP, SWAPPED)


async def messages_of_every_hop(office: Office) -> list[Message]:
    """Each queue is read while it is paused, before its role takes what lies there; nobody serves hostpay's here."""
    for policy in ON_THEIR_WAY:
        await office.s.admin.pause(policy.queue, "to be read")
    found = []
    for policy in ON_THEIR_WAY:
        await office.drain()
        found += await rows(office, policy.queue)
        await office.s.admin.resume(policy.queue)
    await office.drain()
    found += await rows(office, HOSTPAY.queue)
    return [Message(queue=row["queue"], payload=json.loads(row["payload"])) for row in found]


@pytest.mark.parametrize("price", PRICES)
async def test_every_hop_is_emitted_at_prices_that_are_not_round(
    stage: OpenStage, monkeypatch: pytest.MonkeyPatch, price: str
) -> None:
    """The exact amounts of real payouts, through tokens of version 1 with the exact decimal beside them."""
    listed = prices.LISTINGS["eth", "eth"]
    monkeypatch.setattr(prices, "LISTINGS", {**prices.LISTINGS, ("eth", "eth"): replace(listed, price=Decimal(price))})
    async with open_office(stage) as office:
        paid = ("29.99", "9.97", "123.45", "49.50", "333.33")
        for number, each in enumerate(paid):
            await office.order(payment_id=f"pay-{number}", user_id=7_000 + number, subscription_price=each)
        sent = await messages_of_every_hop(office)
        by_queue = {hop.queue: hop for hop in HOPS}
        assert Counter(message.queue for message in sent) == dict.fromkeys(by_queue, len(paid))
        for message in sent:
            hop = by_queue[message.queue]
            body = codec(hop, v1="emit").encode(message)
            token = json.dumps({"token": json.loads(body)["token"]}).encode()
            arrived = codec(hop, v1="accept").decode(token, {"x-cloudtasks-taskname": "t"}).message
            assert arrived is not None
            for name, kind in ((field.name, field.type) for field in msgspec.structs.fields(hop.fields)):
                exact, told = message.payload[name], arrived.payload[name]
                if kind is Decimal:
                    assert abs(Decimal(exact) - Decimal(told)) <= Decimal(exact) * Decimal(2) ** -53, name
                else:
                    assert exact == told
            assert codec(hop, v1="emit").decode(body, {}).id == message.id, "our own roles find the exact one"
