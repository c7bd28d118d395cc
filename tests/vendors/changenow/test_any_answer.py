"""Whatever the vendor says, the client answers with a value or with the one right error, and no float comes of it."""

import asyncio
import json
from collections.abc import Iterable
from datetime import datetime
from decimal import Decimal
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from payonce.kit.money import Amount, Asset
from payonce.kit.outcomes import Outcome, Retry, Unknown
from payonce.vendors.changenow import wire
from payonce.vendors.changenow.port import ExchangeRefused
from tests.vendors.changenow.at import ETH_BTC, QUESTIONS, order
from tests.vendors.changenow.test_answers import Answering, ask, created, shown

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=20),
    st.sampled_from(["NaN", "Infinity", "-0", "1e400", "waiting", "2026-01-31T12:00:00Z", "0.05", ""]),
)
anything = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
)


def with_others(document: dict[str, Any]) -> st.SearchStrategy[Any]:
    """The vendor's own document with some of its fields replaced."""
    return st.dictionaries(st.sampled_from([*document]), scalars, max_size=3).map(lambda other: document | other)


documents = st.one_of(
    anything,
    with_others(created()),
    with_others(shown()),
    anything.map(lambda each: {"count": 1, "exchanges": [each]}),
    st.lists(st.dictionaries(st.sampled_from(["ticker", "network", "name", "hasExternalId"]), scalars)),
    st.dictionaries(st.sampled_from(["error", "message"]), scalars),
)
bodies = st.one_of(documents.map(lambda body: json.dumps(body).encode()), st.binary(max_size=60))
statuses = st.sampled_from([200, 200, 200, 201, 204, 302, 400, 401, 403, 404, 408, 422, 429, 500, 503])


def values_in(answer: Any) -> Iterable[Any]:
    if isinstance(answer, msgspec.Struct):
        for each in msgspec.structs.astuple(answer):
            yield from values_in(each)
    elif isinstance(answer, list):
        for each in answer:
            yield from values_in(each)
    else:
        yield answer


@given(name=st.sampled_from([*QUESTIONS, "create"]), status=statuses, body=bodies)
def test_any_answer_is_a_value_or_the_one_right_error(name: str, status: int, body: bytes) -> None:
    said = asyncio.run(ask(name, Answering(status, body)))
    if status in (401, 403):
        assert isinstance(said, ExchangeRefused)
    elif isinstance(said, Outcome) and not isinstance(said, ExchangeRefused):
        in_doubt = "NotSent" if status == 429 else "Unknown"
        assert type(said).__name__ == (in_doubt if name == "create" else "Retry")
        assert isinstance(said, Retry | Unknown) or status == 429
        assert len(said.reason) < 1_000
    else:
        assert isinstance(said, ExchangeRefused) == (400 <= status < 500 and said is not None)
        for value in values_in(said):
            assert not isinstance(value, float)
            if isinstance(value, Decimal):
                assert value.is_finite()
                assert value >= 0
                assert len(format(value, "f")) <= 2 * wire.DIGITS_MAX + 3
            if isinstance(value, datetime):
                assert value.tzinfo is not None


long_amounts = st.integers(1, 10**50).map(lambda wei: Amount(wei, Asset("ETH", 18)).to_decimal())


@given(amount=long_amounts)
def test_amounts_keep_all_their_digits_on_the_way_out_and_back(amount: Decimal) -> None:
    wanted = order(amount=str(amount))
    text = json.dumps(created(fromAmount=0)).replace('"fromAmount": 0', f'"fromAmount": {amount}')
    swap = wire.swap(wire.decoded(text.encode(), wire.WireSwap), wanted)
    assert swap.from_amount == amount
    body = json.dumps(
        {"fromCurrency": "eth", "fromNetwork": "eth", "toCurrency": "btc", "toNetwork": "btc", "minAmount": "M"}
    ).replace('"M"', str(amount))
    assert wire.limits(wire.decoded(body.encode(), wire.WireRange), ETH_BTC).min_amount == amount


@given(amount=st.decimals("0.002", 200, places=18, allow_nan=False), step=st.integers(1, 9))
def test_a_double_of_the_amount_is_it_and_one_a_digit_off_is_not(amount: Decimal, step: int) -> None:
    wanted = order(amount=str(amount))
    through_a_double = json.dumps(created(fromAmount=float(amount))).encode()
    assert wire.swap(wire.decoded(through_a_double, wire.WireSwap), wanted).from_amount == amount
    off = amount + Decimal(step).scaleb(amount.adjusted() - 13)
    try:
        wire.swap(wire.decoded(json.dumps(created(fromAmount=str(off))).encode(), wire.WireSwap), wanted)
    except Unknown:
        return
    raise AssertionError(f"{off} was taken for {amount}")
