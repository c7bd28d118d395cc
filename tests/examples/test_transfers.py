"""Transfers end as the banks say, once, whatever the banks do, and our books are theirs."""

import pytest

from payonce.engine.ledger import Posting, Reference, moved
from payonce.engine.messages.model import Message
from payonce.examples.transfers import model, store
from payonce.examples.transfers.model import ENDED, TRANSITIONS, State
from payonce.examples.transfers.policies import PAY_IN, REFUND, REQUESTS, WITHDRAW
from payonce.kit.money import Amount
from payonce.kit.outcomes import Retry
from payonce.testing import OpenStage
from payonce.testing.faults import Fault, FaultPlan, Odds, Script
from tests.examples.transfers_stage import EUR, open_office, order, sound

SURVIVED_BY_SOUTHBANK = sorted(set(Fault) - {Fault.DUPLICATE})


async def test_a_transfer_is_withdrawn_and_paid_in(stage: OpenStage) -> None:
    async with open_office(stage) as office:
        await office.ask_for(order())
        await office.run()
        assert await office.state() is State.PAID
        assert office.southbank.books.balance("bob", EUR) == Amount(1_250, EUR)
        assert not await office.in_transit()
        sound(await office.verdict())


@pytest.mark.parametrize("queue", [WITHDRAW.queue, PAY_IN.queue, REFUND.queue])
async def test_a_message_about_no_transfer_is_parked(stage: OpenStage, queue: str) -> None:
    async with open_office(stage) as office:
        await office.s.feed.put([Message(queue=queue, payload={}, correlation_id="nobody")])
        await office.run()
        [left] = await office.s.owner.fetch("select state, last_error from payonce.messages")
        assert (left["state"], left["last_error"]) == ("parked", "there is no transfer 'nobody'")


async def test_what_northbank_refuses_moves_nothing(stage: OpenStage) -> None:
    async with open_office(stage) as office:
        await office.ask_for(order(amount="999999.00"))
        await office.run()
        assert await office.state() is State.REFUSED
        assert not office.southbank.books.under("t-1/pay-in:1")
        sound(await office.verdict())


async def test_what_southbank_refuses_is_given_back(stage: OpenStage) -> None:
    async with open_office(stage) as office:
        await office.ask_for(order(target="shut"))
        await office.run()
        assert await office.state() is State.REFUNDED
        assert office.northbank.books.balance("ann", EUR) == Amount(10_000_000, EUR)
        sound(await office.verdict())


async def test_what_cannot_be_given_back_is_held_and_still_owed(stage: OpenStage) -> None:
    async with open_office(stage, Script([None, Fault.ERROR_BEFORE])) as office:
        await office.ask_for(order(target="shut"))
        await office.drain()
        assert await office.state() is State.REFUNDING
        office.northbank.close_account("ann")
        await office.run()
        assert await office.state() is State.HELD
        assert await office.in_transit() == Amount(-1_250, EUR)
        sound(await office.verdict())


@pytest.mark.parametrize("fault", Fault)
async def test_every_fault_in_the_withdrawal_is_survived(stage: OpenStage, fault: Fault) -> None:
    async with open_office(stage, Script([fault])) as office:
        await office.ask_for(order())
        await office.run()
        assert await office.state() is State.PAID
        sound(await office.verdict())


@pytest.mark.parametrize("fault", SURVIVED_BY_SOUTHBANK)
async def test_every_fault_in_the_payment_is_survived(stage: OpenStage, fault: Fault) -> None:
    async with open_office(stage, None, Script([fault])) as office:
        await office.ask_for(order())
        await office.run()
        assert await office.state() is State.PAID
        sound(await office.verdict())


@pytest.mark.parametrize("fault", Fault)
async def test_every_fault_in_the_refund_is_survived(stage: OpenStage, fault: Fault) -> None:
    async with open_office(stage, Script([None, fault])) as office:
        await office.ask_for(order(target="shut"))
        await office.run()
        assert await office.state() is State.REFUNDED
        sound(await office.verdict())


@pytest.mark.parametrize("fault", SURVIVED_BY_SOUTHBANK)
@pytest.mark.parametrize("before", [[Fault.ANSWER_LOST], [Fault.ERROR_BEFORE, None]], ids=["question", "fence"])
async def test_every_fault_in_the_question_and_in_the_fence_is_survived(
    stage: OpenStage, before: list[Fault | None], fault: Fault
) -> None:
    async with open_office(stage, None, Script([*before, fault, fault, fault])) as office:
        await office.ask_for(order())
        await office.run()
        assert await office.state() is State.PAID
        assert office.doors[1].enacted[fault] >= 2
        sound(await office.verdict())


async def test_a_payment_that_lands_late_is_found_or_voided_and_never_doubled(stage: OpenStage) -> None:
    async with open_office(stage, None, Script([Fault.LATE, Fault.LATE])) as office:
        await office.ask_for(order())
        await office.run()
        assert await office.state() is State.PAID
        assert office.doors[1].enacted == {Fault.LATE: 2}
        sound(await office.verdict())


