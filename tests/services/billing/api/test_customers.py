"""Customers by a merchant's back end: created once, found by the merchant's own id, edited, and served on behalf of."""

import asyncio
from typing import Any
from urllib.parse import quote

import pytest

from payonce.engine.audit import Severity
from payonce.services.billing.scopes import CHARGE, OPERATE, READ
from payonce.services.billing.subscriptions.api import invoices
from payonce.services.billing.subscriptions.pdf import render
from payonce.services.billing.subscriptions.pdf.glyphs import Fonts
from payonce.services.billing.subscriptions.pdf.render import Party, PrintedDocument
from payonce.services.billing.subscriptions.store.customers import EXTERNAL_ID_MAX_CHARS
from tests.http.client import Answer
from tests.services.billing.api.conftest import OpenCounter, OpenShop
from tests.services.billing.api.counter import Counter
from tests.services.billing.billing_stage import PAYS

CUSTOMERS = "/v1/customers"
ADA = {"email": "ada@example.com", "name": "Ada", "external_id": "crm-7", "time_zone": "Asia/Dubai"}
TAKEN = "urn:payonce:problem:external-id-taken"
EMAIL_TAKEN = "urn:payonce:problem:email-taken"
STALE = "urn:payonce:problem:stale-revision"


async def create(ask: Counter, body: Any, key: str | None = None) -> Answer:
    return await ask.post(CUSTOMERS, body, idempotency_key=key or f"make-{body}".replace(" ", "")[:200])


async def created(ask: Counter, **body: Any) -> Any:
    answer = await create(ask, {"email": f"{body.get('external_id', 'somebody')}@example.com", **body})
    assert answer.status == 201, answer.body
    return answer.json


async def edit(ask: Counter, customer: Any, **changes: Any) -> Answer:
    body = {"revision": customer["revision"], **changes}
    return await ask("PATCH", f"{CUSTOMERS}/{customer['id']}", body=body)


async def merchant(ask: Counter) -> Counter:
    return await ask.with_key("shop", READ, OPERATE)


async def counted(ask: Counter) -> int:
    found: int = await ask.app.read.fetchval("select count(*) from subscriptions.accounts")
    return found


async def test_a_customer_is_created_once_and_found_by_each_of_its_names(counter: OpenCounter) -> None:
    async with counter() as ask:
        shop = await merchant(ask)
        made = await create(shop, {**ADA, "email": " Ada@Example.COM "}, "order-1")
        assert made.status == 201
        assert made.headers["location"] == f"{CUSTOMERS}/{made.json['id']}"
        again = await create(shop, {**ADA, "email": " Ada@Example.COM "}, "order-1")
        assert (again.status, again.headers["idempotent-replayed"], again.json) == (201, "true", made.json)
        assert (await create(shop, {**ADA, "name": "Eve"}, "order-1")).status == 422
        assert await counted(ask) == 1
        customer = made.json
        assert {name: customer[name] for name in ADA} == ADA
        assert (customer["has_password"], customer["revision"], customer["locale"]) == (False, 0, "en")
        assert (await shop.get(f"{CUSTOMERS}/{customer['id']}")).json == customer
        for query in ("external_id=crm-7", "email=ADA%40example.com", "external_id=crm-7&email=ada@example.com"):
            assert (await shop.get(f"{CUSTOMERS}?{query}")).json == {"customers": [customer], "next_after": None}
        for query in ("external_id=CRM-7", "external_id=crm", "email=eve%40example.com"):
            assert (await shop.get(f"{CUSTOMERS}?{query}")).json == {"customers": [], "next_after": None}
        written = await ask.app.read.fetch(
            "select text, actor, severity from payonce.audit_log where reference = $1", customer["id"]
        )
        assert [tuple(row) for row in written] == [("customer created", "shop", Severity.INFO.value)]


async def test_without_an_idempotency_key_nothing_is_created(counter: OpenCounter) -> None:
    async with counter() as ask:
        refused = await (await merchant(ask)).post(CUSTOMERS, ADA)
        assert (refused.status, refused.problem["type"]) == (400, "urn:payonce:problem:no-idempotency-key")
        assert "moves money" not in refused.problem["detail"]
        assert await counted(ask) == 0


