"""Every row of the table of answers: statuses and bodies that the vendor, or whoever stands before it, may give."""

import json
from decimal import Decimal
from typing import Any

import pytest

from payonce.kit.http import HttpClient
from payonce.kit.outcomes import NotSent, Outcome, Retry, Unknown
from payonce.testing.faults import Fault
from payonce.vendors.changenow.client import ChangeNowClient
from payonce.vendors.changenow.port import Code, ExchangeRefused, Pair, Status
from tests.vendors.banks import BankClock
from tests.vendors.changenow.at import ETH_BTC, QUESTIONS, USDT_ETH, OpenChangeNow, order, questions


class Answering:
    """An application that says one thing to everybody."""

    def __init__(self, status: int, body: Any, **headers: str) -> None:
        self.status = status
        self.body = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.headers = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
        self.asked: list[Any] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.asked.append((scope, (await receive())["body"]))
        await send({"type": "http.response.start", "status": self.status, "headers": self.headers})
        await send({"type": "http.response.body", "body": self.body})


async def ask(name: str, answering: Answering) -> Any:
    """The answer, or how it ended without one."""
    async with HttpClient("changenow", "https://changenow.example", transport=answering) as http:
        client = ChangeNowClient(http, "k-secret")
        try:
            if name == "create":
                return await client.create(order())
            return await questions("0123456789abcd", BankClock())[name](client)
        except Outcome as outcome:
            return outcome


def no(code: str, message: str = "because") -> dict[str, str]:
    return {"error": code, "message": message}


REFUSALS = {
    "out_of_range": Code.TOO_SMALL,
    "deposit_too_small": Code.TOO_SMALL,
    "less_min_amount": Code.TOO_SMALL,
    "max_amount_exceeded": Code.TOO_LARGE,
    "not_valid_address": Code.BAD_ADDRESS,
    "not_valid_refund_address": Code.BAD_REFUND_ADDRESS,
    "pair_is_inactive": Code.PAIR_INACTIVE,
    "not_valid_params": Code.OTHER,
    "a_code_of_next_year": Code.OTHER,
}


@pytest.mark.parametrize("name", ["estimate", "create"])
@pytest.mark.parametrize("code", REFUSALS)
async def test_a_definite_no_has_the_vendors_word_for_it(name: str, code: str) -> None:
    said = await ask(name, Answering(400, no(code, "Amount is less then minimal: 0.002 ETH")))
    assert isinstance(said, ExchangeRefused)
    assert (said.code, said.reason) == (REFUSALS[code], f"{code}: Amount is less then minimal: 0.002 ETH")


async def test_out_of_range_may_also_be_too_much() -> None:
    said = await ask("estimate", Answering(400, no("out_of_range", "Amount is more than maximal: 200 ETH")))
    assert isinstance(said, ExchangeRefused)
    assert said.code is Code.TOO_LARGE


@pytest.mark.parametrize("name", [*QUESTIONS, "create"])
@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize("body", [no("unauthorized"), b"<html>Access denied</html>"], ids=["json", "html"])
async def test_a_key_that_is_not_taken_is_told_apart_from_the_payout(name: str, status: int, body: Any) -> None:
    said = await ask(name, Answering(status, body))
    assert isinstance(said, ExchangeRefused)
    assert said.code is Code.NOT_ALLOWED
    assert "CHANGENOW_API_KEY" in said.reason


@pytest.mark.parametrize("name", [*QUESTIONS, "create"])
@pytest.mark.parametrize("status", [500, 502, 503, 504, 520, 408, 301, 404, 405])
@pytest.mark.parametrize("body", [b"<html>nginx</html>", b"", no("deposit_too_small")], ids=["html", "empty", "json"])
async def test_what_is_no_word_of_the_vendor_decides_nothing(name: str, status: int, body: Any) -> None:
    said = await ask(name, Answering(status, body))
    if isinstance(body, dict) and status in (404, 405):
        assert isinstance(said, ExchangeRefused)
    elif name == "create":
        assert type(said) is Unknown
    else:
        assert type(said) is Retry


