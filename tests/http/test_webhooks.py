"""Webhooks over HTTP: secrets shown once, tenants kept apart, what was told and told again."""

from uuid import UUID

from payonce.engine.webhooks import announce, secrets_in_force
from tests.http.client import WebClient
from tests.http.conftest import OpenWeb

ENDPOINTS = "/v1/webhooks/endpoints"
WANTED = {"url": "https://hooks.example.com/path-that-is-a-secret", "events": ["order.*"], "description": "the shop"}
SCOPES = ("webhooks:read", "webhooks:write")


async def announced(ask: WebClient, tenant: str) -> str:
    async with ask.app.begin() as tx:
        return await announce(tx, "order.paid", {"order": 7}, tenant=tenant)


async def test_an_endpoint_is_added_and_its_secret_shown_this_once(web: OpenWeb) -> None:
    async with web() as ask:
        shop = await ask.as_holder("shop", *SCOPES, tenant="acme")
        made = await shop.post(ENDPOINTS, WANTED)
        assert (made.status, made.json["tenant"], made.json["created_by"]) == (201, "acme", "shop")
        keys = ask.app.settings.keyring()
        assert keys is not None
        [secret] = await secrets_in_force(ask.app.read, keys, UUID(made.json["id"]))
        assert made.json["secret"] == secret.reveal()
        listed = await shop.get(ENDPOINTS)
        shown = await shop.get(f"{ENDPOINTS}/{made.json['id']}")
        assert listed.json["endpoints"] == [shown.json]
        for hidden in (made.json["secret"], "path-that-is-a-secret"):
            assert hidden not in (listed.body + shown.body).decode()


async def test_a_tenant_neither_sees_nor_steers_anothers(web: OpenWeb) -> None:
    async with web() as ask:
        acme = await ask.as_holder("shop", *SCOPES, tenant="acme")
        zenith = await ask.as_holder("shop", *SCOPES, tenant="zenith")
        made = (await acme.post(ENDPOINTS, WANTED)).json["id"]
        await announced(ask, "acme")
        [delivery] = (await acme.get(f"{ENDPOINTS}/{made}/deliveries")).json["deliveries"]
        one, other = f"{ENDPOINTS}/{made}", f"/v1/webhooks/deliveries/{delivery['id']}"
        assert [(await zenith.get(path)).status for path in (one, f"{one}/deliveries", other)] == [404] * 3
        reason = {"reason": "x"}
        for path, body in (
            (f"{one}/disable", reason),
            (f"{one}/enable", None),
            (f"{one}/rotate", {}),
            (f"{other}/replay", reason),
        ):
            assert (await zenith.post(path, body)).status == 404, path
        assert (await zenith.get(ENDPOINTS)).json["endpoints"] == []
        assert (await zenith.post(ENDPOINTS, {**WANTED, "tenant": "acme"})).problem["status"] == 400
        house = await ask.as_holder("ada", *SCOPES)
        assert [each["id"] for each in (await house.get(ENDPOINTS)).json["endpoints"]] == [made]


async def test_a_delivery_is_shown_and_replayed(web: OpenWeb) -> None:
    async with web() as ask:
        shop = await ask.as_holder("shop", *SCOPES, tenant="acme")
        made = (await shop.post(ENDPOINTS, WANTED)).json["id"]
        event = await announced(ask, "acme")
        [delivery] = (await shop.get(f"{ENDPOINTS}/{made}/deliveries?state=pending&event_id={event}")).json[
            "deliveries"
        ]
        again = await shop.post(f"/v1/webhooks/deliveries/{delivery['id']}/replay", {"reason": "they lost it"})
        assert again.json["replay_of"] == delivery["id"]
        timeline = (await shop.get(f"/v1/webhooks/deliveries/{again.json['delivery']}")).json
        assert (timeline["event_id"], timeline["state"], timeline["tries"]) == (event, "pending", [])
        page = (await shop.get(f"{ENDPOINTS}/{made}/deliveries?limit=1")).json
        rest = (await shop.get(f"{ENDPOINTS}/{made}/deliveries?limit=1&before={page['next_before']}")).json
        assert {each["id"] for each in page["deliveries"] + rest["deliveries"]} == {delivery["id"], timeline["id"]}


async def test_an_endpoint_rests_wakes_and_changes_its_secret(web: OpenWeb) -> None:
    async with web() as ask:
        shop = await ask.as_holder("shop", *SCOPES)
        made = (await shop.post(ENDPOINTS, WANTED)).json
        path = f"{ENDPOINTS}/{made['id']}"
        assert (await shop.post(f"{path}/disable", {"reason": "we move"})).json["state"] == "disabled"
        assert "already" in (await shop.post(f"{path}/disable", {"reason": "again"})).problem["detail"]
        assert (await shop.post(f"{path}/enable")).json["reason"] is None
        rotated = (await shop.post(f"{path}/rotate", {"overlap_s": 60})).json
        keys = ask.app.settings.keyring()
        assert keys is not None
        in_force = [secret.reveal() for secret in await secrets_in_force(ask.app.read, keys, UUID(made["id"]))]
        assert in_force == [rotated["secret"], made["secret"]]


async def test_addresses_inside_the_house_are_refused(web: OpenWeb) -> None:
    async with web() as ask:
        shop = await ask.as_holder("shop", *SCOPES, tenant="acme")
        for url in ("http://hooks.example.com", "https://127.0.0.1/x", "https://[::1]/", "ftp://x", "no address"):
            assert (await shop.post(ENDPOINTS, {**WANTED, "url": url})).problem["status"] == 400, url
        assert (await shop.get(ENDPOINTS)).json["endpoints"] == []
