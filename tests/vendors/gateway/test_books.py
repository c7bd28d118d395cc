"""The gateway's client against its simulator: cards, keys, refunds and the statement, by the gateway's own books."""

from pathlib import Path
from typing import Any

import pytest

from payonce.kit.http import HttpClient
from payonce.kit.money import Amount, well_known
from payonce.kit.outcomes import Invalid, Retry, Unavailable, Unknown
from payonce.testing.server import serving
from payonce.vendors.gateway.client import GatewayClient
from payonce.vendors.gateway.port import (
    KEYS_KEPT_S,
    CardToken,
    ChargeStatus,
    Declined,
    Gateway,
    GatewayRefused,
    LineKind,
    NotAllowed,
    StatementLine,
)
from payonce.vendors.gateway.simulator import GatewaySimulator
from tests.vendors.gateway.at import DECLINES, KEY, OTHER_CARD, PAYS, OpenGateway, at_gateway, order, refund_of

CARD: dict[str, Any] = {"number": PAYS, "exp_month": 12, "exp_year": 2030, "cvc": "123"}
DRAWS = 1_000


async def test_a_browser_hands_a_card_in_and_we_know_its_token_alone(open_gateway: OpenGateway) -> None:
    async with open_gateway(api_key=KEY) as at:
        assert isinstance(at.client, Gateway)
        answer = await at.http.request("POST", "/v1/tokens", json=CARD)
        token = answer.json()["id"]
        assert answer.status == 201
        assert await at.client.token(token) == CardToken(token, "visa", "4242", 12, 2030)
        assert PAYS not in answer.text()
        charge = await at.client.charge(order(token))
        assert (charge.status, charge.captured, charge.payment_method) == (ChargeStatus.SUCCEEDED, 2_900, token)
        assert charge.money == Amount(2_900, well_known("AED"))
        assert charge.created == at.clock.now
        assert await at.client.find_charge("inv-1:1") == charge
        assert await at.client.find_charge("inv-2:1") is None
        assert await at.client.token("pm_nobody") is None


@pytest.mark.parametrize(
    ("other", "code"),
    [
        ({"number": "4242424242424241"}, "invalid_number"),
        ({"number": 4242424242424242}, "invalid_number"),
        ({"number": "4242"}, "invalid_number"),
        ({"exp_month": 13}, "invalid_expiry"),
        ({"exp_year": 2025}, "invalid_expiry"),
        ({"exp_month": "12"}, "invalid_expiry"),
        ({"cvc": "12"}, "invalid_cvc"),
        ({"cvc": None}, "invalid_cvc"),
    ],
)
async def test_a_card_that_cannot_be_gets_no_token_and_is_not_said_back(other: dict[str, Any], code: str) -> None:
    async with at_gateway(False) as at:
        before = len(at.simulator.cards)
        answer = await at.http.request("POST", "/v1/tokens", json=CARD | other)
        assert (answer.status, answer.json()["error"]["code"]) == (400, code)
        assert "4242" not in answer.text()
        assert len(at.simulator.cards) == before


@pytest.mark.parametrize("code", DECLINES)
async def test_a_card_that_does_not_pay_is_declined_and_that_is_on_the_books(
    open_gateway: OpenGateway, code: str
) -> None:
    async with open_gateway() as at:
        token = at.simulator.tokenise(DECLINES[code])
        for _ in range(2):
            with pytest.raises(Declined) as declined:
                await at.client.charge(order(token))
            assert declined.value.code == code
        found = await at.client.find_charge("inv-1:1")
        assert found is not None
        assert (found.id, found.status, found.amount, found.captured) == (
            declined.value.charge_id,
            ChargeStatus.FAILED,
            2_900,
            0,
        )
        assert found.declined is not None
        assert found.declined.reason == declined.value.reason
        assert at.simulator.books.declines() == {code: 1}
        assert not at.simulator.books.captures_per_invoice()
        assert not (await at.client.statement()).lines


async def test_other_cards_pay_in_85_of_100_cases_by_seed_card_and_reference() -> None:
    def drawn(seed: int, number: str) -> list[str | None]:
        simulator = GatewaySimulator(seed=seed)
        token = simulator.tokenise(number)
        asked = {"amount": 100, "currency": "AED", "payment_method": token}
        ends = [simulator._charge(asked | {"reference": f"inv-{each}"}, simulator.now) for each in range(DRAWS)]
        return [made["charge"]["decline_code"] for _, _, made in ends]

    ends = drawn(7, OTHER_CARD)
    assert ends == drawn(7, OTHER_CARD)
    assert ends != drawn(8, OTHER_CARD)
    assert ends != drawn(7, "378282246310005")
    assert 0.80 * DRAWS < ends.count(None) < 0.90 * DRAWS
    assert set(ends) == {None, "insufficient_funds", "card_declined"}
    assert min(ends.count("insufficient_funds"), ends.count("card_declined")) > 0.04 * DRAWS