@pytest.mark.parametrize("name", [*QUESTIONS, "create"])
async def test_too_many_requests_were_not_sent_and_questions_say_when_to_ask_again(name: str) -> None:
    said = await ask(name, Answering(429, b"Too Many Requests", retry_after="12"))
    if name == "create":
        assert type(said) is NotSent
    else:
        assert type(said) is Retry
        assert said.after_s == 12.0


@pytest.mark.parametrize("name", ["estimate", "create"])
@pytest.mark.parametrize("status", [400, 422])
async def test_a_no_in_plain_text_is_judged_by_its_status_and_kept_without_secrets(name: str, status: int) -> None:
    said = await ask(name, Answering(status, b"Bad Request: api_key=0123456789abcdef " + b"x" * 5_000))
    assert isinstance(said, ExchangeRefused)
    assert said.code is Code.OTHER
    assert said.reason.startswith(f"{status}: Bad Request: api_key=[redacted]")
    assert len(said.reason) < 300
    assert "0123456789abcdef" not in said.reason


@pytest.mark.parametrize("name", [*QUESTIONS, "create"])
@pytest.mark.parametrize("status", [400, 422])
async def test_a_no_that_was_cut_on_its_way_decides_nothing(name: str, status: int) -> None:
    said = await ask(name, Answering(status, b' {"error":"deposit_too_small","mess'))
    assert type(said) is (Unknown if name == "create" else Retry)
    assert "deposit_too_small" in said.reason


async def test_a_long_message_with_a_secret_is_cut_and_redacted() -> None:
    said = await ask("create", Answering(400, no("not_valid_params", f"token=hunter2hunter2 {'y' * 9_000}")))
    assert isinstance(said, ExchangeRefused)
    assert "hunter2" not in said.reason
    assert len(said.reason) < 300


UNUSABLE: dict[str, Any] = {
    "nothing": b"",
    "half": b'{"fromCurrency":"eth',
    "a list": [],
    "null": None,
    "an error with 200": no("deposit_too_small"),
    "deep": b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "not UTF-8": b"\xff\xfe{}",
}


@pytest.mark.parametrize("name", [each for each in (*QUESTIONS, "create") if each != "currencies"])
@pytest.mark.parametrize("body", UNUSABLE.values(), ids=UNUSABLE)
async def test_an_unusable_answer_is_a_question_to_repeat_or_a_create_in_doubt(name: str, body: Any) -> None:
    said = await ask(name, Answering(200, body))
    assert type(said) is (Unknown if name == "create" else Retry)


def created(**other: Any) -> dict[str, Any]:
    wanted = order()
    return {
        "id": "0123456789abcd",
        "fromAmount": 0.05,
        "toAmount": 0.00196,
        "flow": "standard",
        "type": "direct",
        "fromCurrency": "eth",
        "fromNetwork": "eth",
        "toCurrency": "btc",
        "toNetwork": "btc",
        "payinAddress": "0x" + "1" * 40,
        "payoutAddress": wanted.address,
        "payinExtraId": None,
        "payoutExtraId": None,
        "refundAddress": wanted.refund_address,
        "validUntil": None,
        "of_next_year": [1.5],
    } | other


OTHERS = {
    "another amount": created(fromAmount=0.06),
    "another address": created(payoutAddress="bc1qelsewhere"),
    "a memo that was not ordered": created(payoutExtraId="7"),
    "another pair": created(toNetwork="lightning"),
    "another refund address": created(refundAddress="0x" + "2" * 40),
    "no deposit address": created(payinAddress=""),
    "no id": created(id=""),
    "a negative amount": created(toAmount=-1),
    "no amount": created(toAmount="NaN"),
    "endless digits": created(toAmount="1e999999999"),
}


@pytest.mark.parametrize("body", OTHERS.values(), ids=OTHERS)
async def test_an_answer_about_something_else_is_never_paid_to(body: Any) -> None:
    assert type(await ask("create", Answering(200, body))) is Unknown


