"""The exchange's list against our record, in both directions; and the table that accountants take away."""

import csv
from datetime import timedelta
from decimal import Decimal

import pytest

from payonce.engine.audit.references import check_references
from payonce.engine.messages.model import Message
from payonce.engine.reconcile import Run, reconcile, unmatched
from payonce.services.payouts import REFERENCES, statements
from payonce.services.payouts.api.statement import COLUMNS, statement
from payonce.services.payouts.model import State
from payonce.services.payouts.policies import KEEPING
from payonce.services.payouts.reconciliation import COMPARE, COMPARED_AFTER_S
from payonce.testing import OpenStage
from payonce.testing.faults import Fault, Script
from payonce.vendors.changenow.books import AT_ONCE
from tests.services.payouts.payouts_stage import Office, eth, open_office


async def reconciled(office: Office) -> Run:
    [source] = statements([office.client])
    office.clock.now = await office.s.clock.advance(3_600.0)
    since = office.clock.now - timedelta(hours=3)
    return await reconcile(office.s.database, office.s.feed, source, by="ann", holder="test", since=since)


async def test_what_we_paid_is_on_the_list_and_explained(stage: OpenStage) -> None:
    async with open_office(stage, pace=AT_ONCE) as office:
        taken = await office.order()
        await office.run()
        [swap] = await office.swaps(taken)
        await office.pay(swap)
        run = await reconciled(office)
        assert (run.lines, run.unmatched, run.missing, run.found) == (1, 0, 0, 0)
        assert await check_references(REFERENCES, office.s.read) == []


async def test_what_nobody_funded_is_no_line(stage: OpenStage) -> None:
    async with open_office(stage, Script([None, Fault.ANSWER_LOST])) as office:
        await office.order()
        await office.run()
        assert len(office.changenow.books.entries) == 2
        run = await reconciled(office)
        assert (run.lines, run.unmatched) == (0, 0)


async def test_money_in_an_exchange_that_was_given_up_is_in_suspense(stage: OpenStage) -> None:
    async with open_office(stage, Script([None, Fault.ANSWER_LOST]), pace=AT_ONCE) as office:
        taken = await office.order()
        await office.run()
        [swap] = await office.swaps(taken)
        [lost] = [each for each in office.changenow.books.entries.values() if each.id != swap.cn_api_id]
        office.changenow.deposit(lost.payin_address, "eth", Decimal("0.0388"), "0xdoubled")
        run = await reconciled(office)
        assert run.unmatched == 1
        [item] = await unmatched(office.s.read)
        assert item.amount == eth("0.0388")


async def test_an_exchange_that_is_not_ours_is_in_suspense(stage: OpenStage) -> None:
    async with open_office(stage, pace=AT_ONCE) as office:
        taken = await office.order()
        await office.run()
        [swap] = await office.swaps(taken)
        await office.pay(swap)
        await office.s.owner.execute("update payonce.effects set key = 'x', vendor_ref = 'y'")
        run = await reconciled(office)
        assert run.unmatched == 1


async def compare(office: Office) -> list[str]:
    office.clock.now = await office.s.clock.advance(COMPARED_AFTER_S + 60)
    await office.s.feed.put([Message(queue=KEEPING.queue, payload={}, action=COMPARE)])
    await office.drain()
    return await office.loud()


async def test_what_the_exchange_shows_as_we_do_is_not_spoken_of(stage: OpenStage) -> None:
    async with open_office(stage, pace=AT_ONCE) as office:
        taken = await office.order()
        await office.run()
        [swap] = await office.swaps(taken)
        await office.pay(swap)
        await office.finish(swap)
        assert await compare(office) == []


