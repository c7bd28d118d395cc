"""Payments over HTTP: whose they are, once per key, and in the gateway's words when a card does not pay."""

import asyncio
from typing import Any

import pytest

from payonce.engine.controls import set_threshold
from payonce.kit.money import Amount
from payonce.kit.webhooks import signed_headers
from payonce.services.billing.payments.ledger import CAPTURED, CLEARING, ONE_OFF
from payonce.services.billing.payments.model import State
from payonce.services.billing.payments.store import transactions
from payonce.services.billing.scopes import CHARGE, OPERATE, READ
from payonce.testing import OpenStage
from tests.services.billing.payments.counter import GATEWAY_SECRET, Counter, open_counter
from tests.services.billing.payments.till import AED, DECLINES

DELIVERY = "/v1/webhooks/delivery"


async def test_a_payment_is_answered_with_its_end(stage: OpenStage) -> None:
    async with open_counter(stage) as counter:
        await counter.till.card()
        customer = counter.as_customer()
        async with counter.working():
            paid = await customer.pay(wait=10, description="a book")
        assert paid.status == 200
        assert (paid.json["state"], paid.json["amount"]["amount"], paid.json["description"]) == (
            "succeeded",
            "29.00",
            "a book",
        )
        again = await customer.pay(description="a book")
        assert (again.status, again.json["id"]) == (200, paid.json["id"])
        assert again.headers["idempotent-replayed"] == "true"
        till = counter.till
        assert till.gateway.books.captured_total("AED").minor == 2_900
        # It is nothing to subscriptions, neither in the books nor by webhook.
        assert (await till.balance(CLEARING), await till.balance(ONE_OFF), await till.balance(CAPTURED)) == (
            2_900,
            -2_900,
            0,
        )
        await till.run()
        assert [told["action"] for told in till.subscriptions.told] == ["payment_method"]
        assert await till.broken() == {}


async def test_a_declined_card_is_402_with_the_gateways_code_each_time(stage: OpenStage) -> None:
    async with open_counter(stage) as counter:
        await counter.till.card(DECLINES)
        customer = counter.as_customer()
        async with counter.working():
            first = await customer.pay(wait=10)
        again = await customer.pay()
        for answer in (first, again):
            assert answer.status == 402
            assert answer.problem["type"] == "urn:payonce:problem:payment-failed:card_declined"
            assert "The card was declined." in answer.problem["detail"]
        assert first.headers["location"] == again.headers["location"]
        assert len(counter.till.gateway.books.charges) == 1


async def test_one_that_takes_longer_is_202_and_found_later(stage: OpenStage) -> None:
    async with open_counter(stage) as counter:
        await counter.till.card()
        customer = counter.as_customer()
        pending = await customer.pay()
        assert (pending.status, pending.json["state"]) == (202, "pending")
        await counter.till.run()
        found = await customer("GET", pending.headers["location"])
        assert found.json["transaction"]["state"] == "succeeded"


async def test_a_card_that_is_named_is_charged_and_nobody_elses(stage: OpenStage) -> None:
    async with open_counter(stage) as counter:
        await counter.till.card()
        second = await counter.till.card()
        theirs = await counter.till.card(account_id="acc-2")
        customer = counter.as_customer()
        assert (await customer.pay("k1", payment_method_id=theirs.id)).status == 404
        made = await customer.pay("k2", payment_method_id=second.id)
        await counter.till.run()
        [charge] = counter.till.gateway.books.charges.values()
        assert charge.payment_method == second.token
        assert (await customer("GET", made.headers["location"])).json["transaction"]["payment_method_id"] == second.id


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"amount": "0"}, "above zero"),
        ({"amount": "1.001"}, "amount"),
        ({"currency": "ABC"}, "unknown currency ABC"),
        ({"currency": "BTC", "amount": "1"}, "unknown currency BTC"),
        ({"currency": "TON", "amount": "1"}, "unknown currency TON"),
        ({"amount": 29}, "body.amount"),
        ({"amount": "-1"}, "body.amount"),
        ({"tip": "1"}, "body.tip"),
        ({"description": "\x00"}, "body.description"),
    ],
)
async def test_what_cannot_be_paid_is_422_in_one_sentence(stage: OpenStage, fields: dict[str, Any], said: str) -> None:
    async with open_counter(stage) as counter:
        no = await counter.as_customer().pay(**fields)
        assert no.status == 422
        assert said in no.problem["detail"]