EVM = "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed"
USDC = {"toCurrency": "usdc", "toNetwork": "eth", "payoutAddress": EVM}


@pytest.mark.parametrize("ordered", [EVM, EVM.lower(), "0x" + EVM[2:].upper()])
async def test_an_evm_address_in_other_capitals_is_the_one_that_was_ordered(ordered: str) -> None:
    body = created(**USDC, refundAddress=EVM)
    async with HttpClient("changenow", "https://changenow.example", transport=Answering(200, body)) as http:
        wanted = order(Pair("eth", "eth", "usdc", "eth"), address=ordered, refund_address=ordered)
        assert (await ChangeNowClient(http, "k").create(wanted)).payout_address == EVM


@pytest.mark.parametrize("other", ["1BoatSLRHtKNngkdXEeobR76b53LETtpyT", EVM])
async def test_other_addresses_are_compared_to_the_letter(other: str) -> None:
    body = created(payoutAddress=other)
    async with HttpClient("changenow", "https://changenow.example", transport=Answering(200, body)) as http:
        with pytest.raises(Unknown, match="another address"):
            await ChangeNowClient(http, "k").create(order(address=other.swapcase()))


async def test_a_number_that_went_through_a_double_is_the_one_that_was_ordered() -> None:
    asked = Decimal("0.038123456789012345")
    body = created(fromAmount=0.03812345678901235, toAmount=0.00148, refundAddress=None)
    answering = Answering(200, body)
    async with HttpClient("changenow", "https://changenow.example", transport=answering) as http:
        swap = await ChangeNowClient(http, "k").create(order(amount=str(asked)))
    assert (swap.from_amount, swap.to_amount, swap.refund_address) == (asked, Decimal("0.00148"), None)
    sent = json.loads(answering.asked[0][1])
    assert sent["fromAmount"] == "0.038123456789012345", "written as text, with all its digits"
    assert sorted(sent) == [
        "address",
        "flow",
        "fromAmount",
        "fromCurrency",
        "fromNetwork",
        "refundAddress",
        "toCurrency",
        "toNetwork",
        "type",
    ]
    assert (b"x-changenow-api-key", b"k") in answering.asked[0][0]["headers"]


def shown(**other: Any) -> dict[str, Any]:
    return {
        "id": "0123456789abcd",
        "status": "waiting",
        "fromCurrency": "eth",
        "fromNetwork": "eth",
        "toCurrency": "btc",
        "toNetwork": "btc",
        "payinAddress": "0x1",
        "payoutAddress": "bc1",
        "createdAt": "2026-01-31T12:00:00.000Z",
        "updatedAt": "2026-01-31T12:00:00",
        "amountFrom": None,
    } | other


async def test_fields_that_are_null_or_absent_are_none_and_times_without_a_zone_are_utc() -> None:
    said = await ask("exchange", Answering(200, shown(payload=[{"x": 1.5}])))
    assert (said.status, said.amount_from, said.amount_to, said.payload) == (Status.WAITING, None, None, None)
    assert said.updated_at == said.created_at


async def test_a_status_of_next_year_is_named_and_asked_again() -> None:
    said = await ask("exchange", Answering(200, shown(status="teleporting")))
    assert type(said) is Retry
    assert "has the status 'teleporting', which payonce does not know" in said.reason


async def test_an_answer_about_another_exchange_is_not_believed() -> None:
    said = await ask("exchange", Answering(200, shown(id="ffffffffffffff")))
    assert type(said) is Retry
    assert "another exchange" in said.reason


async def test_an_exchange_is_unknown_only_by_the_vendors_word() -> None:
    assert await ask("exchange", Answering(404, no("not_found", "Transaction not found"))) is None
    assert type(await ask("exchange", Answering(404, b"404 page not found"))) is Retry


