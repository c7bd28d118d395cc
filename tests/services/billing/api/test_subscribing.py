"""From an account to a paid invoice and beyond, all of it over HTTP."""

import io
from datetime import timedelta
from typing import Any

import pypdf

from tests.services.billing.api.conftest import OpenShop
from tests.services.billing.api.counter import PASSWORD
from tests.services.billing.billing_stage import BEGIN, DECLINES, PAYS, Customer

SUBSCRIPTIONS, INVOICES, PLANS, CLOCKS = "/v1/subscriptions", "/v1/invoices", "/v1/plans", "/v1/test-clocks"


async def test_an_order_that_comes_twice_is_one_subscription_that_is_paid_once(shop: OpenShop) -> None:
    async with shop() as ask:
        ada = await ask.customer("ada@example.com")
        order = {"plan_id": "basic"}
        first, again = [await ada.post(SUBSCRIPTIONS, order, idempotency_key="k") for _ in range(2)]
        assert (first.status, first.body) == (again.status, again.body)
        assert (first.json["state"], first.json["status"], first.status) == ("incomplete", "pending", 201)
        await ask.house.run()
        active = await ada.get(f"{SUBSCRIPTIONS}/active")
        assert (active.json["id"], active.json["state"], active.json["next"]) == (first.json["id"], "active", "renew")
        [listed] = (await ada.get(SUBSCRIPTIONS)).json["subscriptions"]
        assert listed == active.json == (await ada.get(first.headers["location"])).json
        [invoice] = (await ada.get(INVOICES)).json["invoices"]
        assert (invoice["state"], invoice["due"]["amount"], invoice["period"]) == ("paid", "29.00", 0)
        assert ask.house.captures((await ask.house.invoices(Customer(ada.account_id, None)))[0]) == 1
        events = (await ada.get(f"{first.headers['location']}/events?limit=1")).json
        assert [event["kind"] for event in events["events"]] == ["created"]
        following = (await ada.get(f"{first.headers['location']}/events?after={events['next_after']}")).json["events"]
        assert following[-1]["to_state"] == "active"
        assert await ask.house.broken() == {}


async def test_an_invoice_is_shown_by_id_and_number_and_printed(shop: OpenShop) -> None:
    async with shop() as ask:
        ada = await ask.customer("ada@example.com")
        await ada.subscribed()
        [listed] = (await ada.get(INVOICES)).json["invoices"]
        shown = [(await ada.get(f"{INVOICES}/{listed[name]}")).json for name in ("id", "number")]
        assert shown[0] == shown[1] == {**listed, "credit_notes": []}
        printed = await ada.get(f"{INVOICES}/{listed['id']}/pdf")
        assert (printed.status, printed.headers["content-type"]) == (200, "application/pdf")
        assert printed.headers["content-disposition"] == f'inline; filename="{listed["number"]}.pdf"'
        text = pypdf.PdfReader(io.BytesIO(printed.body)).pages[0].extract_text()
        paid = f"Paid on {listed['paid_at'][:10]} by visa card ending in 4242"
        for expected in (listed["number"], "payonce", "ada@example.com", "29.00", paid, "Amount due\n0.00"):
            assert expected in text
        assert listed["paid_with"] == "visa card ending in 4242"
        refused = await ada.order(f"{INVOICES}/{listed['id']}/pay")
        assert (refused.status, "cannot be paid" in refused.problem["detail"]) == (409, True)


async def test_an_invoice_names_a_customer_in_arabic_and_chinese(shop: OpenShop) -> None:
    async with shop() as ask:
        registration = {"email": "m@example.com", "password": PASSWORD, "name": "محمد 王小明", "locale": "ar-AE"}
        made = (await ask.post("/v1/auth/register", registration)).json
        await ask.house.give_card(Customer(made["account"]["id"], None))
        customer = ask.bearing(made["access_token"])
        await customer.subscribed()
        [invoice] = (await customer.get(INVOICES)).json["invoices"]
        printed = await customer.get(f"{INVOICES}/{invoice['id']}/pdf")
        text = pypdf.PdfReader(io.BytesIO(printed.body)).pages[0].extract_text()
        for expected in ("محمد", "王小明", "Paid on"):
            assert expected in text
        assert "◊" not in text


