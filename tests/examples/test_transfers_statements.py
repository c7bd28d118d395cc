"""The banks' statements compared with our effects: after faults nothing is open, and foreign bookings are in
suspense."""

from datetime import datetime

from payonce.engine.audit.references import check_references
from payonce.engine.reconcile import Run, compare_balances, reconcile, unmatched
from payonce.examples.transfers import REFERENCES
from payonce.kit.money import Amount
from payonce.testing import OpenStage
from payonce.testing.faults import Fault, FaultPlan, Odds
from tests.examples.transfers_stage import EUR, Office, open_office, order, sound

COUNT = 40


def faults(seed: int) -> FaultPlan:
    """Of what moves money; the questions of a reconciliation are answered."""
    quiet = Odds(share=0)
    return FaultPlan(
        seed,
        0.4,
        Odds(0.4).without(Fault.DUPLICATE).weights,
        routes=dict.fromkeys(("GET /v1/statement", "GET /v1/accounts", "GET /statement", "GET /balance"), quiet),
    )


async def move_on(office: Office, seconds: float) -> datetime:
    office.clock.now = await office.s.clock.advance(seconds)
    return office.clock.now


async def reconciled(office: Office, since: datetime) -> list[Run]:
    await move_on(office, 60)
    return [
        await reconcile(office.s.database, office.s.feed, source, by="ann", holder="test", since=since)
        for source in office.statements
    ]


async def books_are_equal(office: Office) -> None:
    for source in office.statements:
        books = await compare_balances(office.s.read, source)
        assert books
        assert all(each.equal for each in books), books


async def test_after_faults_every_line_is_an_effect_of_ours(stage: OpenStage) -> None:
    async with open_office(stage, faults(5), faults(6)) as office:
        since = await office.s.clock.now()
        await office.ask_for(*[order(number, target="shut" if number % 8 == 0 else "bob") for number in range(COUNT)])
        await office.run()
        sound(await office.verdict())
        north, south = await reconciled(office, since)
        refunds = COUNT // 8
        assert (north.lines, south.lines) == (COUNT + refunds, COUNT - refunds)
        for run in (north, south):
            assert (run.adopted, run.found, run.unmatched, run.missing) == (0, 0, 0, 0)
        await books_are_equal(office)


async def test_a_payment_that_nobody_ordered_is_in_suspense(stage: OpenStage) -> None:
    async with open_office(stage) as office:
        since = await office.s.clock.now()
        await office.ask_for(order())
        await office.run()
        office.southbank.books.book("house", "bob", Amount(777, EUR), "by-telephone", office.clock.now)
        _, south = await reconciled(office, since)
        assert south.unmatched == 1
        [item] = await unmatched(office.s.read)
        assert item.amount == Amount(-777, EUR)
        await books_are_equal(office)
        [finding] = await check_references(REFERENCES, office.s.read)
        assert "'unmatched'" in finding.text, "which the engine itself declares"


async def test_a_withdrawal_that_a_restore_forgot_is_adopted_and_its_transfer_finishes(stage: OpenStage) -> None:
    async with open_office(stage) as office:
        since = await office.s.clock.now()
        await office.ask_for(order())
        office.northbank.books.book("ann", "house", Amount(1250, EUR), "t-1/withdraw:1", office.clock.now)
        north, _ = await reconciled(office, since)
        assert (north.adopted, north.unmatched) == (1, 0)
        await office.run()
        assert await office.state() == "paid"
        sound(await office.verdict())
