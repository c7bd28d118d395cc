"""Every row of the table of answers: statuses and bodies that the gateway, or whoever stands before it, may give."""

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from payonce.kit.http import HttpClient
from payonce.kit.outcomes import NotSent, Outcome, Refused, Retry, Unknown
from payonce.kit.redact import redact
from payonce.vendors.gateway.client import GatewayClient
from payonce.vendors.gateway.port import (
    AMOUNT_MAX,
    Charge,
    DeclineCode,
    Declined,
    GatewayRefused,
    NotAllowed,
    RefusalCode,
)
from tests.vendors.changenow.test_answers import Answering
from tests.vendors.changenow.test_any_answer import anything, scalars
from tests.vendors.gateway.at import KEY, PAYS, QUESTIONS, order, questions, refund_of

ORDERS = ("charge", "refund")
TOKEN = "pm_0123456789ab"


async def ask(name: str, answering: Answering) -> Any:
    """The answer, or how it ended without one."""
    async with HttpClient("gateway", "https://gateway.example", transport=answering) as http:
        client = GatewayClient(http, KEY)
        try:
            if name == "charge":
                return await client.charge(order(TOKEN))
            if name == "refund":
                return await client.refund(refund_of("ch_1"))
            return await questions(TOKEN)[name](client)
        except Outcome as outcome:
            return outcome


def no(code: str, message: str = "because", **other: Any) -> dict[str, Any]:
    return {"error": {"type": "card_error", "code": code, "message": message, **other}}


def charged(**other: Any) -> dict[str, Any]:
    return {
        "id": "ch_1",
        "status": "succeeded",
        "amount": 2_900,
        "amount_captured": 2_900,
        "amount_refunded": 0,
        "currency": "AED",
        "payment_method": TOKEN,
        "reference": "inv-1:1",
        "created": 1_769_860_800,
        "of_next_year": [1.5],
    } | other


def refunded(**other: Any) -> dict[str, Any]:
    return {
        "id": "re_1",
        "charge": "ch_1",
        "amount": 1_000,
        "currency": "AED",
        "reference": "ref-1:1",
        "created": 1_769_860_800,
    } | other


@pytest.mark.parametrize("code", [*DeclineCode, "do_not_honor"])
async def test_a_declined_card_has_the_gateways_code_and_says_whether_another_card_is_needed(code: str) -> None:
    said = await ask("charge", Answering(402, no(code, "No.", charge="ch_7", reference="inv-1:1")))
    assert type(said) is Declined
    assert isinstance(said, Refused)
    assert (said.code, said.charge_id, said.message) == (code, "ch_7", "No.")
    assert said.hard is (code in ("expired_card", "invalid_cvv"))


@pytest.mark.parametrize("code", [*DeclineCode, "do_not_honor"])
@pytest.mark.parametrize("charge_id", ["ch_7", None])
def test_a_declined_card_is_read_again_from_the_reason_that_a_record_keeps(code: str, charge_id: str | None) -> None:
    said = Declined(code, "The card [of 12/27]: no.", charge_id)
    again = Declined.read(Refused(redact(said.reason)))
    assert again is not None
    assert (again.code, again.hard, again.charge_id, again.message) == (code, said.hard, charge_id, said.message)
    assert Declined.read(said) is said


@pytest.mark.parametrize(
    "other", [GatewayRefused("no_such_charge", "There is none [ch_7]"), Refused("frozen: declined (x) y [z]")]
)
def test_a_refusal_of_another_kind_is_no_declined_card(other: Refused) -> None:
    assert Declined.read(other) is None


@pytest.mark.parametrize(
    "body",
    [b"<html>Payment Required</html>", no("card_declined", reference="inv-2:1"), no("Not a code!"), b'{"error":{"co'],
    ids=["a proxy's", "about another charge", "no code", "cut"],
)
async def test_a_402_that_is_no_word_about_this_charge_leaves_it_open(body: Any) -> None:
    assert type(await ask("charge", Answering(402, body))) is Unknown


async def test_a_refund_cannot_be_declined() -> None:
    assert type(await ask("refund", Answering(402, no("card_declined")))) is Unknown


@pytest.mark.parametrize("name", ORDERS)
@pytest.mark.parametrize(("status", "code"), [(400, "bad_request"), (404, "no_such_charge"), (422, "amount_too_large")])
async def test_a_definite_no_has_the_gateways_word_for_it(name: str, status: int, code: str) -> None:
    said = await ask(name, Answering(status, no(code, "Too much.")))
    assert type(said) is GatewayRefused
    assert (said.code, said.reason) == (code, f"refused ({code}): Too much.")


@pytest.mark.parametrize("name", [*QUESTIONS, *ORDERS])
@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize("body", [no("unauthorized"), b"<html>Access denied</html>"], ids=["json", "html"])
async def test_a_key_that_is_not_taken_says_nothing_of_the_charge(name: str, status: int, body: Any) -> None:
    """NotSent, not Refused: an earlier try of the same order may have charged."""
    said = await ask(name, Answering(status, body))
    assert type(said) is NotAllowed
    assert isinstance(said, NotSent)
    assert "check GATEWAY_API_KEY" in said.reason


