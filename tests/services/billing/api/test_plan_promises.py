"""What a plan promises its customers, as they meet it over HTTP."""

from datetime import timedelta
from typing import Any

from tests.services.billing.api.conftest import OpenShop
from tests.services.billing.billing_stage import BEGIN

SUBSCRIPTIONS, INVOICES, PLANS, USAGE = "/v1/subscriptions", "/v1/invoices", "/v1/plans", "/v1/usage"
MIGRATIONS = "/v1/plan-migrations"
DEARER: dict[str, Any] = {"code": "basic", "name": "Basic", "price": "39.00", "currency": "AED"}


async def test_a_refund_does_not_leave_the_credit_that_it_pays_out(shop: OpenShop) -> None:
    """Annual Pro, changed to Basic at once: 970.00 of 999.00 came back as credit."""
    async with shop() as ask:
        ada = await ask.customer("ada@example.com")
        made = (await ada.order(SUBSCRIPTIONS, {"plan_id": "annual-pro"})).json
        # Not for long: every ten minutes of a year are two hundredths.
        await ask.house.run(6.0)
        await ada.order(f"{SUBSCRIPTIONS}/{made['id']}/change-plan", {"new_plan_id": "basic", "when": "now"})
        await ask.house.run()
        [charge] = (await ada.get("/v1/transactions")).json["transactions"]
        till = await ask.with_key("till", "billing:charge")
        wanted = {"amount": "941.00", "reason": "they left us", "beyond_credit": True}
        refused = await till.order(f"/v1/transactions/{charge['id']}/refund", wanted)
        await ask.house.run()
        assert (refused.status, dict(ask.house.gateway.books.refunds)) == (422, {})
        assert "pay out the credit of account" in refused.problem["detail"]


async def test_a_trial_costs_what_it_was_begun_with_when_it_converts(shop: OpenShop) -> None:
    async with shop() as ask:
        ada = await ask.customer("ada@example.com")
        trial = (await ada.order(f"{SUBSCRIPTIONS}/trial", {"trial_plan_id": "trial"})).json
        await ask.house.run()
        crm = await ask.with_key("crm", "billing:operate")
        assert (await crm.order(PLANS, DEARER)).json["id"] == "basic-v2"
        await ask.house.go_to(BEGIN + timedelta(days=15))
        newest, _ = (await ada.get(INVOICES)).json["invoices"]
        assert (newest["plan_id"], newest["due"]["amount"]) == ("basic-v1", "29.00")
        shown = (await ada.get(f"{SUBSCRIPTIONS}/{trial['id']}")).json
        assert (shown["state"], shown["plan_id"]) == ("active", "basic-v1")


async def test_an_annual_plan_has_its_monthly_calls_every_month(shop: OpenShop) -> None:
    async with shop() as ask:
        ada = await ask.customer("ada@example.com")
        await ada.subscribed("annual-pro")
        for month in range(3):
            event = {"feature_name": "api_calls", "delta": 10_000, "event_id": f"e-{month}"}
            assert (await ada.post(f"{USAGE}/use", event)).status == 200, f"in month {month}"
            over = await ada.post(f"{USAGE}/use", {"feature_name": "api_calls", "event_id": f"over-{month}"})
            assert (over.status, over.problem["used"], over.problem["left"]) == (429, 10_000, 0)
            shown = (await ada.get(USAGE)).json
            assert shown["resets_at"] in over.problem["detail"].replace("+00:00", "Z")
            await ask.house.go_to(BEGIN + timedelta(days=31 * (month + 1)))
        stats = (await ada.get(f"{USAGE}/stats?feature_name=api_calls")).json
        assert [each["total"] for each in stats] == [10_000] * 3
        assert len((await ada.get(INVOICES)).json["invoices"]) == 1


async def test_a_change_of_plan_is_refused_or_ends_where_its_customer_sees_it(shop: OpenShop) -> None:
    """The subscription is canceled before the change is worked on."""
    async with shop() as ask:
        ada = await ask.customer("ada@example.com")
        place = f"{SUBSCRIPTIONS}/{(await ada.subscribed())['id']}"
        accepted = await ada.order(f"{place}/change-plan", {"new_plan_id": "pro"})
        await ada.order(f"{place}/cancel", {"at": "period_end"})
        refused = await ada.order(f"{place}/change-plan", {"new_plan_id": "enterprise"})
        assert (refused.status, accepted.status) == (409, 202)
        await ask.house.run()
        change = (await ada.get(place)).json["plan_change"]
        assert (change["id"], change["state"]) == (accepted.json["plan_change"]["id"], "failed")
        assert "canceled" in change["reason"]