async def test_a_card_can_decline_twice_and_then_pay(open_gateway: OpenGateway) -> None:
    async with open_gateway() as at:
        at.simulator.script(at.token, "insufficient_funds", "card_declined")
        said = []
        for generation in (1, 1, 2, 2, 3):
            try:
                said.append((await at.client.charge(order(at.token, f"inv-1:{generation}"))).status.value)
            except Declined as declined:
                said.append(declined.code)
        assert said == ["insufficient_funds", "insufficient_funds", "card_declined", "card_declined", "succeeded"]
        assert at.simulator.books.captures_per_invoice() == {"inv-1": 1}


async def test_a_key_stands_for_one_order_and_its_answer(open_gateway: OpenGateway) -> None:
    async with open_gateway() as at:
        first = await at.client.charge(order(at.token))
        assert await at.client.charge(order(at.token)) == first
        for other in (order(at.token, amount=2_901), order(at.token, metadata={"invoice": "inv-9"})):
            with pytest.raises(Unknown, match="key_reuse"):
                await at.client.charge(other)
        with pytest.raises(Unknown, match="key_reuse"):
            await at.client.refund(refund_of(first.id, key="inv-1:1"))
        assert [*at.simulator.books.charges] == [first.id]
        assert not at.simulator.books.refunds


async def test_only_a_repeated_answer_says_that_it_is_one() -> None:
    async with at_gateway(False) as at:
        body = {"amount": 100, "currency": "AED", "payment_method": at.token, "reference": "r-1"}
        headers = {"Authorization": f"Bearer {KEY}", "Idempotency-Key": "k-1"}
        answers = [await at.http.request("POST", "/v1/charges", json=body, headers=headers) for _ in range(2)]
        assert answers[0].body == answers[1].body
        assert [each.headers.get("Idempotent-Replayed") for each in answers] == [None, "true"]


async def test_the_gateway_forgets_a_key_after_a_day_and_still_finds_the_charge(open_gateway: OpenGateway) -> None:
    async with open_gateway() as at:
        first = await at.client.charge(order(at.token))
        at.clock.advance(KEYS_KEPT_S - 1)
        assert await at.client.charge(order(at.token)) == first
        at.clock.advance(1)
        assert await at.client.find_charge("inv-1:1") == first
        again = await at.client.charge(order(at.token))
        assert again.id != first.id
        assert at.simulator.books.captures_per_invoice() == {"inv-1": 2}, "which an oracle must see"
        with pytest.raises(Unknown, match="2 captures"):
            await at.client.find_charge("inv-1:1")


async def test_refunds_never_exceed_what_was_captured(open_gateway: OpenGateway) -> None:
    async with open_gateway() as at:
        charge = await at.client.charge(order(at.token))
        first = await at.client.refund(refund_of(charge.id, "ref-1:1", 2_000))
        with pytest.raises(GatewayRefused, match="amount_too_large"):
            await at.client.refund(refund_of(charge.id, "ref-2:1", 901))
        await at.client.refund(refund_of(charge.id, "ref-3:1", 900))
        assert await at.client.find_refund("ref-1:1") == first
        assert await at.client.find_refund("ref-2:1") is None
        found = await at.client.find_charge("inv-1:1")
        assert found is not None
        assert (found.captured, found.refunded) == (2_900, 2_900)
        with pytest.raises(GatewayRefused, match="no_such_charge"):
            await at.client.refund(refund_of("ch_nobody", "ref-4:1"))
        with pytest.raises(Declined) as declined:
            await at.client.charge(order(at.simulator.tokenise(DECLINES["card_declined"]), "inv-2:1"))
        with pytest.raises(GatewayRefused, match="charge_failed"):
            await at.client.refund(refund_of(declined.value.charge_id or "", "ref-5:1"))
        assert at.simulator.books.refunded_total("AED") == Amount(2_900, well_known("AED"))


async def test_the_pages_of_the_statement_are_every_movement_once_and_in_order(open_gateway: OpenGateway) -> None:
    async with open_gateway() as at:
        for number in range(12):
            charge = await at.client.charge(order(at.token, f"inv-{number}:1", 100 + number))
            if number % 3 == 0:
                await at.client.refund(refund_of(charge.id, f"ref-{number}:1", 10 + number))
        lines: list[StatementLine] = []
        after, pages = None, 0
        while pages == 0 or after is not None:
            page = await at.client.statement(after, 5)
            after, pages = page.after, pages + 1
            lines += page.lines
        assert (pages, len(lines)) == (4, 16)
        assert [line.source for line in lines] == [line.source for line in at.simulator.books.lines]
        assert [line.kind for line in lines[:2]] == [LineKind.CHARGE, LineKind.REFUND]
        assert lines[1].money == Amount(-10, well_known("AED"))
        books = at.simulator.books
        total = Amount.total([line.money for line in lines], well_known("AED"))
        assert total == books.captured_total("AED") - books.refunded_total("AED")
        assert not (await at.client.statement(lines[-1].id)).lines
        for limit in (0, 101):
            with pytest.raises(Invalid, match="ask for 1 to 100"):
                await at.client.statement(None, limit)


