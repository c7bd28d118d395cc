"""PAYOUTS_HOSTPAY=external: somebody's own GCHostPay is told of each swap once, and no wallet of ours takes part."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

import pytest

from payonce.engine.controls import Approval, grant, submit
from payonce.engine.effects import Answer, answer_review
from payonce.engine.messages.model import Message
from payonce.kit.outcomes import Invalid, Unavailable
from payonce.kit.webhooks.secrets import Secret
from payonce.queues.cloudtasks.client import CallStatus, Config, QueueNumbers, TaskRequest, TaskService
from payonce.queues.cloudtasks.names import LOCAL_ACCOUNT, ProjectLocation
from payonce.services.payouts import ledger
from payonce.services.payouts.api.webhook import WebhookRefused
from payonce.services.payouts.decisions.payouts import Decision, Verdict, decision_action
from payonce.services.payouts.handlers.external_hostpay import NAME_KNOWN_S, CreateHostpayTask, ExternalHostPay
from payonce.services.payouts.handlers.next_messages import hostpay_fields
from payonce.services.payouts.messages.tokens import plain
from payonce.services.payouts.model import Hold, State, SwapState
from payonce.services.payouts.policies import HOSTPAY
from payonce.services.payouts.resources import external_hostpay
from payonce.services.payouts.store.lookup import find_payouts
from payonce.services.payouts.store.orders import Intake
from payonce.taskserver.server import CloudTasksServer, open_server
from payonce.testing import OpenStage, Stage
from payonce.vendors.changenow import prices
from tests.services.payouts.own_gchostpay import OwnGcHostPay, listening
from tests.services.payouts.payouts_stage import CLIENT, TERMS, Office, eth, open_office

KEY = Secret("hostpay-key-of-the-tests-9876543210")
EXTERNAL = replace(TERMS, external_hostpay=True)
QUEUE = HOSTPAY.queue
NUMBERS = QueueNumbers(500, 50, -1, 86_400, 60, 60, 0)
ODD_PRICE = Decimal("2487.31")


class Disturbed(TaskService):
    """Google's client, whose answers get lost: `said` is what comes instead of the next ones, `made` whether the task
    was made all the same."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.said: list[tuple[str, bool]] = []
        self.asked = 0
        self.away = False

    async def delete(self, name: str) -> None:
        if self.away:
            raise Unavailable("disturbed")
        await super().delete(name)

    async def create(self, queue: str, tasks: Sequence[TaskRequest]) -> list[CallStatus]:
        self.asked += 1
        code, made = self.said.pop(0) if self.said else ("", True)
        answer = await super().create(queue, tasks) if made else []
        return [CallStatus(code, "disturbed")] if code else answer


@dataclass
class Yard:
    """The office, the task service, and the GCHostPay that it calls."""

    office: Office
    own: OwnGcHostPay
    server: CloudTasksServer
    service: Disturbed
    url: str = ""
    seen: list[Any] = field(default_factory=list)

    async def run(self, patience_s: float = 600.0) -> None:
        await self.office.run(patience_s)
        while await self.server.dispatcher.step():
            pass

    def pay(self) -> None:
        """What GCHostPay does when it is called: each deposit once."""
        for call in self.own.calls:
            self.office.changenow.deposit(
                call["payin_address"], "eth", Decimal(repr(call["from_amount"])), f"0x{call['cn_api_id']}"
            )

    async def effects(self) -> list[Any]:
        return list(await self.office.s.owner.fetch("select * from payonce.effects where kind = 'hostpay.task'"))

    async def decide(self, taken: Intake, verdict: Verdict) -> None:
        office = self.office
        action = decision_action(office.s.admin)
        payout = await office.payout(taken)
        decision = Decision(payout_id=payout.id, seen=payout.revision, verdict=verdict, note="looked into it")
        async with office.s.begin() as tx:
            asked = await submit(tx, action, decision, "ann", "looked into it")
        if isinstance(asked, Approval):
            async with office.s.begin() as tx:
                await grant(tx, {action.name: action}, asked.id, "bob")


@asynccontextmanager
async def open_yard(stage: OpenStage, **how: Any) -> AsyncIterator[Yard]:
    found: dict[str, Any] = {}

    @asynccontextmanager
    async def opened(s: Stage) -> AsyncIterator[ExternalHostPay]:
        own = OwnGcHostPay(KEY.key)
        async with open_server(s.database, s.notifier, dispatching=False) as server, listening(own) as url:
            service = Disturbed(Config(ProjectLocation("payonce-test", "us-central1"), LOCAL_ACCOUNT, server.address))
            await service.create_queue(QUEUE, NUMBERS)
            found.update(own=own, server=server, service=service, url=url)
            try:
                yield external_hostpay(service, QUEUE, url, [KEY])
            finally:
                await service.close()

    async with open_office(stage, config=EXTERNAL, external=opened, **how) as office:
        yield Yard(office, **found)