async def test_pages_hold_every_customer_once_and_no_operator(counter: OpenCounter) -> None:
    async with counter() as ask:
        shop = await merchant(ask)
        made = [await created(shop, external_id=f"c-{number}") for number in range(5)]
        operator = await created(shop, external_id="root")
        await shop.post(f"/v1/ops/accounts/{operator['id']}/role", {"role": "operator"})
        seen: list[str] = []
        after: str | None = ""
        while after is not None:
            page = (await shop.get(f"{CUSTOMERS}?limit=2" + (f"&after={after}" if after else ""))).json
            seen += [each["id"] for each in page["customers"]]
            after = page["next_after"]
        assert seen == [each["id"] for each in reversed(made)]
        for refused in (
            await shop.get(f"{CUSTOMERS}/{operator['id']}"),
            await edit(shop, operator, name="Eve"),
            await shop.post(f"{CUSTOMERS}/{operator['id']}/password-tokens"),
        ):
            assert (refused.status, operator["id"] in refused.problem["detail"]) == (404, True)


async def test_of_many_at_once_with_one_external_id_or_address_one_is_created(counter: OpenCounter) -> None:
    async with counter() as ask:
        shop = await merchant(ask)
        same_id = [{"email": f"p{n}@example.com", "external_id": "one"} for n in range(8)]
        same_email = [{"email": "One@example.com", "external_id": f"e-{n}"} for n in range(8)]
        for bodies, kind in ((same_id, TAKEN), (same_email, EMAIL_TAKEN)):
            answers = await asyncio.gather(*(create(shop, body) for body in bodies))
            assert sorted(answer.status for answer in answers) == [201] + [409] * 7
            [winner] = [answer.json["id"] for answer in answers if answer.status == 201]
            for refused in (answer.problem for answer in answers if answer.status == 409):
                assert refused["type"] == kind
                assert winner in refused["detail"]
        assert await counted(ask) == 2


async def test_an_edit_changes_what_it_names_and_a_stale_one_nothing(counter: OpenCounter) -> None:
    async with counter() as ask:
        shop = await merchant(ask)
        customer = (await create(shop, ADA)).json
        renamed = await edit(shop, customer, name="Ada Lovelace", email="Lovelace@example.com")
        assert (renamed.status, renamed.json["revision"], renamed.json["email"]) == (200, 1, "lovelace@example.com")
        assert (renamed.json["name"], renamed.json["external_id"]) == ("Ada Lovelace", "crm-7")
        repeated = await edit(shop, customer, name="Ada Lovelace", email="Lovelace@example.com")
        assert (repeated.status, repeated.json) == (200, renamed.json), "the answer was lost, and it is sent again"
        stale = await edit(shop, customer, external_id=None)
        assert (stale.status, stale.problem["type"]) == (409, STALE)
        assert "the current one is 1; read the customer again" in stale.problem["detail"]
        assert (await shop.get(f"{CUSTOMERS}/{customer['id']}")).json == renamed.json
        removed = await edit(shop, renamed.json, external_id=None)
        assert (removed.json["external_id"], removed.json["revision"]) == (None, 2)
        written = await ask.app.read.fetch(
            "select text from payonce.audit_log where reference = $1 order by id", customer["id"]
        )
        assert [row["text"] for row in written][1:] == ["customer edited: email, name", "customer edited: external_id"]


async def test_of_many_edits_of_one_revision_one_is_made(counter: OpenCounter) -> None:
    async with counter() as ask:
        shop = await merchant(ask)
        customer = (await create(shop, ADA)).json
        answers = await asyncio.gather(*(edit(shop, customer, name=f"Ada {n}") for n in range(8)))
        assert sorted(answer.status for answer in answers) == [200] + [409] * 7
        assert (await shop.get(f"{CUSTOMERS}/{customer['id']}")).json["revision"] == 1


async def test_an_edit_to_what_another_has_is_refused_with_whose_it_is(counter: OpenCounter) -> None:
    async with counter() as ask:
        shop = await merchant(ask)
        ada, eve = (await create(shop, ADA)).json, await created(shop, external_id="eve")
        for changes, kind in (({"external_id": "crm-7"}, TAKEN), ({"email": "ADA@example.com"}, EMAIL_TAKEN)):
            refused = await edit(shop, eve, **changes)
            assert (refused.status, refused.problem["type"]) == (409, kind)
            assert ada["id"] in refused.problem["detail"]
        assert (await shop.get(f"{CUSTOMERS}/{eve['id']}")).json == eve