async def test_keys_name_the_account_and_customers_are_theirs(stage: OpenStage) -> None:
    async with open_counter(stage) as counter:
        key = await counter.as_key(CHARGE)
        assert (await key.pay("a")).status == 422
        assert (await key.pay("b", account_id="acc-1")).status == 202
        assert (await (await counter.as_key(READ)).pay("c", account_id="acc-1")).status == 403
        assert (await counter.as_customer().pay("d", account_id="acc-2")).status == 404
        assert (await counter.as_customer().pay("e", account_id="acc-1")).status == 202
        assert (await counter.pay("f")).status == 401


async def test_what_is_somebody_elses_is_not_there(stage: OpenStage) -> None:
    async with open_counter(stage) as counter:
        card = await counter.till.card()
        transaction = await counter.till.charged()
        event = f"charge-{transaction.id}"
        stranger, owner, operator = counter.as_customer("acc-2"), counter.as_customer(), counter.as_operator()
        for method, path in (
            ("GET", f"/v1/transactions/{transaction.id}"),
            ("GET", f"{DELIVERY}/{event}"),
            ("GET", "/v1/transactions?account_id=acc-1"),
            ("GET", "/v1/payment-methods/?account_id=acc-1"),
            ("DELETE", f"/v1/payment-methods/{card.id}"),
            ("POST", f"/v1/payment-methods/{card.id}/default"),
        ):
            assert (await stranger(method, path)).status == 404, path
            if method == "GET":
                assert (await owner(method, path)).status == 200, path
                assert (await operator(method, path)).status == 200, path
        assert (await stranger("GET", "/v1/transactions")).json["transactions"] == []


async def test_transactions_come_in_pages_the_newest_first(stage: OpenStage) -> None:
    async with open_counter(stage) as counter:
        await counter.till.card()
        for number in range(5):
            await counter.till.ask(f"inv-{number}")
            await counter.till.drain()
        customer, seen, after = counter.as_customer(), [], ""
        for _ in range(3):
            page = (await customer("GET", f"/v1/transactions?limit=2{after}")).json
            seen += [each["invoice_id"] for each in page["transactions"]]
            after = f"&after={page['next_after']}"
        assert seen == [f"inv-{number}" for number in (4, 3, 2, 1, 0)]
        assert page["next_after"] is None
        assert (await customer("GET", "/v1/transactions?state=failed")).json["transactions"] == []
        assert (await customer("GET", "/v1/transactions?state=lost")).status == 422


async def refund(counter: Counter, transaction_id: str, key: str, **body: Any) -> Any:
    body = {"reason": "a mistake", **body}
    return await counter("POST", f"/v1/transactions/{transaction_id}/refund", body, idempotency_key=key)


async def test_operators_give_back_once_per_key_and_within_the_charge(stage: OpenStage) -> None:
    async with open_counter(stage) as counter:
        await counter.till.card()
        transaction = await counter.till.charged()
        operator = counter.as_operator()
        first = await refund(operator, transaction.id, "k1", amount="9.00")
        again = await refund(operator, transaction.id, "k1", amount="9.00")
        assert (first.status, first.json) == (202, again.json)
        assert (await refund(operator, transaction.id, "k1", amount="8.00")).status == 422
        too_much = await refund(operator, transaction.id, "k2", amount="20.01")
        assert too_much.status == 422
        assert "20.00 AED of 29.00 AED is left" in too_much.problem["detail"]
        assert (await refund(operator, transaction.id, "k3")).json["refund"]["amount"]["amount"] == "20.00"
        await counter.till.run()
        timeline = (await operator("GET", f"/v1/transactions/{transaction.id}")).json
        assert timeline["transaction"]["state"] == "refunded"
        assert [each["state"] for each in timeline["refunds"]] == ["succeeded", "succeeded"]
        assert await counter.till.broken() == {}


