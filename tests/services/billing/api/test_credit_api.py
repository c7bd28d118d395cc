"""Credit over HTTP: customers see theirs, operators adjust it and pay it out, each once."""

from typing import Any, Final

import pytest

from payonce.engine.controls import set_threshold
from payonce.services.billing.scopes import CHARGE, OPERATE, READ
from tests.services.billing.api.conftest import OpenShop
from tests.services.billing.api.counter import Shop
from tests.services.billing.billing_stage import aed
from tests.services.billing.test_credit import AT_ONCE_S

ADJUSTMENTS: Final = "/v1/credit/adjustments"
PAYOUTS: Final = "/v1/credit/payouts"


def order(who: Shop, amount: str, **more: str) -> dict[str, Any]:
    return {"account_id": who.account_id, "amount": amount, "currency": "AED", "reason": "an outage", **more}


async def downgraded(ask: Shop) -> Shop:
    """Annual Pro, changed to Basic at once: 970.00 of credit."""
    ada = await ask.customer("ada@example.com")
    subscription = (await ada.order("/v1/subscriptions", {"plan_id": "annual-pro"})).json
    await ask.house.run(AT_ONCE_S)
    changed = await ada.order(
        f"/v1/subscriptions/{subscription['id']}/change-plan", {"new_plan_id": "basic", "when": "now"}
    )
    assert changed.status < 300, changed.body
    await ask.house.run()
    return ada


async def balance_of(ada: Shop) -> str:
    [found] = (await ada.get("/v1/credit")).json["balances"]
    return str(found["balance"]["amount"])


async def test_a_customer_sees_balance_entries_and_payouts(shop: OpenShop) -> None:
    async with shop() as ask:
        ada = await downgraded(ask)
        till = await ask.with_key("till", CHARGE)
        assert await balance_of(ada) == "970.00"
        paid = await till.order(PAYOUTS, order(ada, "941.00"))
        assert (paid.status, paid.json["payout"]["state"]) == (202, "pending")
        assert paid.json["balance"]["balance"]["amount"] == "29.00"
        await ask.house.run()
        shown = (await ada.get(f"{PAYOUTS}/{paid.json['payout']['id']}")).json
        assert (shown["state"], shown["amount"]["amount"], shown["failure"]) == ("succeeded", "941.00", None)
        entries = (await ada.get("/v1/credit/entries")).json["entries"]
        assert [(each["kind"], each["amount"]["amount"], each["balance"]["amount"]) for each in entries] == [
            ("paid_out", "-941.00", "29.00"),
            ("granted", "970.00", "970.00"),
        ]
        assert [each["actor"] for each in entries] == [None, None], "who works here is no customer's business"
        pages = (await ada.get("/v1/credit/entries?limit=1")).json
        older = (await ada.get(f"/v1/credit/entries?limit=1&before={pages['next_before']}")).json["entries"]
        assert [each["kind"] for each in older] == ["granted"]
        reader = await ask.with_key("reader", READ)
        seen = (await reader.get(f"/v1/credit/entries?account_id={ada.account_id}")).json["entries"]
        assert [each["actor"] for each in seen] == ["till", "billing"]
        assert ask.house.gateway.books.refunded_total("AED") == aed("941.00")
        assert await ask.house.broken() == {}


async def test_an_order_that_comes_again_is_carried_out_once(shop: OpenShop) -> None:
    async with shop() as ask:
        ada = await downgraded(ask)
        till = await ask.with_key("till", CHARGE)
        for path, body in ((ADJUSTMENTS, order(ada, "10.00", change="add")), (PAYOUTS, order(ada, "400.00"))):
            first, again = [await till.post(path, body, idempotency_key=f"k-{path[-4:]}") for _ in range(2)]
            assert (first.status, first.json) == (again.status, again.json)
            await ask.house.run()
        assert await balance_of(ada) == "580.00"
        assert ask.house.gateway.books.refunded_total("AED") == aed("400.00")
        assert (await till.post(PAYOUTS, order(ada, "1.00"))).status == 400, "it moves money: a key is needed"


