"""Each fault between the client and the gateway has the outcome that the README states, for questions and orders."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

import pytest

from payonce.kit.http import HttpClient
from payonce.kit.outcomes import NotSent, Refused, Retry, Unknown
from payonce.testing.faults import Fault, FaultPlan
from payonce.testing.faulty import Faulty
from payonce.vendors.gateway.client import GatewayClient
from payonce.vendors.gateway.port import Declined
from payonce.vendors.gateway.simulator import GatewaySimulator
from tests.vendors.gateway.at import (
    DECLINES,
    KEY,
    PAYS,
    QUESTIONS,
    OpenGateway,
    at_gateway,
    order,
    questions,
    refund_of,
)
from tests.vendors.outcomes import DONE, outcomes, seen

ORDERED = outcomes(DONE, of_a_duplicate=1)
"""What the client says, and how many charges or refunds there are by then."""
ANSWERED = {Fault.SLOW, Fault.DUPLICATE}
UNNOTICED = {"statement"}
"""Of this a wrong figure cannot be told from a true one: reconciliation holds it against our own books."""
TRIES = 30
ORDERS = 100


@pytest.mark.parametrize("fault", Fault)
async def test_a_charge_in_doubt_is_unknown_and_the_same_order_again_charges_once(
    open_gateway: OpenGateway, over_sockets: bool, fault: Fault
) -> None:
    wanted, made = ORDERED[fault]
    async with open_gateway(fault) as at:
        try:
            await at.client.charge(order(at.token))
            said: type[Exception] | str = DONE
        except (NotSent, Refused, Unknown) as outcome:
            said = type(outcome)
        assert (said, len(at.simulator.books.charges)) == (seen(wanted, fault, over_sockets), made)
        assert at.faulty.enacted == {fault: 1}
        charge = await at.client.charge(order(at.token))
        await at.faulty.deliver()
        assert [*at.simulator.books.charges] == [charge.id]
        assert at.simulator.books.captured_total("AED").minor == charge.captured == 2_900


@pytest.mark.parametrize("fault", Fault)
async def test_a_refund_in_doubt_is_unknown_and_the_same_order_again_refunds_once(
    open_gateway: OpenGateway, over_sockets: bool, fault: Fault
) -> None:
    wanted, made = ORDERED[fault]
    async with open_gateway(None, fault) as at:
        charge = await at.client.charge(order(at.token))
        try:
            await at.client.refund(refund_of(charge.id))
            said: type[Exception] | str = DONE
        except (NotSent, Refused, Unknown) as outcome:
            said = type(outcome)
        assert (said, len(at.simulator.books.refunds)) == (seen(wanted, fault, over_sockets), made)
        refund = await at.client.refund(refund_of(charge.id))
        await at.faulty.deliver()
        assert [*at.simulator.books.refunds] == [refund.id]
        assert at.simulator.books.refunded_total("AED").minor == refund.amount == 1_000


@pytest.mark.parametrize("fault", Fault)
async def test_a_declined_charge_in_doubt_stays_declined_when_the_card_could_pay_by_then(fault: Fault) -> None:
    async with at_gateway(False, fault) as at:
        token = at.simulator.tokenise(DECLINES["insufficient_funds"])
        wanted, made = ORDERED[fault]
        with pytest.raises(Declined if wanted == DONE else wanted):  # type: ignore[arg-type]
            await at.client.charge(order(token))
        assert len(at.simulator.books.charges) == made
        if made:
            at.simulator.script(token, "succeeds", "succeeds")
        with pytest.raises(Declined, match="insufficient_funds"):
            await at.client.charge(order(token))
        await at.faulty.deliver()
        assert len(at.simulator.books.charges) == 1
        assert at.simulator.books.captured_total("AED").minor == 0


@pytest.mark.parametrize("name", QUESTIONS)
@pytest.mark.parametrize("fault", Fault)
async def test_a_question_without_a_usable_answer_is_asked_again(fault: Fault, name: str) -> None:
    await check_question(partial(at_gateway, False), fault, name)


@pytest.mark.parametrize("fault", Fault)
async def test_over_a_socket_likewise(fault: Fault) -> None:
    await check_question(partial(at_gateway, True), fault, "find_charge")


async def check_question(open_gateway: OpenGateway, fault: Fault, name: str) -> None:
    async with open_gateway(None, None, fault) as at:
        charge = await at.client.charge(order(at.token))
        await at.client.refund(refund_of(charge.id))
        ask = questions(at.token)[name]
        if fault in ANSWERED or (fault is Fault.WRONG_ANSWER and name in UNNOTICED):
            await ask(at.client)
        else:
            with pytest.raises(Retry) as caught:
                await ask(at.client)
            assert caught.value.after_s == (7.0 if fault is Fault.TOO_MANY_REQUESTS else None)
        assert at.faulty.enacted == {fault: 1}
        assert await ask(at.client) is not None


async def test_on_a_bad_day_who_sends_the_same_order_again_charges_and_refunds_each_once() -> None:
    simulator = GatewaySimulator(seed=3, limit_per_s=None)
    faulty = Faulty(simulator, FaultPlan(11, 0.3), slow_s=0.0, retry_after_s=0)
    token, books = simulator.tokenise(PAYS), simulator.books
    async with HttpClient("gateway", "https://gateway.example", transport=faulty) as http:
        client = GatewayClient(http, KEY)
        for number in range(ORDERS):
            charge = await persistently(partial(client.charge, order(token, f"inv-{number}:1", 100 + number)))
            await persistently(partial(client.refund, refund_of(charge.id, f"ref-{number}:1", 1 + number)))
        await faulty.close()
    assert sum(faulty.enacted.values()) > ORDERS / 2
    assert set(books.captures_per_invoice().values()) == {1}
    assert (len(books.charges), len(books.refunds)) == (ORDERS, ORDERS)
    assert books.captured_total("AED").minor == sum(range(100, 100 + ORDERS))
    assert books.refunded_total("AED").minor == sum(range(1, 1 + ORDERS))


Made = TypeVar("Made")


async def persistently(act: Callable[[], Awaitable[Made]]) -> Made:
    for _ in range(TRIES):
        try:
            return await act()
        except (NotSent, Unknown):
            continue
    raise AssertionError(f"not answered within {TRIES} tries")