async def test_a_trial_is_paid_back_and_its_credit_note_can_be_printed(shop: OpenShop) -> None:
    async with shop() as ask:
        ada = await ask.customer("ada@example.com")
        made = await ada.order(f"{SUBSCRIPTIONS}/trial", {"trial_plan_id": "trial"})
        await ask.house.run()
        running = (await ada.get(made.headers["location"])).json
        assert (made.status, running["state"], running["status"]) == (201, "trialing", "trial")
        [invoice] = (await ada.get(INVOICES)).json["invoices"]
        [note] = (await ada.get(f"{INVOICES}/{invoice['id']}")).json["credit_notes"]
        assert (note["amount"]["amount"], invoice["refunded"]["amount"]) == ("1.00", "1.00")
        place = f"{INVOICES}/{invoice['id']}/credit-notes"
        printed = await ada.get(f"{place}/{note['number']}/pdf")
        text = pypdf.PdfReader(io.BytesIO(printed.body)).pages[0].extract_text().replace("\N{NO-BREAK SPACE}", " ")
        for expected in (invoice["number"], "Refunded to the visa card ending in 4242", "after credit notes\n0.00 AED"):
            assert expected in text
        assert (await ada.get(f"{place}/none/pdf")).status == 404


async def test_a_declined_card_leaves_it_pending_until_the_invoice_is_paid_with_another(shop: OpenShop) -> None:
    async with shop() as ask:
        ada = await ask.customer("ada@example.com", DECLINES)
        waiting = await ada.subscribed()
        assert waiting["state"] == "incomplete"
        [invoice] = (await ada.get(f"{INVOICES}?state=open")).json["invoices"]
        assert (invoice["failures"], invoice["charging"]) == (1, False)
        assert invoice["decline_code"]
        tried = await ada.order(f"{INVOICES}/{invoice['id']}/pay")
        assert (tried.status, tried.json["charging"]) == (202, True)
        busy = await ada.order(f"{INVOICES}/{invoice['id']}/pay")
        assert busy.status == 409
        await ask.house.run()
        await ask.house.give_card(Customer(ada.account_id, None), PAYS)
        await ask.house.run()
        assert (await ada.get(f"{SUBSCRIPTIONS}/active")).json["state"] == "active"


async def test_plans_change_now_with_proration_or_at_the_end_of_the_period(shop: OpenShop) -> None:
    async with shop() as ask:
        ada = await ask.customer("ada@example.com")
        place = f"{SUBSCRIPTIONS}/{(await ada.subscribed())['id']}"
        changed = await ada.order(f"{place}/change-plan", {"new_plan_id": "pro"})
        pending = changed.json["plan_change"]
        assert (changed.status, pending["state"], pending["to_plan_id"]) == (202, "pending", "pro-v1")
        busy = await ada.order(f"{place}/change-plan", {"new_plan_id": "enterprise"})
        assert (busy.status, pending["id"] in busy.problem["detail"]) == (409, True)
        await ask.house.run()
        shown = (await ada.get(place)).json
        assert (shown["plan_id"], shown["plan_change"]["id"]) == ("pro-v1", pending["id"])
        assert (shown["plan_change"]["state"], shown["plan_change"]["effective_at"] is not None) == ("applied", True)
        difference, _ = (await ada.get(INVOICES)).json["invoices"]
        assert [line["kind"] for line in difference["lines"]] == ["unused", "remaining"]
        later = await ada.order(f"{place}/change-plan", {"new_plan_id": "basic", "when": "period_end"})
        assert (later.status, later.json["plan_id"], later.json["next_plan_id"]) == (202, "pro-v1", "basic-v1")
        assert later.json["plan_change"]["effective_at"] == later.json["period_end"]
        back = await ada.order(f"{place}/change-plan", {"new_plan_id": "pro", "when": "period_end"})
        assert (back.status, back.json["plan_change"]["state"]) == (200, "canceled")
        listed = (await ada.get(f"{place}/plan-changes")).json["plan_changes"]
        assert [each["state"] for each in listed] == ["canceled", "applied"]
        assert (await ask.get(f"{place}/plan-changes")).status == 401
        await ada.order(f"{place}/cancel", {"at": "period_end"})
        ending = await ada.order(f"{place}/change-plan", {"new_plan_id": "enterprise"})
        assert (ending.status, "resume" in ending.problem["detail"]) == (409, True)
        await ada.order(f"{place}/resume")
        for body, status in (
            ({"new_plan_id": "none"}, 404),
            ({"new_plan_id": "trial"}, 409),
            ({"new_plan_id": "basic", "when": "soon"}, 422),
        ):
            assert (await ada.order(f"{place}/change-plan", body)).status == status


