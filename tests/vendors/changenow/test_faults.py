"""Each fault between the client and ChangeNOW has the outcome that the README states, for questions and for create."""

from functools import partial

import pytest

from payonce.kit.outcomes import NotSent, Retry, Unknown
from payonce.testing.faults import Fault
from tests.vendors.changenow.at import QUESTIONS, OpenChangeNow, at_changenow, order, questions
from tests.vendors.outcomes import DONE, outcomes, seen

# An exchange too many moves nothing: nobody pays the address of one that was not answered.
CREATED = outcomes(DONE, of_a_duplicate=2)
"""What the client says, and how many exchanges there are by then."""
ANSWERED = {Fault.SLOW, Fault.DUPLICATE}
UNNOTICED = {"range", "min_amount", "currencies", "validate_address"}
"""Of these a wrong figure cannot be told from a true one: none of them decides what is paid."""


@pytest.mark.parametrize("fault", Fault)
async def test_create_is_unknown_whenever_it_may_have_happened(
    open_changenow: OpenChangeNow, over_sockets: bool, fault: Fault
) -> None:
    wanted, made = CREATED[fault]
    async with open_changenow(fault) as at:
        try:
            await at.client.create(order())
            said: type[Exception] | str = DONE
        except (NotSent, Unknown, Retry) as outcome:
            said = type(outcome)
        assert (said, len(at.simulator.books.entries)) == (seen(wanted, fault, over_sockets), made)
        assert at.faulty.enacted == {fault: 1}
        await at.faulty.deliver()
        assert not at.simulator.books.deposits
        assert not at.simulator.books.payouts


@pytest.mark.parametrize("name", QUESTIONS)
@pytest.mark.parametrize("fault", Fault)
async def test_a_question_without_a_usable_answer_is_asked_again(fault: Fault, name: str) -> None:
    await check_question(partial(at_changenow, False), fault, name)


@pytest.mark.parametrize("fault", Fault)
async def test_over_a_socket_likewise(fault: Fault) -> None:
    await check_question(partial(at_changenow, True), fault, "exchange")


async def check_question(open_changenow: OpenChangeNow, fault: Fault, name: str) -> None:
    async with open_changenow(None, fault) as at:
        swap = await at.client.create(order())
        ask = questions(swap.id, at.clock)[name]
        if fault in ANSWERED or (fault is Fault.WRONG_ANSWER and name in UNNOTICED):
            await ask(at.client)
        else:
            with pytest.raises(Retry) as caught:
                await ask(at.client)
            assert caught.value.after_s == (7.0 if fault is Fault.TOO_MANY_REQUESTS else None)
        assert at.faulty.enacted == {fault: 1}
        await at.faulty.deliver()
        answer = await ask(at.client)
        assert answer is not None
        assert len(at.simulator.books.entries) == 1