async def test_what_went_back_outside_the_gateway_is_put_on_record_once_and_told(stage: OpenStage) -> None:
    async with open_counter(stage) as counter:
        await counter.till.card()
        transaction = await counter.till.charged()
        operator = counter.as_operator()
        first = await refund(operator, transaction.id, "k1", outside=True)
        again = await refund(operator, transaction.id, "k1", outside=True)
        assert (first.status, first.json) == (202, again.json)
        assert (first.json["refund"]["state"], first.json["refund"]["outside"]) == ("succeeded", True)
        twice = await refund(operator, transaction.id, "k2", outside=True)
        assert (twice.status, "0.00 AED of 29.00 AED is left" in twice.problem["detail"]) == (422, True)
        await counter.till.run()
        told = counter.till.subscriptions.told[-1]
        assert (told["action"], told["status"], told["amount"]) == ("refund", "success", "29.00")
        assert not counter.till.gateway.books.refunds
        assert await counter.till.broken() == {}


@pytest.mark.parametrize("outside", [False, True])
async def test_above_the_threshold_a_second_person_is_needed(stage: OpenStage, outside: bool) -> None:
    async with open_counter(stage) as counter:
        await counter.till.card()
        transaction = await counter.till.charged()
        async with counter.till.s.begin() as tx:
            await set_threshold(tx, Amount(1_000, AED), "ann")
        waits = await refund(counter.as_operator(), transaction.id, "k", amount="20.00", outside=outside)
        assert waits.status == 202
        assert waits.json["refund"] is None
        assert waits.json["approval"] is not None
        await counter.till.run()
        assert not counter.till.gateway.books.refunds
        little = await refund(counter.as_operator(), transaction.id, "l", amount="9.00", outside=outside)
        assert little.json["refund"]["outside"] is outside


async def test_what_came_back_as_credit_is_not_given_back(stage: OpenStage) -> None:
    async with open_counter(stage) as counter:
        await counter.till.card()
        transaction = await counter.till.charged()
        async with counter.till.s.begin() as tx:
            await transactions.record_credit(tx, transaction, 1_812)
        operator = counter.as_operator()
        for key, amount in (("k1", "29.00"), ("k2", "10.89")):
            refused = await refund(operator, transaction.id, key, amount=amount)
            assert refused.status == 422
            assert "10.88 AED is refundable" in refused.problem["detail"]
        assert (await refund(operator, transaction.id, "k3")).json["refund"]["amount"]["amount"] == "10.88"
        meant = await refund(operator, transaction.id, "k4", beyond_credit=True)
        assert (meant.status, "POST /v1/credit/payouts" in meant.problem["detail"]) == (422, True)
        await counter.till.run()
        shown = (await operator("GET", f"/v1/transactions/{transaction.id}")).json["transaction"]
        assert (shown["credited"]["amount"], shown["refunded"]["amount"]) == ("18.12", "10.88")


async def test_customers_give_nothing_back_themselves(stage: OpenStage) -> None:
    async with open_counter(stage) as counter:
        await counter.till.card()
        transaction = await counter.till.charged()
        assert (await refund(counter.as_customer(), transaction.id, "k")).status == 403
        assert (await refund(await counter.as_key(OPERATE), transaction.id, "k")).status == 403
        assert (await refund(counter.as_operator(), "nobody", "k")).status == 404
        no_key = await counter.as_operator()("POST", f"/v1/transactions/{transaction.id}/refund", {"reason": "r"})
        assert no_key.status == 400


