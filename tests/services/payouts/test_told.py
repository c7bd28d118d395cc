"""What others are told of payouts: customers' webhooks, the key metrics, and the routes that show them."""

import base64
import csv
import hmac
from collections.abc import Iterable
from pathlib import Path

import msgspec
import pytest

from payonce.app.process import App
from payonce.engine.janitors.gauges import refresh_metrics
from payonce.engine.messages.model import Message
from payonce.engine.monitoring.metrics import REGISTRY
from payonce.engine.webhooks import DELIVERIES, add_endpoint
from payonce.http.application import build_web
from payonce.http.server import listening
from payonce.kit.crypto import Keyring
from payonce.kit.http import HttpClient
from payonce.services.payouts import ROLES
from payonce.services.payouts.model import State
from payonce.services.payouts.policies import EXTERNAL, FOLLOW, KEEPING, QUEUES
from payonce.services.payouts.scopes import DECIDE, READ
from payonce.settings import load_settings
from payonce.testing import OpenStage, ScratchDatabase
from payonce.testing.faults import Fault, Script
from tests.http.client import WebClient
from tests.services.payouts.payouts_stage import KEY, Office, open_office, webhook


async def told(office: Office) -> list[tuple[str, str]]:
    rows = await office.s.owner.fetch("select type, body from payonce.webhook_events order by created_at, id")
    return [(row["type"], msgspec.json.decode(row["body"])["data"]["state"]) for row in rows]


async def listen(office: Office) -> None:
    keys = Keyring.from_text(f"k1:{base64.b64encode(bytes(range(32))).decode()}")
    await office.s.feed.declare([DELIVERIES])
    async with office.s.begin() as tx:
        await add_endpoint(tx, keys, url="https://hooks.example.com/x", events=["payout.*"], by="ada")


async def test_customers_hear_of_price_payment_and_end_in_the_same_commit(stage: OpenStage) -> None:
    async with open_office(stage) as office:
        await listen(office)
        taken = await office.order()
        await office.run()
        assert await told(office) == [("payout.priced", "priced")]
        [swap] = await office.swaps(taken)
        await office.pay(swap)
        await office.finish(swap)
        assert await told(office) == [
            ("payout.priced", "priced"),
            ("payout.paid", "paid_in"),
            ("payout.finished", "finished"),
        ]


async def test_customers_hear_of_what_is_held_once(stage: OpenStage) -> None:
    async with open_office(stage) as office:
        await listen(office)
        await office.order(wallet_address="bc1p0xlxvlhemja6c4dqv22uapctqupfhlxm9h8z3k2e72q4k9hcz7vqzk5jj0")
        await office.run()
        assert await told(office) == [("payout.priced", "priced"), ("payout.held", "held")]


def _reaching(port: int) -> HttpClient:
    return HttpClient("payonce", f"http://127.0.0.1:{port}", allow_private=True)