@pytest.mark.parametrize("name", [*QUESTIONS, *ORDERS])
@pytest.mark.parametrize("status", [200, 201, 301, 404, 408, 409, 500, 502, 503, 504])
@pytest.mark.parametrize("body", [b"<html>nginx</html>", b"", b'{"error":{"code":"no_su'], ids=["html", "empty", "cut"])
async def test_what_is_no_word_of_the_gateway_decides_nothing(name: str, status: int, body: Any) -> None:
    said = await ask(name, Answering(status, body))
    assert type(said) is (Unknown if name in ORDERS else Retry)


@pytest.mark.parametrize("name", ORDERS)
async def test_a_key_of_another_order_is_for_a_person(name: str) -> None:
    said = await ask(name, Answering(409, no("key_reuse")))
    assert type(said) is Unknown
    assert "key_reuse" in said.reason


@pytest.mark.parametrize("name", [*QUESTIONS, *ORDERS])
async def test_too_many_requests_were_not_sent_and_questions_say_when_to_ask_again(name: str) -> None:
    said = await ask(name, Answering(429, b"Too Many Requests", retry_after="12"))
    assert type(said) is (NotSent if name in ORDERS else Retry)
    assert getattr(said, "after_s", 12.0) == 12.0


OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "another amount": ("charge", charged(amount=2_901, amount_captured=2_901)),
    "another currency": ("charge", charged(currency="KWD")),
    "another card": ("charge", charged(payment_method="pm_2")),
    "another reference": ("charge", charged(reference="inv-2:1")),
    "less captured than ordered": ("charge", charged(amount_captured=1_000)),
    "a failure called created": ("charge", charged(status="failed", amount_captured=0)),
    "a status of next year": ("charge", charged(status="processing")),
    "an amount with decimals": ("charge", charged(amount=2_900.5)),
    "an amount as text": ("charge", charged(amount="2900")),
    "more refunded than captured": ("charge", charged(amount_refunded=2_901)),
    "no id": ("charge", charged(id="")),
    "no moment": ("charge", charged(created=-1)),
    "milliseconds": ("charge", charged(created=1_769_860_800_000)),
    "another amount given back": ("refund", refunded(amount=999)),
    "another charge given back": ("refund", refunded(charge="ch_2")),
    "another currency given back": ("refund", refunded(currency="USD")),
    "another refund": ("refund", refunded(reference="ref-2:1")),
}


@pytest.mark.parametrize("case", OTHERS)
async def test_an_order_is_believed_only_when_the_answer_is_about_it(case: str) -> None:
    name, body = OTHERS[case]
    said = await ask(name, Answering(201, body))
    assert type(said) is Unknown
    assert "may have happened" in said.reason


async def test_of_several_charges_under_a_reference_the_one_that_captured_counts() -> None:
    failed = charged(id="ch_0", status="failed", amount_captured=0, failure_code="card_declined")
    for data, wanted in (
        ([failed, charged()], "ch_1"),
        ([charged(), failed | {"id": "ch_2"}], "ch_1"),
        ([failed, failed | {"id": "ch_2"}], "ch_2"),
    ):
        said = await ask("find_charge", Answering(200, {"data": data, "has_more": False}))
        assert said.id == wanted
    declined = said.declined
    assert (declined.code, declined.charge_id) == ("card_declined", "ch_2")
    twice = {"data": [charged(), charged(id="ch_2")], "has_more": False}
    assert type(await ask("find_charge", Answering(200, twice))) is Unknown
    many = {"data": [failed], "has_more": True}
    assert type(await ask("find_charge", Answering(200, many))) is Unknown
    both = {"data": [refunded(), refunded(id="re_2")], "has_more": False}
    assert type(await ask("find_refund", Answering(200, both))) is Unknown


async def test_what_was_found_must_be_what_was_asked_for() -> None:
    for name, other in (("find_charge", charged(reference="inv-2:1")), ("find_refund", refunded(reference="r"))):
        said = await ask(name, Answering(200, {"data": [other], "has_more": False}))
        assert type(said) is Retry
    shown = {"id": "pm_2", "brand": "visa", "last4": "4242", "exp_month": 12, "exp_year": 2030}
    assert type(await ask("token", Answering(200, shown))) is Retry
    assert type(await ask("token", Answering(200, shown | {"id": TOKEN, "last4": PAYS}))) is Retry
    assert (await ask("token", Answering(200, shown | {"id": TOKEN}))).last4 == "4242"


async def test_a_token_is_unknown_only_by_the_gateways_word() -> None:
    assert await ask("token", Answering(404, no(RefusalCode.NO_SUCH_TOKEN))) is None
    assert type(await ask("token", Answering(404, b"404 page not found"))) is Retry


