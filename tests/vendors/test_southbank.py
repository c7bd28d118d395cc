"""Southbank's client against its simulator: each answer and each fault has the outcome that the README states."""

from datetime import timedelta
from pathlib import Path

import pytest

from payonce.kit.http import HttpClient
from payonce.kit.money import Amount
from payonce.kit.outcomes import NotSent, Refused, Unknown
from payonce.testing.faults import Fault
from payonce.vendors.southbank.client import SouthbankClient
from payonce.vendors.southbank.simulator import SouthbankSimulator
from tests.vendors.banks import EUR, JPY, LAG_S, OpenSouthbank, euro, order_at_southbank
from tests.vendors.outcomes import DONE, outcomes, seen

# The window that remains with this bank: whoever repeats a request on the way pays twice.
OUTCOMES = outcomes(DONE, of_a_duplicate=2)
"""What the client says, and how often the bank has booked by then."""


@pytest.mark.parametrize("fault", Fault)
async def test_each_fault_has_its_outcome_and_is_found_or_voided(
    open_southbank: OpenSouthbank, over_sockets: bool, fault: Fault
) -> None:
    wanted, booked = OUTCOMES[fault]
    order = order_at_southbank()
    async with open_southbank(fault) as at:
        try:
            await at.client.pay(order)
            said: type[Exception] | str = DONE
        except (NotSent, Refused, Unknown) as outcome:
            said = type(outcome)
        assert (said, len(at.bank.books.under("r-1"))) == (seen(wanted, fault, over_sockets), booked)
        at.clock.advance(LAG_S)
        if booked == 1:
            found = await at.client.find_payment(order)
            assert found is not None
            assert found.payment_id == f"SB{at.bank.books.under('r-1')[0].number:08}"
        if booked == 0:
            assert await at.client.find_payment(order) is None
            await at.client.void("r-1")
            await at.faulty.deliver()
            assert not at.bank.books.under("r-1")


async def test_an_order_sent_twice_is_paid_twice_and_the_listing_is_not_believed(open_southbank: OpenSouthbank) -> None:
    async with open_southbank() as at:
        await at.client.pay(order_at_southbank())
        await at.client.pay(order_at_southbank())
        at.clock.advance(LAG_S)
        assert at.bank.books.balance("bob", EUR) == euro("25.00")
        with pytest.raises(Unknown, match="shows 2 payments"):
            await at.client.find_payment(order_at_southbank())


async def test_the_listing_shows_a_payment_only_after_the_lag(open_southbank: OpenSouthbank) -> None:
    async with open_southbank() as at:
        receipt = await at.client.pay(order_at_southbank())
        at.clock.advance(LAG_S - 1)
        assert await at.client.find_payment(order_at_southbank()) is None
        at.clock.advance(1)
        assert await at.client.find_payment(order_at_southbank()) == receipt


async def test_what_is_booked_cannot_be_voided_even_before_it_is_listed(open_southbank: OpenSouthbank) -> None:
    async with open_southbank() as at:
        await at.client.pay(order_at_southbank())
        assert await at.client.find_payment(order_at_southbank()) is None
        with pytest.raises(Unknown, match="BOOKED"):
            await at.client.void("r-1")


async def test_nothing_lands_under_a_voided_reference(open_southbank: OpenSouthbank) -> None:
    async with open_southbank(Fault.LATE) as at:
        with pytest.raises(Unknown):
            await at.client.pay(order_at_southbank())
        await at.client.void("r-1")
        await at.client.void("r-1")
        assert await at.faulty.deliver() == 1
        with pytest.raises(Unknown, match="CUST"):
            await at.client.pay(order_at_southbank())
        assert not at.bank.books.under("r-1")
        await at.client.pay(order_at_southbank("r-2"))


@pytest.mark.parametrize("fault", [*sorted(set(Fault) - {Fault.SLOW, Fault.DUPLICATE})])
async def test_a_fence_that_is_not_confirmed_does_not_stand(open_southbank: OpenSouthbank, fault: Fault) -> None:
    async with open_southbank(fault) as at:
        with pytest.raises((NotSent, Unknown)):
            await at.client.void("r-1")


@pytest.mark.parametrize(
    ("order", "reason"),
    [
        (order_at_southbank(value="100.01"), "AM04"),
        (order_at_southbank(creditor="nobody"), "AC01"),
        (order_at_southbank(creditor="shut"), "AC04"),
        (order_at_southbank(value="0.00"), "AM12"),
    ],
)
async def test_a_definite_no_is_refused_and_moves_nothing(
    open_southbank: OpenSouthbank, order: object, reason: str
) -> None:
    async with open_southbank() as at:
        at.bank.open_account("shut")
        at.bank.close_account("shut")
        with pytest.raises(Refused, match=f"^{reason}: "):
            await at.client.pay(order)  # type: ignore[arg-type]
        assert not at.bank.books.under("r-1")


async def test_a_refusal_whose_body_is_cut_is_no_definite_no(open_southbank: OpenSouthbank) -> None:
    async with open_southbank(Fault.MALFORMED_ANSWER) as at:
        with pytest.raises(Unknown):
            await at.client.pay(order_at_southbank(value="100.01"))


async def test_balances_and_statement_pages_add_up_to_the_books(open_southbank: OpenSouthbank) -> None:
    async with open_southbank() as at:
        begin = at.clock.now + timedelta(seconds=1)
        at.clock.advance(60)
        for number in range(130):
            await at.client.pay(order_at_southbank(f"r-{number}", "0.10"))
        end = at.clock.now + timedelta(seconds=1)
        assert not (await at.client.statement("house", begin, end)).lines
        at.clock.advance(LAG_S + 1)
        first = await at.client.statement("house", begin, end)
        second = await at.client.statement("house", begin, end, page=2)
        lines = [*first.lines, *second.lines]
        assert (first.pages, len(first.lines), len(lines)) == (2, 100, 130)
        assert {line.reference for line in lines} == {f"r-{number}" for number in range(130)}
        moved = Amount.total([line.amount for line in lines], EUR)
        assert euro("100.00") + moved == await at.client.balance("house", EUR) == at.bank.books.balance("house", EUR)
        assert await at.client.balance("house", JPY) == Amount(5_000, JPY)


async def test_the_books_and_the_voided_references_outlive_the_process(tmp_path: Path) -> None:
    journal = tmp_path / "southbank.journal"
    bank = SouthbankSimulator(journal)
    bank.open_account("house", euro("100.00"))
    bank.open_account("bob")
    async with HttpClient("bank", "https://bank.example", transport=bank) as http:
        await SouthbankClient(http).pay(order_at_southbank())
        await SouthbankClient(http).void("r-9")
    bank.close()
    again = SouthbankSimulator(journal)
    async with HttpClient("bank", "https://bank.example", transport=again) as http:
        with pytest.raises(Unknown, match="BOOKED"):
            await SouthbankClient(http).void("r-1")
        with pytest.raises(Unknown, match="CUST"):
            await SouthbankClient(http).pay(order_at_southbank("r-9"))
    assert again.books.balance("house", EUR) == euro("87.50")
    again.close()