def sample(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


def total(name: str, having: Iterable[tuple[str, str]] = ()) -> float:
    return sum(
        each.value
        for family in REGISTRY.collect()
        for each in family.samples
        if each.name == name and set(having) <= set(each.labels.items())
    )


async def test_the_depth_of_every_queue_is_measured(stage: OpenStage) -> None:
    queues = [*QUEUES, KEEPING, FOLLOW, EXTERNAL]
    assert {each.policy.queue for handlers in ROLES.values() for each in handlers} == {each.queue for each in queues}
    async with open_office(stage, roles=("swapper",)) as office:
        await office.s.feed.declare(queues)
        for count, policy in enumerate(queues, start=1):
            await office.s.feed.put([Message(queue=policy.queue, payload={}) for _ in range(count)])
        await refresh_metrics(office.s.database, office.s.admin)
        depths = [total("payonce_queue_depth", [("queue", each.queue)]) for each in queues]
        assert depths == [float(count) for count in range(1, len(queues) + 1)]


async def test_retries_are_counted(stage: OpenStage) -> None:
    queue = ("queue", "gcsplit-usdt-eth-estimate-queue")
    before = total("payonce_retries_total", [queue])
    async with open_office(stage, Script([Fault.ERROR_BEFORE])) as office:
        await office.order()
        await office.run()
    assert total("payonce_retries_total", [queue]) == before + 1


async def test_rows_written_are_counted(stage: OpenStage) -> None:
    tables = ("split_payout_request", "split_payout_que")
    before = [sample("payonce_db_writes_total", table=table, outcome="ok") for table in tables]
    async with open_office(stage) as office:
        await office.order()
        await office.run()
    after = [sample("payonce_db_writes_total", table=table, outcome="ok") for table in tables]
    assert [late - early for late, early in zip(after, before, strict=True)] == [1.0, 1.0]


async def test_rows_that_cannot_be_written_are_counted_too(stage: OpenStage) -> None:
    before = sample("payonce_db_writes_total", table="split_payout_request", outcome="error")
    async with open_office(stage) as office:
        await office.s.owner.execute("alter table payouts.split_payout_request add constraint shut check (false)")
        taken = await office.order()
        await office.run(30.0)
        assert await office.state(taken) is State.RECEIVED
    assert sample("payonce_db_writes_total", table="split_payout_request", outcome="error") == before + 1


async def test_the_time_of_an_order_at_the_exchange_is_measured(stage: OpenStage) -> None:
    before = sample("payonce_vendor_seconds_count", kind="changenow.create", call="perform")
    async with open_office(stage) as office:
        await office.order()
        await office.run()
    assert sample("payonce_vendor_seconds_count", kind="changenow.create", call="perform") == before + 1


async def test_the_routes_show_quote_and_let_decide(
    scratch: ScratchDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", scratch.service_url)
    monkeypatch.setenv("PAYONCE_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("SUCCESS_URL_SIGNING_KEY", base64.b64encode(KEY).decode())
    monkeypatch.setenv("TPS_HOSTPAY_SIGNING_KEY", base64.b64encode(KEY).decode())
    async with App.open(load_settings(), ["payouts.orchestrator"]) as app:
        ask = WebClient(app, build_web(app), scratch)
        ada = await ask.as_holder("ada", READ, DECIDE)
        body = webhook(await app.read.fetchval("select payonce.due_now()"))
        signature = hmac.new(base64.b64encode(KEY), body, "sha256").hexdigest()
        made = (await ask("POST", "/", body=body, headers={"x_webhook_signature": signature})).json
        quote = await ada.get("/quote?price=100.00&payout_currency=BTC&payout_network=btc")
        assert quote.status == 200, quote.body
        assert (quote.json["fee_usdt"], quote.json["value_eth"]) == ("3.000000", "0.038800000000000000")
        assert (quote.json["accumulates"], quote.json["client_gets"]) == (False, "0.00151200")
        small = (await ada.get("/quote?price=2&payout_currency=btc&payout_network=btc")).json
        assert (small["accumulates"], small["client_gets"]) == (True, None)
        assert "minimum" in small["reason"]
        large = await ada.get("/quote?subscription_price=900000&payout_currency=btc&payout_network=btc")
        assert (large.status, large.json["client_gets"], large.json["maximum_eth"]) == (200, None, "200")
        assert "maximum: it would be paid in 2 parts" in large.json["reason"]
        larger = (await ada.get("/quote?price=90000000&payout_currency=btc&payout_network=btc")).json
        assert "review" in larger["reason"]
        assert quote.json["reason"] is None
        for prices in ("", "price=1&subscription_price=1&", "subscription_price=x&"):
            assert (await ada.get(f"/quote?{prices}payout_currency=btc&payout_network=btc")).status == 422
        assert (await ada.get("/quote?price=0&payout_currency=btc&payout_network=btc")).status == 422
        path = f"/v1/payouts/{made['payout_id']}"
        [listed] = (await ada.get("/v1/payouts?state=received")).json["payouts"]
        shown = (await ada.get(path)).json
        assert shown == {**listed, "swaps": []}
        decision = {"verdict": "hold", "revision": shown["revision"], "note": "let me look"}
        for note in ("\x00", "a\x00b", "\x1b", "\x7f", "two\nlines", "", " "):
            refused = await ada.post(f"{path}/decide", {**decision, "note": note}, idempotency_key="k0")
            assert refused.status == 422, repr(note)
            assert "note" in str(refused.problem)
        assert (await ada.post(f"{path}/decide", decision, idempotency_key="k1")).json["state"] == "held"
        assert (await ada.post(f"{path}/decide", decision, idempotency_key="k2")).status == 409
        now = {**decision, "verdict": "refund", "revision": shown["revision"] + 1}
        assert (await ada.post(f"{path}/decide", now, idempotency_key="k3")).json["state"] == "refunded"
        assert (await ada.post(f"{path}/decide", {**now, "revision": 2}, idempotency_key="k4")).status == 422
        assert (await ada.get("/v1/payouts/accumulated")).json == []
        async with listening(app, "127.0.0.1", 0) as port, _reaching(port) as http:
            table = (await http.request("GET", "/v1/payouts/statement.csv", headers=ada.headers)).body.decode()
        assert [row[7] for row in csv.reader(table.splitlines())] == ["state", "refunded"]
        assert (await ask.get(path)).status == 401
        assert (await (await ask.as_holder("bob", READ)).post(f"{path}/decide", now, idempotency_key="x")).status == 403