@pytest.mark.parametrize(
    ("status", "kind"),
    [(200, "ok"), (400, "refused"), (401, "refused"), (429, "resting"), (503, "error"), (301, "error")],
)
async def test_whoever_watches_is_told_of_every_request(status: int, kind: str) -> None:
    told: list[tuple[str, str, float]] = []
    async with HttpClient("changenow", "https://changenow.example", transport=Answering(status, b"{}")) as http:
        client = ChangeNowClient(http, "k", watch=lambda *each: told.append(each))
        for asked in (client.create(order()), client.range(ETH_BTC)):
            with pytest.raises(Outcome):
                await asked
    assert [each[:2] for each in told] == [("create", kind), ("range", kind)]
    assert all(0 <= seconds < 5 for _, _, seconds in told)


async def test_whoever_watches_is_told_when_there_was_no_answer(open_changenow: OpenChangeNow) -> None:
    told: list[tuple[str, str, float]] = []
    async with open_changenow(Fault.ANSWER_LOST) as at:
        with pytest.raises(Retry):
            await ChangeNowClient(at.http, "k", watch=lambda *each: told.append(each)).range(ETH_BTC)
    assert [each[:2] for each in told] == [("range", "no_answer")]


async def test_the_vendor_itself_refuses_as_the_table_says(open_changenow: OpenChangeNow) -> None:
    pairs = {"too small": order(amount="0.0019"), "too large": order(amount="200.000001")}
    wanted = {"too small": Code.TOO_SMALL, "too large": Code.TOO_LARGE}
    async with open_changenow() as at:
        for name, each in pairs.items():
            for ask_it in (at.client.create(each), at.client.estimate(each.pair, each.from_amount)):
                with pytest.raises(ExchangeRefused) as refused:
                    await ask_it
                assert refused.value.code is wanted[name]
        for each, code in (
            (order(address="nowhere"), Code.BAD_ADDRESS),
            (order(refund_address="nowhere"), Code.BAD_REFUND_ADDRESS),
            (order(Pair("eth", "eth", "eth", "eth")), Code.PAIR_INACTIVE),
            (order(Pair("eth", "eth", "gold", "gold")), Code.OTHER),
        ):
            with pytest.raises(ExchangeRefused) as refused:
                await at.client.create(each)
            assert refused.value.code is code
        assert not at.simulator.books.entries


async def test_a_pair_may_rest_and_a_small_amount_may_be_called_so(open_changenow: OpenChangeNow) -> None:
    async with open_changenow() as at:
        at.simulator.switch(ETH_BTC, active=False)
        for asked in (at.client.create(order()), at.client.range(ETH_BTC), at.client.min_amount(ETH_BTC)):
            with pytest.raises(ExchangeRefused) as refused:
                await asked
            assert refused.value.code is Code.PAIR_INACTIVE
        at.simulator.switch(ETH_BTC, active=True)
        at.simulator.small_is_inactive = True
        with pytest.raises(ExchangeRefused) as refused:
            await at.client.create(order(amount="0.001"))
        assert refused.value.code is Code.PAIR_INACTIVE
        assert (await at.client.range(ETH_BTC)).min_amount > Decimal("0.001"), "which the range gives away"


async def test_keys_are_checked_and_the_list_may_want_another(open_changenow: OpenChangeNow) -> None:
    async with open_changenow(api_key="k-standard", private_key="k-private") as at:
        stranger = ChangeNowClient(at.http, "k-wrong")
        with pytest.raises(ExchangeRefused, match="401 unauthorized"):
            await stranger.estimate(USDT_ETH, Decimal(97))
        await at.client.estimate(USDT_ETH, Decimal(97))
        with pytest.raises(ExchangeRefused, match="403 invalid_api_key") as refused:
            await at.client.exchanges(at.clock.now, at.clock.now, 0, 10)
        assert refused.value.code is Code.NOT_ALLOWED
        partner = ChangeNowClient(at.http, "k-standard", private_key="k-private")
        assert not await partner.exchanges(at.clock.now, at.clock.now, 0, 10)