@pytest.mark.parametrize(
    "external_id",
    [
        "ü-Ω-客户-👩‍🚀",
        "x" * EXTERNAL_ID_MAX_CHARS,
        "'; drop table a; --",
        "a/b?c=d&e#f%20",
        "a b",
        "\\",
        '"',
        "%s {} $1",
    ],
)
async def test_an_external_id_is_kept_as_it_came(counter: OpenCounter, external_id: str) -> None:
    async with counter() as ask:
        shop = await merchant(ask)
        made = await create(shop, {"email": "a@example.com", "external_id": external_id}, "one")
        assert made.json["external_id"] == external_id
        found = await shop.get(f"{CUSTOMERS}?external_id={quote(external_id, safe='')}")
        assert [each["id"] for each in found.json["customers"]] == [made.json["id"]]


@pytest.mark.parametrize(
    "wrong",
    [
        {"external_id": ""},
        {"external_id": " a"},
        {"external_id": "a\n"},
        {"external_id": "\u2003"},
        {"external_id": "a\x00b"},
        {"external_id": "x" * (EXTERNAL_ID_MAX_CHARS + 1)},
        {"external_id": 7},
        {"external_id": "\ud800"},
        {"external_id": "4242424242424242"},
        {"email": "nobody"},
        {"email": None},
        {"email": f"{'x' * 250}@example.com"},
        {"name": "x" * 201},
        {"name": None},
        {"time_zone": "Mars/Olympus"},
        {"time_zone": "localtime"},
        {"locale": "english!"},
        {"role": "operator"},
        {"id": "mine"},
    ],
    ids=str,
)
async def test_a_bad_value_is_refused_by_both_ways_of_writing(counter: OpenCounter, wrong: dict[str, Any]) -> None:
    async with counter() as ask:
        shop = await merchant(ask)
        customer = await created(shop, external_id="eve")
        refused = (await create(shop, {**ADA, **wrong}, "wrong"), await edit(shop, customer, **wrong))
        for answer in refused:
            assert 400 <= answer.status < 500, answer.body
            assert answer.problem["detail"]
        assert await counted(ask) == 1
        assert (await shop.get(f"{CUSTOMERS}/{customer['id']}")).json == customer


@pytest.mark.parametrize("scopes", [(), (READ,), (OPERATE,)])
async def test_each_route_takes_the_scope_that_it_needs_and_no_customer(
    counter: OpenCounter, scopes: tuple[str, ...]
) -> None:
    async with counter() as ask:
        eve = await ask.registered("eve@example.com")
        account_id = (await eve.get("/v1/auth/me")).json["id"]
        key = await ask.with_key("crm", *(scopes or ("queues:read",)))
        for who, may in ((key, scopes), (eve, ()), (ask, None)):
            answers = {
                READ: [await who.get(CUSTOMERS), await who.get(f"{CUSTOMERS}/{account_id}")],
                OPERATE: [
                    await create(who, ADA, f"key-{may}"),
                    await edit(who, {"id": account_id, "revision": 0}, name=""),
                    await who.post(f"{CUSTOMERS}/{account_id}/password-tokens"),
                ],
            }
            for scope, given_answers in answers.items():
                for answer in given_answers:
                    allowed = may is not None and scope in may
                    assert answer.status in ((200, 201) if allowed else (401 if may is None else 403,)), scope