@pytest.mark.parametrize("name", [*QUESTIONS, *ORDERS])
@pytest.mark.parametrize("status", [200, 201, 400, 402, 403, 422, 503])
async def test_a_card_number_and_a_key_that_are_said_back_reach_no_error(name: str, status: int) -> None:
    spoken = f"card {PAYS} and 4242 4242 4242 4242, Bearer {KEY}, cvc=123 {'y' * 9_000}"
    document = no("card_declined", spoken) | charged(status=PAYS) | {"data": spoken, "id": spoken}
    for body in (spoken.encode(), document):
        said = await ask(name, Answering(status, body))
        text = f"{said!r} {said} {getattr(said, 'reason', '')}"
        assert PAYS not in text
        assert "4242 4242" not in text
        assert KEY not in text
        assert "123" not in text.replace("pm_0123456789ab", "")
        assert len(text) < 2_000


async def test_nothing_that_looks_like_a_card_number_is_ever_sent() -> None:
    answering = Answering(201, charged())
    async with HttpClient("gateway", "https://gateway.example", transport=answering) as http:
        client = GatewayClient(http, KEY)
        for handed_in in (PAYS, "4242 4242 4242 4242", "../charges", "", "pm_" + "a" * 500):
            assert await client.token(handed_in) is None
            with pytest.raises(GatewayRefused, match="no_such_payment_method") as refused:
                await client.charge(order(handed_in))
            assert not handed_in or handed_in not in refused.value.reason
    assert not answering.asked


@pytest.mark.parametrize(
    "other",
    [
        {"amount": 0},
        {"amount": -1},
        {"amount": AMOUNT_MAX + 1},
        {"amount": True},
        {"amount": 1.5},
        {"key": ""},
        {"reference": "r" * 201},
        {"key": "k\n"},
        {"metadata": {"note": "x" * 201}},
    ],
)
async def test_an_order_that_could_never_be_carried_out_is_refused_before_it_is_sent(other: dict[str, Any]) -> None:
    answering = Answering(201, charged())
    async with HttpClient("gateway", "https://gateway.example", transport=answering) as http:
        with pytest.raises(GatewayRefused, match="bad_request"):
            await GatewayClient(http, KEY).charge(order(TOKEN, **{"reference": "inv-1:1"} | other))
    assert not answering.asked


async def test_a_charge_goes_out_with_the_key_and_the_same_body_whatever_the_order_of_its_metadata() -> None:
    answering = Answering(201, charged())
    async with HttpClient("gateway", "https://gateway.example", transport=answering) as http:
        client = GatewayClient(http, KEY)
        for metadata in ({"a": "1", "b": "2"}, {"b": "2", "a": "1"}):
            await client.charge(order(TOKEN, metadata=metadata))
    (scope, body), (_, again) = answering.asked
    assert body == again
    assert json.loads(body) == {
        "amount": 2_900,
        "currency": "AED",
        "payment_method": TOKEN,
        "reference": "inv-1:1",
        "metadata": {"a": "1", "b": "2"},
    }
    assert (b"idempotency-key", b"inv-1:1") in scope["headers"]
    assert (b"authorization", f"Bearer {KEY}".encode()) in scope["headers"]


@pytest.mark.parametrize(("status", "kind"), [(201, "ok"), (402, "refused"), (429, "resting"), (503, "error")])
async def test_whoever_watches_is_told_of_every_request(status: int, kind: str) -> None:
    told: list[tuple[str, str, float]] = []
    async with HttpClient("gateway", "https://gateway.example", transport=Answering(status, b"{}")) as http:
        client = GatewayClient(http, KEY, watch=lambda *each: told.append(each))
        for asked in (client.charge(order(TOKEN)), client.find_charge("inv-1:1")):
            with pytest.raises(Outcome):
                await asked
    assert [each[:2] for each in told] == [("charge", kind), ("find_charge", kind)]


def with_others(document: dict[str, Any]) -> st.SearchStrategy[Any]:
    return st.dictionaries(st.sampled_from([*document]), scalars, max_size=3).map(lambda other: document | other)


documents = st.one_of(
    anything,
    with_others(charged()),
    with_others(refunded()),
    with_others(charged()).map(lambda each: {"data": [each], "has_more": False}),
    anything.map(lambda each: {"data": [each], "has_more": False}),
    with_others(no("card_declined")["error"]).map(lambda each: {"error": each}),
)
bodies = st.one_of(documents.map(lambda body: json.dumps(body).encode()), st.binary(max_size=60))
statuses = st.sampled_from([200, 200, 201, 201, 204, 302, 400, 401, 402, 404, 409, 422, 429, 500, 503])


@given(name=st.sampled_from([*QUESTIONS, *ORDERS]), status=statuses, body=bodies)
def test_any_answer_is_a_value_or_the_one_right_error(name: str, status: int, body: bytes) -> None:
    said = asyncio.run(ask(name, Answering(status, body)))
    if status == 401:
        assert type(said) is NotAllowed
    elif isinstance(said, Refused):
        assert name in ORDERS
        assert type(said) is (Declined if status == 402 else GatewayRefused)
        assert status in (400, 402, 404, 422)
    elif isinstance(said, Outcome):
        assert type(said) in ((NotSent if status == 429 else Unknown, Unknown) if name in ORDERS else (Retry,))
        assert len(said.reason) < 1_000
    elif isinstance(said, Charge):
        assert (type(said.amount), said.captured <= said.amount) == (int, True)
        assert name != "charge" or said.amount == 2_900
