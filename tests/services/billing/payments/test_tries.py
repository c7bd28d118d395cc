"""Whoever tries many cards, or one card many times, is sent away before the gateway is asked."""

import asyncio

import pytest

from payonce.engine.operators.login_limits import WINDOW_S
from payonce.services.billing.api import callers
from payonce.testing import OpenStage
from tests.ablations import Ablations, cases, missed, patched
from tests.services.billing.payments.counter import open_counter
from tests.services.billing.payments.till import PAYS

METHODS = "/v1/payment-methods/"
MOST = 3


@pytest.fixture(autouse=True)
def _few_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callers, "ATTEMPTS_MAX", MOST)


async def test_a_customer_tries_so_many_cards_and_no_more(stage: OpenStage) -> None:
    async with open_counter(stage) as counter:
        tokens = [counter.till.gateway.tokenise(PAYS) for _ in range(MOST + 2)]
        customer = counter.as_customer()
        answers = await asyncio.gather(*(customer("POST", METHODS, {"token": token}) for token in tokens))
        assert sorted(answer.status for answer in answers) == [201] * MOST + [429] * 2
        [default] = [answer.json for answer in answers if answer.status == 201 and answer.json["is_default"]]
        for refused in (
            await customer("POST", f"{METHODS}{default['id']}/default"),
            await customer.pay(),
            *(answer for answer in answers if answer.status == 429),
        ):
            assert (refused.status, refused.headers["retry-after"]) == (429, str(WINDOW_S))
            assert refused.problem["detail"] == "too many cards and payments of this account; wait 15 minutes"
        assert counter.till.gateway.books.charges == {}
        for caller, account_id in ((counter.as_customer("acc-2"), "acc-2"), (counter.as_operator(), "acc-1")):
            brought = {"token": counter.till.gateway.tokenise(PAYS), "account_id": account_id}
            assert (await caller("POST", METHODS, brought)).status == 201
        await counter.till.s.clock.advance(WINDOW_S + 1)
        assert (await customer("POST", METHODS, {"token": counter.till.gateway.tokenise(PAYS)})).status == 201


async def _nothing(*_: object) -> None:
    return None


ABLATIONS: Ablations = {
    "the bound on tries": (
        patched(callers, "count_action", _nothing),
        [test_a_customer_tries_so_many_cards_and_no_more],
    )
}


@pytest.mark.parametrize(("name", "number"), cases(ABLATIONS))
async def test_without_it_the_test_fails(name: str, number: int, stage: OpenStage) -> None:
    await missed(ABLATIONS, name, number, stage)
