"""Northbank's client against its simulator: each answer and each fault has the outcome that the README states."""

from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

from payonce.kit.http import HttpClient
from payonce.kit.money import Amount
from payonce.kit.outcomes import NotSent, Refused, Unavailable, Unknown
from payonce.testing.faults import Fault
from payonce.vendors.northbank.client import NorthbankClient
from payonce.vendors.northbank.port import KEYS_KEPT_S
from payonce.vendors.northbank.simulator import NorthbankSimulator
from tests.vendors.banks import EUR, JPY, OpenNorthbank, euro, order_at_northbank
from tests.vendors.outcomes import DONE, outcomes, seen

OUTCOMES = outcomes(DONE, of_a_duplicate=1)
"""What the client says, and how often the bank has booked by then."""


@pytest.mark.parametrize("fault", Fault)
async def test_each_fault_has_its_outcome_and_the_same_order_again_happens_once(
    open_northbank: OpenNorthbank, over_sockets: bool, fault: Fault
) -> None:
    wanted, booked = OUTCOMES[fault]
    async with open_northbank(fault) as at:
        try:
            await at.client.transfer(order_at_northbank())
            said: type[Exception] | str = DONE
        except (NotSent, Refused, Unknown) as outcome:
            said = type(outcome)
        assert (said, len(at.bank.books.under("k-1"))) == (seen(wanted, fault, over_sockets), booked)
        assert at.faulty.enacted == {fault: 1}
        receipt = await at.client.transfer(order_at_northbank())
        await at.faulty.deliver()
        [movement] = at.bank.books.under("k-1")
        assert receipt.id == f"nb-{movement.number}"
        assert at.bank.books.balance("ann", EUR) == euro("87.50")


@pytest.mark.parametrize(
    ("order", "code"),
    [
        (order_at_northbank(value="100.01"), "insufficient_funds"),
        (order_at_northbank(target="nobody"), "no_such_account"),
        (order_at_northbank(target="shut"), "account_closed"),
        (order_at_northbank(value="1.001"), "bad_amount"),
        (order_at_northbank(value="-1.00"), "bad_amount"),
        (order_at_northbank(value="0.00"), "bad_amount"),
        (order_at_northbank(value="much"), "bad_amount"),
    ],
)
async def test_a_definite_no_is_refused_and_moves_nothing(
    open_northbank: OpenNorthbank, order: object, code: str
) -> None:
    async with open_northbank() as at:
        at.bank.open_account("shut")
        at.bank.close_account("shut")
        with pytest.raises(Refused, match=f"^{code}: "):
            await at.client.transfer(order)  # type: ignore[arg-type]
        assert not at.bank.books.under("k-1")


async def test_a_refusal_whose_body_is_cut_is_no_definite_no(open_northbank: OpenNorthbank) -> None:
    async with open_northbank(Fault.MALFORMED_ANSWER) as at:
        with pytest.raises(Unknown):
            await at.client.transfer(order_at_northbank(value="100.01"))


async def test_a_refused_order_stays_refused_when_money_has_come_and_a_late_copy_arrives(
    open_northbank: OpenNorthbank,
) -> None:
    async with open_northbank(Fault.LATE) as at:
        with pytest.raises(Unknown):
            await at.client.transfer(order_at_northbank(value="150.00"))
        with pytest.raises(Refused):
            await at.client.transfer(order_at_northbank(value="150.00"))
        at.bank.open_account("rich", euro("500.00"))
        await at.client.transfer(msgspec.structs.replace(order_at_northbank("k-2", "200.00", "ann"), source="rich"))
        assert await at.faulty.deliver() == 1
        assert not at.bank.books.under("k-1")


async def test_a_key_with_another_order_is_unknown_and_moves_nothing(open_northbank: OpenNorthbank) -> None:
    async with open_northbank() as at:
        await at.client.transfer(order_at_northbank())
        with pytest.raises(Unknown, match="key_reuse"):
            await at.client.transfer(order_at_northbank(value="13.00"))
        assert at.bank.books.balance("house", EUR) == euro("12.50")


async def test_the_bank_forgets_a_key_after_a_day_and_still_finds_the_transfer(open_northbank: OpenNorthbank) -> None:
    async with open_northbank() as at:
        first = await at.client.transfer(order_at_northbank())
        at.clock.advance(KEYS_KEPT_S - 1)
        assert await at.client.transfer(order_at_northbank()) == first
        at.clock.advance(2)
        assert await at.client.find_transfer("k-1") == first
        again = await at.client.transfer(order_at_northbank())
        assert again.id != first.id
        with pytest.raises(Unknown, match="other transfers"):
            await at.client.find_transfer("k-1")


@pytest.mark.parametrize("fault", [Fault.WRONG_ANSWER, Fault.MALFORMED_ANSWER, Fault.ERROR_BEFORE])
async def test_a_question_that_is_answered_badly_proves_nothing(open_northbank: OpenNorthbank, fault: Fault) -> None:
    async with open_northbank(None, fault) as at:
        await at.client.transfer(order_at_northbank())
        with pytest.raises(Unknown):
            await at.client.find_transfer("k-1")
        assert await at.client.find_transfer("k-1") is not None
        assert await at.client.find_transfer("k-2") is None


async def test_balances_and_statement_pages_add_up_to_the_books(open_northbank: OpenNorthbank) -> None:
    async with open_northbank() as at:
        opened = at.clock.now
        at.clock.advance(60)
        for number in range(250):
            await at.client.transfer(order_at_northbank(f"k-{number}", "0.10"))
        begin, end = opened + timedelta(seconds=1), at.clock.now + timedelta(seconds=1)
        page = await at.client.statement("ann", begin, end)
        following = await at.client.statement("ann", begin, end, page.after)
        lines = [*page.lines, *following.lines]
        assert following.after is None
        assert len({line.id for line in lines}) == len(lines) == 250
        assert {line.key for line in lines} == {f"k-{number}" for number in range(250)}
        moved = Amount.total([line.amount for line in lines], EUR)
        assert euro("100.00") + moved == await at.client.balance("ann", EUR) == at.bank.books.balance("ann", EUR)
        assert await at.client.balance("ann", JPY) == Amount(5_000, JPY)
        assert not (await at.client.statement("ann", end, end + timedelta(days=1))).lines


async def test_the_books_and_the_keys_outlive_the_process(tmp_path: Path) -> None:
    journal = tmp_path / "northbank.journal"

    async def order_with(bank: NorthbankSimulator, key: str, value: str) -> str:
        async with HttpClient("bank", "https://bank.example", transport=bank) as http:
            return (await NorthbankClient(http).transfer(order_at_northbank(key, value))).id

    bank = NorthbankSimulator(journal)
    bank.open_account("house")
    bank.open_account("ann", euro("100.00"))
    first = await order_with(bank, "k-1", "12.50")
    with pytest.raises(Refused):
        await order_with(bank, "k-2", "500.00")
    with pytest.raises(Unavailable, match="another process"):
        NorthbankSimulator(journal)
    bank.close()
    with journal.open("ab") as torn:
        torn.write(b'{"event":"answered","key":"k-3"')

    again = NorthbankSimulator(journal)
    again.open_account("ann", euro("100.00"))
    assert again.books.balance("ann", EUR) == euro("87.50")
    assert await order_with(again, "k-1", "12.50") == first
    with pytest.raises(Refused):
        await order_with(again, "k-2", "500.00")
    assert await order_with(again, "k-3", "1.00") != first
    again.close()
    once_more = NorthbankSimulator(journal)
    assert once_more.books.balance("ann", EUR) == euro("86.50")
    once_more.close()