async def test_cards_are_added_listed_chosen_and_removed(stage: OpenStage) -> None:
    async with open_counter(stage) as counter:
        customer = counter.as_customer()
        made = []
        for _ in range(2):
            token = counter.till.gateway.tokenise("4242424242424242")
            added = await customer("POST", "/v1/payment-methods/", {"token": token})
            assert added.status == 201
            made.append(added.json)
        assert set(made[0]) == {
            "id",
            "account_id",
            "brand",
            "last4",
            "exp_month",
            "exp_year",
            "is_default",
            "created_at",
        }
        chosen = await customer("POST", f"/v1/payment-methods/{made[1]['id']}/default")
        assert chosen.json["is_default"] is True
        assert (await customer("DELETE", f"/v1/payment-methods/{made[0]['id']}")).status == 204
        listed = (await customer("GET", "/v1/payment-methods/")).json["payment_methods"]
        assert [each["id"] for each in listed] == [made[1]["id"]]
        assert [told["metadata"]["payment_method_id"] for told in counter.till.subscriptions.told] == [
            made[0]["id"],
            made[1]["id"],
        ]
        assert (await customer("POST", "/v1/payment-methods/", {"token": "pm_nobody"})).status == 422


async def test_when_the_gateway_is_away_a_card_can_be_added_later(stage: OpenStage) -> None:
    async with open_counter(stage) as counter:
        token = counter.till.gateway.tokenise("4242424242424242")
        customer = counter.as_customer()
        counter.till.gateway.take_down()
        away = await customer("POST", "/v1/payment-methods/", {"token": token})
        assert away.status == 503
        counter.till.gateway.bring_up()
        counter.till.gateway._api_key = "another"
        assert (await customer("POST", "/v1/payment-methods/", {"token": token})).status == 503


async def test_how_a_notification_was_delivered_can_be_looked_up(stage: OpenStage) -> None:
    async with open_counter(stage) as counter:
        await counter.till.card()
        counter.till.subscriptions.answers = [500]
        transaction = await counter.till.charged()
        found = (await counter.as_customer()("GET", f"{DELIVERY}/charge-{transaction.id}")).json
        assert found["delivered_at"] is not None
        assert [(each["way"], each["response_code"]) for each in found["attempts"]] == [
            ("queued", 200),
            ("immediate", 500),
        ]
        assert (await counter.as_operator()("GET", f"{DELIVERY}/nobody")).status == 404


async def posted(counter: Counter, event_id: str, body: bytes, **other: str) -> Any:
    now = await counter.till.s.clock.now()
    headers = signed_headers([GATEWAY_SECRET], event_id, now, body) | other
    return await counter("POST", "/v1/webhooks/gateway", body, **headers)


async def test_only_the_gateway_is_heard(stage: OpenStage) -> None:
    async with open_counter(stage) as counter:
        body = b'{"type":"charge.updated","timestamp":"2026-01-01T00:00:00Z","data":{}}'
        assert (await posted(counter, "evt_1", body)).json == {"status": "ignored"}
        assert (await posted(counter, "evt_1", body, **{"webhook-signature": "v1,AAAA"})).status == 401
        assert (await posted(counter, "evt_1", body, **{"webhook-timestamp": "1"})).status == 400
        assert (await counter("POST", "/v1/webhooks/gateway", body)).status == 400
        assert (await posted(counter, "evt_2", b'{"type":"charge.succeeded"}')).status == 400
        assert (await posted(counter, "evt_3", b"no json")).status == 400
        twice = await posted(counter, "evt_4", body.replace(b'{"type"', b'{"type":"charge.failed","type"'))
        assert (twice.status, "duplicate name" in twice.problem["detail"]) == (400, True)


async def test_no_more_than_so_many_requests_wait(stage: OpenStage, monkeypatch: pytest.MonkeyPatch) -> None:
    from payonce.services.billing.payments.api import payment_completion

    monkeypatch.setattr(payment_completion, "WAITING_MAX", 0)
    monkeypatch.setattr(payment_completion, "WAIT_S", 50.0)
    async with open_counter(stage) as counter:
        await counter.till.card()
        async with asyncio.timeout(30):
            assert (await counter.as_customer().pay(wait=50)).status == 202
        await counter.till.run()
        assert (await counter.as_customer().pay(wait=10)).json["state"] == State.SUCCEEDED
