"""Credit in the console: seen with its entries, adjusted and paid out once it is sure, by whom it takes."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import pytest

from payonce.engine.controls import set_threshold
from payonce.engine.operators import Role
from payonce.services.billing.subscriptions.decisions.credit import credit_action
from payonce.testing import OpenStage, Servers
from tests.console.visitor import Answer, Visitor, console, give_login, visiting
from tests.services.billing.billing_stage import House, aed, open_house
from tests.services.billing.test_credit import with_credit

PATH: Final = "/billing/customers/acc-1/credit"


@pytest.fixture(scope="session")
def servers(shared_servers: Servers) -> Servers:
    return shared_servers


@asynccontextmanager
async def open_console(stage: OpenStage) -> AsyncIterator[tuple[House, Visitor]]:
    async with (
        open_house(stage) as house,
        console(house.s, also=(credit_action,)) as address,
        visiting(address) as visitor,
    ):
        await with_credit(house)
        yield house, visitor


async def choose(visitor: Visitor, verdict: str, amount: str, **fields: str) -> Answer:
    """Up to the page that tells what would follow."""
    page = await visitor.get(PATH)
    form = {
        "verdict": verdict,
        "amount": amount,
        "currency": "AED",
        "why": "they left us",
        "seen_AED": page.field("seen_AED"),
        **fields,
    }
    return await visitor.submit(page, f"{PATH}/decide", **form)


async def confirm(visitor: Visitor, check: Answer) -> Answer:
    names = ("verdict", "amount", "currency", "invoice", "why", "seen_AED", "sure")
    return await visitor.submit(check, f"{PATH}/decide", **{name: check.field(name) for name in names})


async def test_credit_is_seen_and_paid_out_once(stage: OpenStage) -> None:
    async with open_console(stage) as (house, visitor):
        customer = await visitor.get("/billing/customers/acc-1")
        assert "970.00 AED" in customer.words
        assert PATH in customer.text
        check = await choose(visitor, "pay_out", "941.00")
        for said in ("Nothing is changed yet.", "Pay out 941.00 AED of credit to the card", "they left us"):
            assert said in check.words, said
        assert not house.gateway.books.refunds
        done = await confirm(visitor, check)
        assert "29.00 AED of credit is left" in done.words
        twice = await confirm(visitor, check)
        assert (twice.status, "has changed: it is 29.00 AED now; look again" in twice.words) == (409, True)
        await house.run()
        page = await visitor.get(PATH)
        for said in ("granted", "paid out", "941.00 AED", "succeeded", "operator@localhost"):
            assert said in page.words, said
        assert house.gateway.books.refunded_total("AED") == aed("941.00")
        assert await house.broken() == {}


async def test_what_is_typed_wrong_is_told_beside_the_form_and_changes_nothing(stage: OpenStage) -> None:
    async with open_console(stage) as (house, visitor):
        for wrong, said in (
            ({"verdict": "double"}, "choose one of the options on the page"),
            ({"amount": "much"}, "much"),
            ({"amount": "970.01"}, "which is less than 970.01 AED"),
            ({"amount": "0"}, "an amount above zero"),
            ({"currency": "QQQ"}, "unknown currency"),
            ({"why": ""}, "give one of 1 to"),
            ({"seen_AED": "7"}, "look again"),
            ({"invoice": "INV-1"}, "name another one"),
        ):
            form = {"verdict": "pay_out", "amount": "1.00", **wrong}
            refused = await choose(visitor, form.pop("verdict"), form.pop("amount"), **form)
            assert (refused.status in (400, 409), said in refused.words) == (True, True), (said, refused.words)
        assert await house.credit(house.customers[0]) == aed("970.00")


@pytest.mark.parametrize(
    ("verdict", "left"), [("add", "971.00"), ("remove", "969.00"), ("expire", "969.00"), ("paid_by_hand", "969.00")]
)
async def test_each_decision_does_what_it_says(stage: OpenStage, verdict: str, left: str) -> None:
    async with open_console(stage) as (house, visitor):
        done = await confirm(visitor, await choose(visitor, verdict, "1.00"))
        assert f"{left} AED of credit is left" in done.words
        assert await house.credit(house.customers[0]) == aed(left)
        assert await house.broken() == {}


async def test_above_the_threshold_a_second_person_is_asked_and_meanwhile_there_is_no_form(stage: OpenStage) -> None:
    async with open_console(stage) as (house, visitor):
        async with house.s.begin() as tx:
            await set_threshold(tx, aed("100.00"), "ann")
        check = await choose(visitor, "pay_out", "970.00")
        assert "It is executed only after a second person agrees" in check.words
        await confirm(visitor, check)
        page = await visitor.get(PATH)
        assert "Waits for a second person" in page.words
        assert 'name="verdict"' not in page.text
        assert await house.credit(house.customers[0]) == aed("970.00")


async def test_a_viewer_sees_no_form_and_is_refused(stage: OpenStage) -> None:
    async with open_console(stage) as (house, visitor):
        await give_login(house.s, "vic", Role.VIEWER)
        await visitor.log_in("vic")
        page = await visitor.get(PATH)
        assert "970.00 AED" in page.words
        assert 'name="verdict"' not in page.text
        refused = await visitor.submit(page, f"{PATH}/decide", verdict="add", amount="1", currency="AED", why="x")
        assert refused.status == 403
        assert await house.credit(house.customers[0]) == aed("970.00")