async def test_operators_preview_order_and_cancel_a_plan_migration(shop: OpenShop) -> None:
    async with shop() as ask:
        ada = await ask.customer("ada@example.com")
        place = f"{SUBSCRIPTIONS}/{(await ada.subscribed())['id']}"
        crm = await ask.with_key("crm", "billing:operate")
        await crm.order(PLANS, DEARER)
        seen = (await crm.get(f"{MIGRATIONS}/preview?from_plan_id=basic-v1")).json
        assert (seen["subscriptions"], seen["by_state"], seen["to_plan_id"]) == (1, {"active": 1}, "basic-v2")
        assert (seen["total"]["amount"], seen["new_total"]["amount"]) == ("29.00", "39.00")
        assert (seen["notice_days"], seen["canceling"], seen["choosing"]) == (14, 0, 0)
        longer = (await crm.get(f"{MIGRATIONS}/preview?from_plan_id=basic-v1&notice_days=60")).json
        assert seen["first_effective_at"] < longer["first_effective_at"] == longer["last_effective_at"]
        assert (await crm.get(f"{MIGRATIONS}/preview?from_plan_id=basic-v1&notice_days=367")).status == 422
        every = {"interval": "month", "interval_count": 1, "allowance_interval": "month", "allowance_interval_count": 1}
        limits = (await ask.get(f"{PLANS}/basic-v1")).json["features"]
        assert (seen["terms"], seen["new_terms"]) == ({**every, "features": limits}, {**every, "features": {}})
        wanted = {"from_plan_id": "basic-v1", "note": "prices of 2027"}
        assert (await ada.order(MIGRATIONS, wanted)).status == 403
        assert (await ada.get(MIGRATIONS)).status == 403
        made = await crm.order(MIGRATIONS, wanted)
        assert (made.status, made.json["state"], made.json["requested_by"]) == (202, "running", "crm")
        assert made.json["notice_days"] == 14
        assert (await crm.order(MIGRATIONS, wanted)).status == 409
        await ask.house.run()
        assert (await crm.get(made.headers["location"])).json["scheduled"] == 1
        shown = (await ada.get(place)).json
        change = shown["plan_change"]
        assert (shown["next_plan_id"], change["state"], change["effective_at"]) == (
            "basic-v2",
            "pending",
            shown["period_end"],
        )
        assert change["migration_id"] == made.json["id"]
        ended = await crm.order(f"{made.headers['location']}/cancel", {"note": "too early"})
        assert ended.status == 202
        await ask.house.run()
        [listed] = (await crm.get(MIGRATIONS)).json["plan_migrations"]
        assert (listed["state"], listed["withdrawn"]) == ("canceled", 1)
        assert (await ada.get(place)).json["next_plan_id"] is None
        assert (await crm.get(f"{MIGRATIONS}/none")).status == 404
        assert (await crm.get(f"{MIGRATIONS}/preview?from_plan_id=basic-v2")).status == 409
        assert await ask.house.broken() == {}


async def test_a_plan_says_how_often_its_limits_begin_anew(shop: OpenShop) -> None:
    async with shop() as ask:
        crm = await ask.with_key("crm", "billing:operate")
        yearly = {**DEARER, "code": "team", "interval": "year", "features": {"seats": 5}}
        made = (await crm.order(PLANS, {**yearly, "allowance_interval": "month"})).json
        assert (made["interval"], made["allowance_interval"], made["allowance_interval_count"]) == ("year", "month", 1)
        assert (await crm.order(PLANS, yearly)).json["allowance_interval"] == "month", "as in the version before"
        assert (await crm.order(PLANS, {**yearly, "allowance_interval": "year"})).json["allowance_interval"] == "year"
        assert (await crm.order(PLANS, {**yearly, "interval": "month"})).json["allowance_interval"] == "month"
        assert (await ask.get(f"{PLANS}/annual-pro")).json["allowance_interval"] == "month"
        assert (await ask.get(f"{PLANS}/trial")).json["allowance_interval_count"] == 14
        wrong: list[dict[str, Any]] = [
            {"allowance_interval": "week"},
            {"allowance_interval_count": 3},
            {"allowance_interval": "month", "allowance_interval_count": 5},
        ]
        for change in wrong:
            assert (await crm.order(PLANS, {**yearly, **change})).status == 422