@pytest.fixture
def odd_price(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = prices.LISTINGS["eth", "eth"]
    monkeypatch.setattr(prices, "LISTINGS", {**prices.LISTINGS, ("eth", "eth"): replace(listed, price=ODD_PRICE)})


@pytest.mark.usefixtures("odd_price")
async def test_gchostpay_is_told_once_and_the_payout_is_followed_to_its_end(stage: OpenStage) -> None:
    async with open_yard(stage) as yard:
        taken = await yard.office.order(subscription_price="29.99")
        await yard.run()
        payout, [swap] = await yard.office.payout(taken), await yard.office.swaps(taken)
        assert payout.state is State.SWAPPED
        assert payout.value is not None
        [call] = yard.own.calls
        assert (call["unique_id"], call["cn_api_id"]) == (payout.unique_id, swap.cn_api_id)
        assert (call["from_currency"], call["from_network"]) == ("eth", "eth")
        assert call["payin_address"] == swap.payin_address
        assert call["from_amount"] == float(payout.value.to_decimal()), "the nearest double of an amount that has none"
        assert Decimal(call["from_amount"]) != payout.value.to_decimal()
        [effect] = await yard.effects()
        assert (effect["state"], effect["key"]) == ("performed", swap.id)
        assert effect["vendor_ref"].endswith(call["task"])
        yard.pay()
        await yard.run(4 * 3_600)
        assert await yard.office.state(taken) is State.FINISHED
        assert len(yard.own.calls) == 1
        assert await yard.office.balance(ledger.AT_EXCHANGE) == eth("0")
        assert await yard.office.balance(ledger.OWED) == eth("0")
        assert await yard.office.broken() == {}
        exchange = yard.office.changenow.books.entries[str(swap.cn_api_id)]
        for held, by in ((exchange.payin_hash, "transaction"), (exchange.payout_hash, "transaction to the client")):
            [match] = await find_payouts(yard.office.s.read, str(held))
            assert (match.path, match.matched) == (f"/payouts/{payout.id}", by), "GCHostPay alone signed it"


@pytest.mark.parametrize(
    "said",
    [
        [("DEADLINE_EXCEEDED", True)],
        [("UNAVAILABLE", True), ("UNAVAILABLE", True)],
        [("UNAVAILABLE", False)],
        [("NOT_FOUND", False), ("PERMISSION_DENIED", False)],
    ],
)
async def test_a_lost_answer_of_the_task_service_is_asked_for_under_the_same_name(
    stage: OpenStage, said: list[tuple[str, bool]]
) -> None:
    async with open_yard(stage) as yard:
        yard.service.said = list(said)
        await yard.office.order()
        await yard.run()
        assert yard.service.asked == len(said) + 1
        assert len(yard.own.calls) == 1
        [effect] = await yard.effects()
        assert effect["state"] == "performed"
        assert await yard.office.broken() == {}


async def test_when_the_name_is_no_longer_known_a_person_tells(stage: OpenStage) -> None:
    """An hour after a task ended the task service would take its name once more."""
    async with open_yard(stage) as yard:
        yard.service.said = [("UNAVAILABLE", True)]
        taken = await yard.office.order()
        await yard.office.drain()
        while not await yard.effects():
            await yard.office.run(60)
        while await yard.server.dispatcher.step():
            pass
        yard.service.said = [("UNAVAILABLE", False)] * 1_000
        await yard.office.run(NAME_KNOWN_S + 600)
        yard.service.said, asked = [], yard.service.asked
        await yard.office.run(900)
        assert yard.service.asked == asked, "it is not sent again"
        [call], [effect] = yard.own.calls, await yard.effects()
        assert effect["state"] == "review"
        yard.pay()
        async with yard.office.s.begin() as tx:
            await answer_review(
                tx,
                effect["id"],
                Answer.HAPPENED,
                "ann",
                "GCHostPay was called",
                revision=effect["revision"],
                outcome={"task": call["task"]},
                vendor_ref=call["task"],
            )
        await yard.run(3_600)
        assert await yard.office.state(taken) is State.FINISHED
        assert len(yard.own.calls) == 1
        assert await yard.office.broken() == {}


@pytest.mark.parametrize("paid_by_chance", [False, True])
async def test_a_task_that_could_not_be_made_for_hours_pays_no_exchange_that_is_over(
    stage: OpenStage, paid_by_chance: bool
) -> None:
    async with open_yard(stage) as yard:
        yard.service.said = [("PERMISSION_DENIED", False)] * 1_000
        taken = await yard.office.order()
        await yard.run(60)
        [first] = await yard.office.swaps(taken)
        assert (await yard.effects())[0]["state"] == "intended"
        if paid_by_chance:
            assert first.payin_address is not None
            yard.office.changenow.deposit(first.payin_address, "eth", first.amount.to_decimal(), "0xd1")
        await yard.run(2 * 3_600)
        assert {each["state"] for each in await yard.effects() if each["key"] == first.id} == {"refused"}
        yard.service.said = []
        await yard.run(600)
        if paid_by_chance:
            assert (yard.own.calls, await yard.office.state(taken)) == ([], State.REVIEW)
            return
        [call], [swap] = yard.own.calls, await yard.office.swaps(taken)
        assert call["cn_api_id"] == swap.cn_api_id != first.cn_api_id
        yard.pay()
        await yard.run(4 * 3_600)
        assert await yard.office.state(taken) is State.FINISHED
        assert await yard.office.broken() == {}


async def test_a_payout_that_a_person_stops_before_its_task_could_be_made_is_not_handed_over(stage: OpenStage) -> None:
    async with open_yard(stage) as yard:
        yard.service.said = [("PERMISSION_DENIED", False)] * 1_000
        taken = await yard.office.order()
        await yard.run(60)
        await yard.decide(taken, Verdict.HOLD)
        yard.service.said = []
        await yard.run(600)
        assert yard.own.calls == []
        assert (await yard.office.payout(taken)).held_from is State.PRICED
        await yard.decide(taken, Verdict.RELEASE)
        await yard.run(600)
        assert len(yard.own.calls) == 1
        assert await yard.office.broken() == {}


async def test_a_lost_answer_is_not_asked_for_again_when_the_exchange_is_over(stage: OpenStage) -> None:
    """Whether the first task was made, nobody knows: a new one could be the first, and pay what has expired."""
    async with open_yard(stage) as yard:
        yard.service.said = [("UNAVAILABLE", False)] * 25
        taken = await yard.office.order()
        await yard.run(60)
        [swap] = await yard.office.swaps(taken)
        await yard.office.s.owner.execute(
            "update payouts.swaps set valid_until = payonce.due_now() where id = $1", swap.id
        )
        yard.service.said, asked = [], yard.service.asked
        await yard.run(2 * NAME_KNOWN_S)
        assert (yard.service.asked, yard.own.calls) == (asked, [])
        [effect] = await yard.effects()
        assert effect["state"] == "review"
        async with yard.office.s.begin() as tx:
            await answer_review(
                tx, effect["id"], Answer.DID_NOT, "ann", "GCHostPay knows nothing of it", revision=effect["revision"]
            )
        await yard.run(3_600)
        assert await yard.office.state(taken) is State.REVIEW
        assert len(yard.own.calls) == 0, "one person's word is not enough for another exchange"
        await yard.decide(taken, Verdict.UNPAID)
        await yard.run(3_600)
        await yard.decide(taken, Verdict.RELEASE)
        await yard.run(600)
        assert len(yard.own.calls) == 1
        assert await yard.office.broken() == {}


async def test_what_is_on_record_before_the_task_leaves(stage: OpenStage, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_yard(stage) as yard:
        perform = CreateHostpayTask.perform

        async def looked_at(self: CreateHostpayTask, request: Any) -> Any:
            [effect] = await yard.effects()
            handed = await yard.office.s.owner.fetchval("select handed_over_at from payouts.swaps")
            yard.seen.append((effect["state"], effect["attempt"] > 0, handed is not None, list(yard.own.calls)))
            return await perform(self, request)

        monkeypatch.setattr(CreateHostpayTask, "perform", looked_at)
        await yard.office.order()
        await yard.run()
        assert yard.seen == [("intended", True, True, [])]


async def test_a_payout_that_a_person_stopped_is_not_handed_over(stage: OpenStage) -> None:
    async with open_yard(stage) as yard:
        taken = await yard.office.order()
        await yard.office.s.admin.pause("payouts-hostpay-external", "to stop it")
        await yard.run()
        await yard.decide(taken, Verdict.HOLD)
        await yard.office.s.admin.resume("payouts-hostpay-external")
        await yard.run()
        assert yard.own.calls == []
        [effect, *_] = [*await yard.effects(), None]
        assert effect is None


async def test_an_exchange_that_is_never_paid_goes_to_a_person_and_then_to_another_exchange(stage: OpenStage) -> None:
    async with open_yard(stage) as yard:
        taken = await yard.office.order()
        await yard.run()
        await yard.office.s.clock.advance(3 * 86_400)
        await yard.run()
        payout = await yard.office.payout(taken)
        assert (payout.state, payout.hold) == (State.REVIEW, Hold.EXCHANGE_FAILED)
        assert "handed over to your GCHostPay" in (payout.reason or "")
        await yard.decide(taken, Verdict.RELEASE)
        await yard.run(3_600)
        assert len(yard.own.calls) == 1, "to let it go on is no reason to pay another exchange"
        assert await yard.office.state(taken) is State.REVIEW
        await yard.decide(taken, Verdict.UNPAID)
        await yard.run(3_600)
        assert (await yard.office.payout(taken)).held_from is State.PRICED
        await yard.decide(taken, Verdict.RELEASE)
        await yard.run(3_600)
        assert len({call["cn_api_id"] for call in yard.own.calls}) == len(yard.own.calls) == 2
        assert await yard.office.broken() == {}


async def test_a_task_that_gchostpay_refused_is_deleted_before_another_exchange_is_paid(stage: OpenStage) -> None:
    """It would be delivered again for as long as it is there, and pay the exchange that was given up."""
    async with open_yard(stage) as yard:
        yard.own.answers = [503] * 1_000
        taken = await yard.office.order()
        await yard.run()
        await yard.run(5 * 3_600)
        given_up = {call["cn_api_id"] for call in yard.own.calls}
        assert await yard.office.state(taken) is State.REVIEW
        yard.own.answers, refused = [], len(yard.own.calls)
        yard.service.away = True
        await yard.decide(taken, Verdict.UNPAID)
        await yard.office.run(600)
        [swap] = await yard.office.swaps(taken)
        assert swap.state is SwapState.CREATED, "it is not ended while its task may be there"
        yard.service.away = False
        await yard.run(3_600)
        assert (await yard.office.payout(taken)).held_from is State.PRICED
        await yard.decide(taken, Verdict.RELEASE)
        await yard.run(3_600)
        [call] = yard.own.calls[refused:]
        assert call["cn_api_id"] not in given_up
        assert await yard.office.broken() == {}


async def test_people_cannot_say_unpaid_while_the_task_may_still_be_made(stage: OpenStage) -> None:
    async with open_yard(stage) as yard:
        yard.service.said = [("UNAVAILABLE", False)] * 1_000
        taken = await yard.office.order()
        await yard.office.run(600)
        [effect] = await yard.effects()
        assert effect["state"] in ("intended", "unknown")
        await yard.decide(taken, Verdict.HOLD)
        with pytest.raises(Invalid, match="whether GCHostPay has a task"):
            await yard.decide(taken, Verdict.UNPAID)


async def test_people_cannot_say_unpaid_of_what_the_exchange_has_seen(stage: OpenStage) -> None:
    async with open_yard(stage) as yard:
        taken = await yard.office.order()
        await yard.run()
        await yard.decide(taken, Verdict.HOLD)
        yard.pay()
        await yard.decide(taken, Verdict.UNPAID)
        await yard.run(4 * 3_600)
        assert await yard.office.state(taken) is State.FINISHED
        assert len(yard.own.calls) == 1
        assert await yard.office.broken() == {}


async def test_ether_that_needs_no_exchange_is_refused_and_held_if_it_was_taken_before(stage: OpenStage) -> None:
    async with open_yard(stage) as yard:
        with pytest.raises(WebhookRefused, match="PAYOUTS_HOSTPAY=external"):
            await yard.office.order(payout_currency="eth", payout_network="eth", wallet_address=CLIENT)
        yard.office.config = TERMS
        taken = await yard.office.order(payout_currency="eth", payout_network="eth", wallet_address=CLIENT)
        await yard.run()
        payout = await yard.office.payout(taken)
        assert (payout.state, payout.hold) == (State.HELD, Hold.REFUSED)
        assert await yard.office.broken() == {}


async def test_our_own_hostpay_never_pays_what_was_handed_over(stage: OpenStage) -> None:
    async with open_yard(stage) as yard:
        taken = await yard.office.order()
        await yard.run()
        [swap] = await yard.office.swaps(taken)
        assert (swap.paid_by, swap.state) == ("external", SwapState.CREATED)
        yard.pay()
    async with open_office(stage, roles=("orchestrator", "hostpay")) as office:
        told = plain(hostpay_fields(swap))
        await office.s.feed.put([Message(queue=HOSTPAY.queue, payload=told, correlation_id=taken.payout.id)])
        await office.drain()
        assert await office.s.owner.fetchval("select count(*) from payouts.split_payout_hostpay") == 0
        reason = await office.s.owner.fetchval(
            "select last_error from payonce.job_logs where queue = $1 and status = 'failed'", HOSTPAY.queue
        )
        assert "paid by your own GCHostPay" in reason