async def test_webhooks_hear_of_every_new_and_edited_customer(counter: OpenCounter) -> None:
    async with counter() as ask:
        shop = await ask.with_key("shop", READ, OPERATE, "webhooks:write")
        hook = {"url": "https://hooks.example.com/x", "events": ["customer.*"]}
        assert (await shop.post("/v1/webhooks/endpoints", hook)).status == 201
        customer = (await create(shop, ADA)).json
        await edit(shop, customer, name="Ada L.")
        await edit(shop, customer, name="Ada L.")
        await edit(shop, customer, name="stale")
        await create(shop, {**ADA, "email": "other@example.com"})
        await ask.registered("self@example.com")
        await ask.registered("self@example.com")
        rows = await ask.app.read.fetch(
            """
            select type, data ->> 'email', data ->> 'external_id', (data -> 'revision')::int
            from payonce.webhook_events, lateral (select convert_from(body, 'utf8')::jsonb -> 'data' as data) d
            order by created_at, id
            """
        )
        assert [tuple(row) for row in rows] == [
            ("customer.created", "ada@example.com", "crm-7", 0),
            ("customer.updated", "ada@example.com", "crm-7", 1),
            ("customer.created", "self@example.com", None, 0),
        ]


async def test_what_a_customer_can_do_a_merchant_can_do_on_their_behalf(shop: OpenShop) -> None:
    async with shop() as ask:
        key = await ask.with_key("shop", READ, OPERATE, CHARGE)
        customer = (await key.order(CUSTOMERS, ADA)).json
        of, query = {"account_id": customer["id"]}, f"account_id={customer['id']}"
        card = await key.post("/v1/payment-methods/", {"token": ask.house.gateway.tokenise(PAYS), **of})
        assert card.status == 201, card.body
        begun = await key.order("/v1/subscriptions", {"plan_id": "basic", **of})
        assert begun.status == 201, begun.body
        await ask.house.run()
        assert (await key.get(f"/v1/subscriptions/active?{query}")).json["state"] == "active"
        [invoice] = (await key.get(f"/v1/invoices?{query}")).json["invoices"]
        assert invoice["state"] == "paid"
        assert (await key.get(f"/v1/invoices/{invoice['id']}/pdf")).headers["content-type"] == "application/pdf"
        [method] = (await key.get(f"/v1/payment-methods/?{query}")).json["payment_methods"]
        assert (await key.post(f"/v1/payment-methods/{method['id']}/default?{query}")).status == 200
        used = await key.post("/v1/usage/use", {"feature_name": "api_calls", "event_id": "e-1", **of})
        assert used.json["used"] == 1
        assert (await key.get(f"/v1/entitlements/api_calls?{query}")).json["entitled"] is True
        granted = {"amount": "5.00", "currency": "AED", "reason": "an outage", "change": "add", **of}
        assert (await key.order("/v1/credit/adjustments", granted)).status == 202
        assert (await key.get(f"/v1/credit?{query}")).json["balances"][0]["balance"]["amount"] == "5.00"
        path = f"/v1/subscriptions/{begun.json['id']}"
        for change, body in (("change-plan", {"new_plan_id": "pro"}), ("cancel", {})):
            assert (await key.order(f"{path}/{change}", body)).status in (200, 202), change
            await ask.house.run()
        assert (await key.get(path)).json["cancel_at_period_end"] is True
        stranger = await key.order("/v1/subscriptions", {"plan_id": "basic", "account_id": "nobody"})
        assert stranger.status == 404
        assert await ask.house.broken() == {}


async def test_an_invoice_names_the_customer_as_they_were_when_it_was_issued(
    shop: OpenShop, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed: list[PrintedDocument] = []

    def to_pdf(printable: PrintedDocument, fonts: Fonts) -> bytes:
        printed.append(printable)
        return render.to_pdf(printable, fonts)

    monkeypatch.setattr(invoices, "to_pdf", to_pdf)
    async with shop() as ask:
        key = await ask.with_key("shop", READ, OPERATE)
        customer = (await key.order(CUSTOMERS, ADA)).json
        await key.order("/v1/subscriptions", {"plan_id": "basic", "account_id": customer["id"]})
        await ask.house.run()
        [invoice] = (await key.get(f"/v1/invoices?account_id={customer['id']}")).json["invoices"]
        before = await key.get(f"/v1/invoices/{invoice['id']}/pdf")
        await ask.house.s.clock.advance(60)
        customer = (await edit(key, customer, name="Countess Lovelace", locale="ar-AE")).json
        await edit(key, customer, email="countess@example.com")
        after = await key.get(f"/v1/invoices/{invoice['id']}/pdf")
        assert (after.status, after.body) == (200, before.body)
        assert [each.customer for each in printed] == [Party("Ada", ("ada@example.com",))] * 2