async def test_exactly_a_page_is_the_last_page() -> None:
    async with at_gateway(False) as at:
        for number in range(5):
            await at.client.charge(order(at.token, f"inv-{number}:1"))
        page = await at.client.statement(None, 5)
        assert (len(page.lines), page.after) == (5, None)


async def test_a_wrong_key_is_told_apart_from_everything_else(open_gateway: OpenGateway) -> None:
    async with open_gateway(api_key=KEY) as at:
        stranger = GatewayClient(at.http, "sk_wrong")
        for asked in (stranger.charge(order(at.token)), stranger.statement(), stranger.token(at.token)):
            with pytest.raises(NotAllowed, match="unauthorized"):
                await asked
        assert not at.simulator.books.charges


async def test_amounts_are_whole_minor_units_of_any_exponent(open_gateway: OpenGateway) -> None:
    async with open_gateway() as at:
        for currency, amount in (("JPY", 1_000), ("KWD", 1_001), ("AED", 2**53 - 1)):
            charge = await at.client.charge(order(at.token, f"inv-{currency}:1", amount, currency=currency))
            assert charge.money == Amount(amount, well_known(currency))
        with pytest.raises(GatewayRefused, match="bad_request"):
            await at.client.charge(order(at.token, "inv-2:1", currency="ETH"))


async def test_the_books_the_cards_and_the_keys_outlive_the_process(tmp_path: Path) -> None:
    journal = tmp_path / "gateway.journal"

    def client(simulator: GatewaySimulator) -> GatewayClient:
        return GatewayClient(HttpClient("gateway", "https://gateway.example", transport=simulator), KEY)

    first = GatewaySimulator(journal)
    token, poor = first.tokenise(PAYS), first.tokenise(OTHER_CARD)
    charge = await client(first).charge(order(token))
    refund = await client(first).refund(refund_of(charge.id))
    first.script(poor, "card_declined", "expired_card")
    with pytest.raises(Declined):
        await client(first).charge(order(poor, "inv-2:1"))
    first.advance(3_600)
    first.take_down()
    with pytest.raises(Unavailable, match="another process"):
        GatewaySimulator(journal)
    first.close()
    assert PAYS not in journal.read_text()
    assert OTHER_CARD not in journal.read_text()
    with journal.open("ab") as torn:
        torn.write(b'{"event":"answered","key":"inv-3')

    again = GatewaySimulator(journal)
    assert (again.books, again.cards, again.outbox) == (first.books, first.cards, first.outbox)
    with pytest.raises(Retry, match="answered 503"):
        await client(again).find_charge("inv-1:1")
    again.bring_up()
    assert (await client(again).charge(order(token))).id == charge.id
    assert (await client(again).refund(refund_of(charge.id))).id == refund.id
    with pytest.raises(Declined, match="card_declined"):
        await client(again).charge(order(poor, "inv-2:1"))
    with pytest.raises(Declined, match="expired_card"):
        await client(again).charge(order(poor, "inv-3:1"))
    assert again.books.captured_total("AED").minor == 2_900
    again.close()


async def test_another_process_reads_the_books_and_turns_the_switches() -> None:
    simulator = GatewaySimulator(seed=1)
    token = simulator.tokenise(OTHER_CARD)
    async with serving(simulator) as url, HttpClient("gateway", url, allow_private=True) as http:
        client = GatewayClient(http, KEY)

        async def tell(path: str, **what: object) -> int:
            return (await http.request("POST", f"/simulator/{path}", json=what)).status

        assert await tell("cards", token=token, number=PAYS, script=["expired_card"]) == 200
        with pytest.raises(Declined, match="expired_card"):
            await client.charge(order(token))
        charge = await client.charge(order(token, "inv-1:2"))
        await client.refund(refund_of(charge.id))
        assert await tell("cards", token="pm_nobody", number=PAYS) == 400
        assert await tell("cards", token=token, number="4242") == 400
        assert await tell("cards", token=token, script=["explodes"]) == 400
        assert await tell("cards") == 400
        assert await tell("clock", advance_s=KEYS_KEPT_S) == 200
        assert (await client.charge(order(token, "inv-1:2"))).id != charge.id
        assert await tell("outage", down=True) == 200
        with pytest.raises(Unknown):
            await client.charge(order(token, "inv-2:1"))
        assert await tell("outage", down=False) == 200
        books = (await http.request("GET", "/simulator/books")).json()
    assert (books["captured"], books["refunded"]) == ({"AED": 5_800}, {"AED": 1_000})
    assert (books["captures_per_invoice"], books["captured_twice"]) == ({"inv-1": 2}, ["inv-1"])
    assert [each["status"] for each in books["charges"]] == ["failed", "succeeded", "succeeded"]
    assert (books["requests"], books["webhooks"]) == (5, {"made": 4, "waiting": 4})


async def test_what_took_time_says_so_and_nobody_waits_for_it() -> None:
    async with at_gateway(False) as at:
        for number in range(20):
            await at.client.charge(order(at.token, f"inv-{number}:1"))
        delays = {each.delay_ms for each in at.simulator.books.charges.values()}
    assert len(delays) > 10
    assert 500 <= min(delays) < max(delays) <= 3_000