@pytest.mark.parametrize(
    ("shown", "why"), [("0x" + "CD" * 20, []), ("0x" + "34" * 20, ["another address than the client's"])]
)
async def test_an_address_is_another_one_by_its_bytes_alone(stage: OpenStage, shown: str, why: list[str]) -> None:
    async with open_office(stage, pace=AT_ONCE) as office:
        taken = await office.order(wallet_address="0x" + "cd" * 20, payout_currency="usdc", payout_network="eth")
        await office.run()
        [swap] = await office.swaps(taken)
        await office.pay(swap)
        await office.finish(swap)
        entries = office.changenow.books.entries
        entries[swap.cn_api_id or ""].payout_address = shown
        assert [text[-len(said) :] for text, said in zip(await compare(office), why, strict=True)] == why


@pytest.mark.parametrize(
    ("got", "why"),
    [
        ("0.0388", []),
        ("0.038800000000000004", []),
        ("0.0194", ["received 0.0194 ETH"]),
        ("0.03880001", ["received 0.03880001 ETH"]),
    ],
)
async def test_an_exchange_that_got_another_amount_is_told_loudly(stage: OpenStage, got: str, why: list[str]) -> None:
    """A GCHostPay that is not ours may pay less, or more; the exchange swaps what it gets."""
    async with open_office(stage, pace=AT_ONCE) as office:
        taken = await office.order()
        await office.run()
        [swap] = await office.swaps(taken)
        await office.pay(swap)
        await office.finish(swap)
        office.changenow.books.entries[swap.cn_api_id or ""].amount_from = Decimal(got)
        told = await compare(office)
        assert len(told) == len(why)
        assert all(said in text for said, text in zip(why, told, strict=True))


async def test_what_we_paid_and_the_exchange_does_not_show_as_funded_is_told_loudly(stage: OpenStage) -> None:
    async with open_office(stage) as office:
        taken = await office.order()
        await office.run()
        [swap] = await office.swaps(taken)
        await office.pay(swap)
        del office.changenow.books.entries[swap.cn_api_id or ""]
        [told] = await compare(office)
        assert "does not list it" in told


async def test_no_cell_of_the_table_is_a_formula(stage: OpenStage) -> None:
    async with open_office(stage) as office:
        await office.order(payment_id='=HYPERLINK("https://evil.example")', closed_channel_id="@SUM")
        await office.s.owner.execute("update payouts.payouts set wallet_address = '+1', reason = '-A1'")
        await office.order(payment_id="-1+2")
        now = await office.s.clock.now()
        text = "".join([part async for part in statement(office.s.read, now - timedelta(days=1), now + timedelta(1))])
        one, two = [dict(zip(COLUMNS, row, strict=True)) for row in list(csv.reader(text.splitlines()))[1:]]
        assert one["payment_id"] == '\'=HYPERLINK("https://evil.example")'
        assert (one["closed_channel_id"], one["wallet_address"], one["reason"]) == ("'@SUM", "'+1", "'-A1")
        assert (two["payment_id"], two["closed_channel_id"]) == ("'-1+2", "-1003296084379")


async def test_the_table_has_a_row_for_each_payout_with_exact_amounts(stage: OpenStage) -> None:
    async with open_office(stage) as office:
        one = await office.order()
        await office.order(payment_id="pay-2", subscription_price="2.00")
        await office.run()
        now = await office.s.clock.now()
        text = "".join([part async for part in statement(office.s.read, now - timedelta(days=1), now + timedelta(1))])
        header, *rows = list(csv.reader(text.splitlines()))
        assert tuple(header) == COLUMNS
        found = {row[3]: dict(zip(COLUMNS, row, strict=True)) for row in rows}
        assert found["pay-1"]["price_usdt"] == "100.000000"
        assert found["pay-1"]["value_eth"] == "0.038800000000000000"
        assert found["pay-1"]["exchanges"] == (await office.swaps(one))[0].cn_api_id
        assert found["pay-1"]["received"] == "0.001512"
        assert found["pay-2"]["state"] == State.ACCUMULATING
        nobody = [part async for part in statement(office.s.read, now + timedelta(1), now + timedelta(2))]
        assert "".join(nobody).count("\n") == 1