async def test_a_late_payment_under_a_voided_reference_never_lands(stage: OpenStage) -> None:
    async with open_office(stage, None, Script([Fault.LATE])) as office:
        held = office.doors[1].held
        kept_back = []
        await office.ask_for(order())
        await office.drain()
        kept_back += held
        held.clear()
        await office.run()
        assert await office.state() is State.PAID
        held += kept_back
        sound(await office.verdict())
        assert office.southbank.voided == {"t-1/pay-in:1"}
        assert not office.southbank.books.under("t-1/pay-in:1")


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.full) for seed in (1, 2))])
async def test_many_transfers_under_many_faults_are_accounted_for_to_the_last_unit(stage: OpenStage, seed: int) -> None:
    spared = Odds(0.5).without(Fault.DUPLICATE)
    plan = FaultPlan(seed, 0.5, routes={"POST /payments": spared})
    async with open_office(stage, plan, plan) as office:
        orders = [
            order(number, amount=f"{number}.{number:02}", target="shut" if number % 4 == 0 else "bob")
            for number in range(1, 25)
        ]
        await office.ask_for(*orders)
        await office.run()
        verdict = await office.verdict()
        sound(verdict)
        assert (verdict.finished, verdict.compensated) == (18, 6)
        assert sum(sum(door.enacted.values()) for door in office.doors) > 24


async def test_the_same_order_again_is_the_same_transfer_and_another_one_is_refused(stage: OpenStage) -> None:
    async with open_office(stage) as office:
        asked = {"id": "t-1", "source": "ann", "target": "bob", "amount": "12.50", "currency": "EUR"}
        bad = [
            {**asked, "amount": "13.00"},
            {**asked, "id": "t-2", "amount": "1.001"},
            {"id": "t-3"},
            {**asked, "id": "t-4", "amount": "-1.00"},
            {**asked, "id": ""},
        ]
        await office.s.feed.put([Message(queue=REQUESTS.queue, payload=each) for each in (asked, asked, *bad)])
        await office.run()
        office.orders.append(order())
        sound(await office.verdict())
        rows = await office.s.owner.fetch(
            "select last_error from payonce.job_logs where queue = $1 and status = 'parked'", REQUESTS.queue
        )
        assert len(rows) == len(bad)
        assert await office.s.owner.fetchval("select count(*) from transfers.transfers") == 1


async def test_a_transfer_that_has_moved_on_is_not_moved_by_a_stale_read(stage: OpenStage) -> None:
    async with open_office(stage, None, Script([Fault.ERROR_BEFORE])) as office:
        await office.ask_for(order())
        await office.drain()
        assert await office.state() is State.PAYING
        with pytest.raises(Retry, match="no longer withdrawn"):
            async with office.s.begin() as tx:
                await store.move(tx, "t-1", State.WITHDRAWN, State.PAYING)


async def test_a_loss_a_doubling_and_a_missing_posting_are_found(stage: OpenStage) -> None:
    async with open_office(stage) as office:
        await office.ask_for(order(1), order(2), order(3))
        await office.run()
        books = office.southbank.books
        [paid] = books.under("t-1/pay-in:1")
        books.book(paid.source, paid.target, paid.amount, paid.reference, paid.booked_at)
        [unpaid] = books.under("t-2/pay-in:1")
        books.movements.remove(unpaid)
        async with office.s.begin() as tx:
            lines = moved(Amount(7, EUR), model.IN_TRANSIT, model.AT_NORTHBANK)
            await tx.post(Posting("astray", Reference("transfer", "t-3"), lines))
        verdict = await office.verdict()
        assert (verdict.doubled, verdict.lost) == (["t-1"], ["t-2"])
        assert verdict.unexplained["EUR"] == Amount(1_257, EUR)
        assert [words.partition(":")[0] for words in verdict.broken] == [
            "the money we hold is owed to the transfers it belongs to",
            "each step that happened is in the books once",
        ]


async def test_effects_say_what_they_move(stage: OpenStage) -> None:
    async with open_office(stage) as office:
        await office.ask_for(order())
        await office.run()
        rows = await office.s.owner.fetch("select kind, amount_minor, asset, scope from payonce.effects order by kind")
        assert [tuple(row) for row in rows] == [
            ("northbank.withdraw", 1_250, "EUR", "transfer:t-1"),
            ("southbank.pay_in", 1_250, "EUR", "transfer:t-1"),
        ]


async def test_the_states_of_the_model_are_those_of_the_table(stage: OpenStage) -> None:
    async with open_office(stage) as office:
        rule: str = await office.s.owner.fetchval(
            """
            select pg_get_constraintdef(oid) from pg_constraint
            where conrelid = 'transfers.transfers'::regclass and conname = 'transfers_state_check'
            """
        )
        assert {state for state in State if f"'{state.value}'" in rule} == set(State) == set(TRANSITIONS)
        assert rule.count("::text,") + 1 >= len(State)
        assert {State.REFUSED, State.PAID, State.REFUNDED, State.HELD} == ENDED