async def test_a_subscription_is_paused_resumed_and_canceled(shop: OpenShop) -> None:
    async with shop() as ask:
        ada = await ask.customer("ada@example.com")
        place = f"{SUBSCRIPTIONS}/{(await ada.subscribed())['id']}"
        allowed = "/v1/entitlements/api_calls"
        assert (await ada.get(allowed)).json["entitled"] is True
        assert (await ada.order(f"{place}/pause")).json["state"] == "paused"
        assert (await ada.get(allowed)).json["why_not"] == "not_entitled"
        assert (await ada.order(f"{place}/pause")).status == 409
        assert (await ada.order(f"{place}/resume")).json["state"] == "active"
        later = await ada.order(f"{place}/cancel", {})
        assert (later.json["state"], later.json["cancel_at_period_end"]) == ("active", True)
        assert (await ada.order(f"{place}/resume")).json["cancel_at_period_end"] is False
        ended = await ada.order(f"{place}/cancel", {"at": "now", "reason": "moving away"})
        assert (ended.json["state"], ended.json["reason"]) == ("canceled", "moving away")
        assert (await ada.get(f"{SUBSCRIPTIONS}/active")).status == 404
        entitled = (await ada.get(allowed)).json
        assert (entitled["entitled"], entitled["why_not"]) == (False, "no_subscription")


async def test_whoever_cancels_may_say_why_at_length(shop: OpenShop) -> None:
    """The reason stands on the credit note of what was open, as far as there is room."""
    async with shop() as ask:
        ada = await ask.customer("ada@example.com", DECLINES)
        pending = await ada.subscribed()
        why = "because " * 250
        ended = await ada.order(f"{SUBSCRIPTIONS}/{pending['id']}/cancel", {"at": "now", "reason": why})
        assert (ended.status, ended.json["state"]) == (200, "canceled")
        [invoice] = (await ada.get("/v1/invoices")).json["invoices"]
        [note] = (await ada.get(f"/v1/invoices/{invoice['id']}")).json["credit_notes"]
        assert note["reason"] == why[:500]
        printed = await ada.get(f"/v1/invoices/{invoice['id']}/credit-notes/{note['id']}/pdf")
        text = pypdf.PdfReader(io.BytesIO(printed.body)).pages[0].extract_text()
        assert f"Invoice {invoice['number']} is void: nothing is to be paid" in text
        voided = await ada.get(f"/v1/invoices/{invoice['id']}/pdf")
        text = pypdf.PdfReader(io.BytesIO(voided.body)).pages[0].extract_text()
        assert ("Void: nothing is to be paid" in text, "Paid on" in text) == (True, False)


async def test_a_customers_year_passes_on_a_test_clock(shop: OpenShop) -> None:
    async with shop() as ask:
        ada = await ask.customer("ada@example.com")
        clock = await ada.post(CLOCKS, {"name": "a year", "now_at": BEGIN.isoformat()})
        place = f"{CLOCKS}/{clock.json['id']}"
        assert (clock.status, clock.json["arrived"]) == (201, True)
        assert (await ada.post(f"{place}/join", {})).status == 200
        assert (await ada.get("/v1/auth/me")).json["test_clock_id"] == clock.json["id"]
        await ada.subscribed()
        moved = await ada.post(f"{place}/advance", {"to": (BEGIN + timedelta(days=64)).isoformat()})
        assert (moved.status, moved.json["arrived"]) == (202, False)
        await ask.house.run()
        assert (await ada.get(place)).json["arrived"] is True
        invoices = (await ada.get(INVOICES)).json["invoices"]
        assert [each["period"] for each in invoices] == [2, 1, 0]
        assert {each["state"] for each in invoices} == {"paid"}
        back = await ada.post(f"{place}/advance", {"to": BEGIN.isoformat()})
        assert (back.status, await ask.house.broken()) == (409, {})
        assert (await ada.post(f"{place}/join", {})).status == 409