@pytest.mark.parametrize(
    ("path", "body", "status", "said"),
    [
        (PAYOUTS, {"amount": "970.01"}, 422, "has 970.00 AED of credit, which is less than 970.01 AED"),
        (PAYOUTS, {"amount": "0.00"}, 422, "above zero"),
        (PAYOUTS, {"amount": "1.001"}, 422, "more than the 2 decimals"),
        (PAYOUTS, {"currency": "QQQ"}, 422, "unknown currency QQQ"),
        (PAYOUTS, {"account_id": "nobody"}, 404, "nobody"),
        (PAYOUTS, {"invoice": "INV-1999-000001"}, 422, "name another one, or pay out by hand"),
        (PAYOUTS, {"way": "by_hand", "invoice": "INV-1999-000001"}, 422, "omit it for other decisions"),
        (ADJUSTMENTS, {"change": "remove", "amount": "970.01"}, 422, "which is less than"),
        (ADJUSTMENTS, {"change": "pay_out"}, 422, "must be add, remove or expire"),
        (ADJUSTMENTS, {"change": "double"}, 422, ""),
    ],
)
async def test_what_cannot_be_is_refused_with_the_reason(
    shop: OpenShop, path: str, body: dict[str, str], status: int, said: str
) -> None:
    async with shop() as ask:
        ada = await downgraded(ask)
        till = await ask.with_key("till", CHARGE)
        refused = await till.order(path, {**order(ada, "10.00"), **body})
        assert refused.status == status, refused.body
        assert said in refused.problem["detail"]
        assert await balance_of(ada) == "970.00"


async def test_only_operators_change_credit(shop: OpenShop) -> None:
    async with shop() as ask:
        ada = await downgraded(ask)
        for who in (ada, await ask.with_key("context", OPERATE), await ask.with_key("reader", READ)):
            for path, body in ((ADJUSTMENTS, order(ada, "1.00", change="add")), (PAYOUTS, order(ada, "1.00"))):
                assert (await who.order(path, body)).status == 403
        assert await balance_of(ada) == "970.00"


async def test_above_the_threshold_it_waits_for_a_second_person(shop: OpenShop) -> None:
    async with shop() as ask:
        ada = await downgraded(ask)
        async with ask.app.begin() as tx:
            await set_threshold(tx, aed("100.00"), "ann")
        till = await ask.with_key("till", CHARGE)
        waits = await till.order(PAYOUTS, order(ada, "970.00"))
        assert (waits.status, waits.json["payout"], waits.json["approval"] is not None) == (202, None, True)
        await ask.house.run()
        assert await balance_of(ada) == "970.00"
        assert not ask.house.gateway.books.refunds
        path = f"/v1/approvals/{waits.json['approval']}/grant"
        own = await ask.with_key("till", "approvals:decide")
        refused = await own.order(path, {"note": "fine"})
        assert (refused.status, "second person" in refused.problem["detail"]) == (400, True)
        assert await balance_of(ada) == "970.00"
        second = await ask.with_key("bob", "approvals:decide")
        granted = await second.order(path, {"note": "I looked, too"})
        assert (granted.status, granted.json["state"], granted.json["decided_by"]) == (200, "granted", "bob")
        await ask.house.run()
        assert await balance_of(ada) == "0.00"
        assert ask.house.gateway.books.refunded_total("AED") == aed("970.00")
        await second.order(path, {"note": "once more"})
        await ask.house.run()
        assert ask.house.gateway.books.refunded_total("AED") == aed("970.00")
        [paid] = (await ada.get(PAYOUTS)).json["payouts"]
        assert (paid["state"], paid["amount"]["amount"]) == ("succeeded", "970.00")
        added = await till.order(ADJUSTMENTS, order(ada, "99.00", change="add"))
        assert added.status < 300
        assert (await till.order(PAYOUTS, order(ada, "9.00", way="by_hand"))).json["payout"] is not None
        assert await ask.house.broken() == {}