async def test_a_test_clock_has_not_arrived_while_a_charge_is_under_way(shop: OpenShop) -> None:
    async with shop() as ask:
        ada = await ask.customer("ada@example.com")
        clock = await ada.post(CLOCKS, {"name": "a month", "now_at": BEGIN.isoformat()})
        place = f"{CLOCKS}/{clock.json['id']}"
        await ada.post(f"{place}/join", {})
        renewal = (await ada.subscribed())["period_end"]
        await ask.house.s.admin.pause("q:pay:charge_initiation", "to be late")
        await ada.post(f"{place}/advance", {"to": renewal})
        await ask.house.run()
        waiting = (await ada.get(place)).json
        assert waiting["now_at"] == waiting["target_at"]
        assert not waiting["arrived"]
        assert waiting["waits_for"].startswith("the charge of invoice")
        await ask.house.s.admin.resume("q:pay:charge_initiation")
        await ask.house.run()
        assert (await ada.get(place)).json["arrived"]


async def test_operators_sell_plans_and_a_sold_one_stays_as_it_is(shop: OpenShop) -> None:
    async with shop() as ask:
        offer: dict[str, Any] = {
            "code": "team",
            "name": "Team",
            "price": "49.500",
            "currency": "KWD",
            "features": {"seats": 5},
        }
        crm = await ask.with_key("crm", "billing:operate")
        first, again = [await crm.post(PLANS, offer, idempotency_key="p") for _ in range(2)]
        second = await crm.post(PLANS, {**offer, "price": "59.000"}, idempotency_key="q")
        assert (first.status, first.body, second.json["id"]) == (201, again.body, "team-v2")
        old = (await ask.get(f"{PLANS}/team-v1")).json
        assert (old["price"]["amount"], old["retired_at"] is not None) == ("49.500", True)
        assert (await ask.get(f"{PLANS}/team")).json["version"] == 2
        retired = await crm.post(f"{PLANS}/team/retire")
        assert (retired.status, retired.json["retired_at"] is not None) == (200, True)
        assert "team" not in [plan["code"] for plan in (await ask.get(PLANS)).json["plans"]]
        assert (await crm.post(f"{PLANS}/basic/retire")).status == 409
        ada = await ask.customer("ada@example.com", None)
        assert (await ada.post(PLANS, offer, idempotency_key="r")).status == 403
        wrong: list[dict[str, Any]] = [
            {"price": "49.5001"},
            {"currency": "XXZ"},
            {"interval_count": 40},
            {"trial_days": 7},
            {"features": {"seats": -1}},
        ]
        for number, change in enumerate(wrong):
            assert (await crm.post(PLANS, {**offer, **change}, idempotency_key=f"w{number}")).status == 422


async def test_keys_act_for_the_account_that_they_name(shop: OpenShop) -> None:
    async with shop() as ask:
        ada = await ask.customer("ada@example.com")
        crm = await ask.with_key("crm", "billing:operate", "billing:read")
        unnamed = await crm.order(SUBSCRIPTIONS, {"plan_id": "basic"})
        assert (unnamed.status, "account_id is missing" in unnamed.problem["detail"]) == (422, True)
        made = await crm.order(SUBSCRIPTIONS, {"plan_id": "basic", "account_id": ada.account_id})
        assert (made.status, made.json["account_id"]) == (201, ada.account_id)
        await ask.house.run()
        assert (await crm.get(f"{SUBSCRIPTIONS}?state=active")).json["subscriptions"][0]["id"] == made.json["id"]
        assert (await crm.get(f"{SUBSCRIPTIONS}/active?account_id={ada.account_id}")).status == 200
        assert (await crm.get(f"/v1/entitlements/projects?account_id={ada.account_id}")).json["left"] == 3
        assert (await crm.order(f"{SUBSCRIPTIONS}/{made.json['id']}/cancel", {"at": "now"})).status == 200
        second = await crm.order(SUBSCRIPTIONS, {"plan_id": "basic", "account_id": "nobody"})
        assert (second.status, second.problem["detail"]) == (404, "there is no account 'nobody'")


async def test_lists_go_on_page_by_page(shop: OpenShop) -> None:
    async with shop() as ask:
        ada = await ask.customer("ada@example.com")
        ids = []
        for _ in range(3):
            ids.append((await ada.subscribed())["id"])
            await ada.order(f"{SUBSCRIPTIONS}/{ids[-1]}/cancel", {"at": "now"})
        for path, name in ((SUBSCRIPTIONS, "subscriptions"), (INVOICES, "invoices")):
            first = (await ada.get(f"{path}?limit=2")).json
            rest = (await ada.get(f"{path}?limit=2&after={first['next_after']}")).json
            assert (len(first[name]), len(rest[name]), rest["next_after"]) == (2, 1, None)
            assert len({each["id"] for each in first[name] + rest[name]}) == 3
