"""Amounts are exact: nothing is lost in a split, a fee, a sum or on the way through text."""

import builtins
import contextlib
import json
from collections.abc import Callable
from decimal import ROUND_DOWN, ROUND_HALF_EVEN, ROUND_UP, Context, Decimal, localcontext
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from payonce.kit.money import (
    EXPONENT_MAX,
    MINOR_LIMIT,
    Amount,
    Asset,
    Rounding,
    asset_of,
    loads_exact,
    render,
    well_known,
)
from payonce.kit.outcomes import Invalid

USDT, ETH, USD, JPY, KWD = (well_known(code) for code in ("USDT", "ETH", "USD", "JPY", "KWD"))
FRACTION: Any = 0.1

assets = st.builds(Asset, st.sampled_from(["USDT", "ETH", "TON"]), st.integers(0, EXPONENT_MAX))
minors = st.integers(-(10**60), 10**60)
amounts = st.builds(Amount, minors, assets)
roundings = st.sampled_from(Rounding)
weights = st.one_of(
    st.integers(0, 10**9),
    st.decimals(0, 1000, places=6),
    st.fractions(0, 1000, max_denominator=997),
)


@given(amounts, st.lists(weights, min_size=1, max_size=20).filter(any))
def test_a_split_loses_nothing_and_each_share_is_within_one_unit(amount: Amount, parts: list[Any]) -> None:
    shares = amount.split(parts)
    assert Amount.total(shares, amount.asset) == amount
    whole = sum(Fraction(part) for part in parts)
    for share, part in zip(shares, parts, strict=True):
        assert abs(share.minor - amount.minor * Fraction(part) / whole) < 1
        assert share.minor == 0 or part
        assert type(share.minor) is int


def test_a_tie_in_a_split_goes_to_the_earlier() -> None:
    assert [share.minor for share in Amount(100, USD).split([1, 1, 1])] == [34, 33, 33]
    assert [share.minor for share in Amount(-5, USD).split([1, 1])] == [-3, -2]
    assert [share.minor for share in Amount(10, USD).split([0, 2, 1])] == [0, 7, 3]


@pytest.mark.parametrize("parts", [[], [0], [0, 0], [-1, 2], [Decimal("-0.1"), 1]])
def test_a_split_by_nothing_or_less_is_refused(parts: list[Any]) -> None:
    with pytest.raises(Invalid, match="weights"):
        Amount(100, USD).split(parts)


@given(amounts)
def test_text_decimal_and_minor_forms_read_back(amount: Amount) -> None:
    assert Amount.from_decimal(amount.to_text(), amount.asset) == amount
    assert Amount.from_decimal(amount.to_decimal(), amount.asset) == amount
    assert Amount.from_minor(amount.to_minor_text(), amount.asset) == amount
    assert Amount.from_minor(amount.minor, amount.asset) == amount
    through_json = loads_exact(json.dumps({"value": amount.to_text()}))["value"]
    assert Amount.from_decimal(through_json, amount.asset) == amount


@given(amounts)
def test_a_narrow_decimal_context_changes_nothing(amount: Amount) -> None:
    with localcontext(Context(prec=3)):
        assert Amount.from_decimal(amount.to_decimal(), amount.asset) == amount
        assert Amount.from_decimal(amount.to_text(), amount.asset) == amount


@given(assets, minors, minors, minors)
def test_sums_do_not_depend_on_their_order(asset: Asset, first: int, second: int, third: int) -> None:
    one, two, three = (Amount(minor, asset) for minor in (first, second, third))
    assert (one + two) + three == one + (two + three) == Amount.total([three, one, two], asset)
    assert one + two == two + one
    assert one - two == -(two - one)
    assert one - one == Amount.zero(asset)
    assert (one < two) == (first < second)
    assert (one >= two) == (first >= second)


@given(minors, st.decimals(-1000, 1000, places=9))
def test_rounding_is_what_it_is_called(minor: int, ratio: Decimal) -> None:
    exact = Context(prec=200).multiply(Decimal(minor), ratio)
    for rounding, name in (
        (Rounding.HALF_EVEN, ROUND_HALF_EVEN),
        (Rounding.DOWN, ROUND_DOWN),
        (Rounding.UP, ROUND_UP),
    ):
        product = Amount(minor, ETH).times(ratio, rounding)
        assert product.minor == int(exact.quantize(Decimal(1), name, Context(prec=200)))
        assert type(product.minor) is int


def test_rounding_is_never_chosen_silently() -> None:
    unstated: Any = Amount(1, USD).times
    with pytest.raises(TypeError):
        unstated(Decimal("0.5"))
    with pytest.raises(TypeError, match="rounding must be"):
        unstated(Decimal("0.5"), "half even")


def test_whole_multiples_are_exact() -> None:
    assert 3 * Amount(5, JPY) == Amount(5, JPY) * 3 == Amount(15, JPY)
    assert Amount(10, JPY).times(Fraction(1, 3), Rounding.UP) == Amount(4, JPY)


@pytest.mark.parametrize(
    "made",
    [
        lambda: Amount(FRACTION, USD),
        lambda: Amount(True, USD),
        lambda: Amount.from_decimal(FRACTION, USD),
        lambda: Amount.from_decimal(True, USD),
        lambda: Amount.from_minor(FRACTION, USD),
        lambda: Amount(1, USD) * FRACTION,
        lambda: Amount(1, USD) * True,
        lambda: Amount(1, USD).times(FRACTION, Rounding.DOWN),
        lambda: Amount(1, USD).split([FRACTION, FRACTION]),
        lambda: Amount(1, USD) + 1,  # type: ignore[operator]
    ],
)
def test_floats_and_booleans_are_never_money(made: Callable[[], object]) -> None:
    with pytest.raises(TypeError):
        made()


def test_the_refusal_of_a_float_names_the_way_out() -> None:
    with pytest.raises(TypeError, match=r"float.*use Amount\.from_decimal"):
        Amount(FRACTION, USD)
    with pytest.raises(TypeError, match=r"float: use text"):
        Amount.from_decimal(FRACTION, USD)


@pytest.mark.parametrize(
    "value",
    [
        *("1.001", Decimal("0.001"), "1e-3", "1e80", 10**80, pytest.param(10**5000, id="endless")),
        *("NaN", "Infinity", Decimal("NaN"), Decimal("sNaN"), Decimal("-Infinity")),
        *("", " 1", "1_000", "1,5", "0x10", "\N{FULLWIDTH DIGIT ONE}", ".5", "5.", "--1", "1e9999", "9" * 300),
        *(Decimal("1e999999"), Decimal("1e-999999")),
    ],
)
def test_what_the_asset_cannot_hold_exactly_is_refused(value: Any) -> None:
    with pytest.raises(Invalid):
        Amount.from_decimal(value, USD)


def test_the_refusal_names_the_value_and_the_asset() -> None:
    with pytest.raises(Invalid, match=r"'1\.001' has more than the 2 decimals of USD"):
        Amount.from_decimal("1.001", USD)


@pytest.mark.parametrize("value", ["1.5000", "+1.5", "15e-1", Decimal("1.50000000000")])
def test_zeros_beyond_the_last_decimal_are_exact(value: Any) -> None:
    assert Amount.from_decimal(value, USD) == Amount(150, USD)


@pytest.mark.parametrize("value", ["", "1.0", "1e3", " 1", "1" * 79, "1_0"])
def test_minor_units_are_whole(value: str) -> None:
    with pytest.raises(Invalid, match="whole number"):
        Amount.from_minor(value, USD)


def test_amounts_end_where_the_column_ends() -> None:
    largest = Amount(MINOR_LIMIT - 1, ETH)
    assert -largest < largest
    with pytest.raises(Invalid, match="78 digits"):
        largest + Amount(1, ETH)
    with pytest.raises(Invalid, match="78 digits"):
        largest * 2
    with pytest.raises(Invalid, match="78 digits"):
        Amount(-MINOR_LIMIT, ETH)


def test_assets_do_not_mix() -> None:
    dearer = Asset("USDT", 18)
    assert Amount(1, USDT) != Amount(1, dearer)
    for mixed in (
        lambda: Amount(1, USDT) + Amount(1, dearer),
        lambda: Amount(1, USDT) - Amount(1, ETH),
        lambda: Amount(1, USDT) < Amount(1, ETH),
        lambda: Amount.total([Amount(1, USDT)], ETH),
    ):
        with pytest.raises(Invalid, match=r"USDT of 6 decimals"):
            mixed()


@pytest.mark.parametrize(("code", "exponent"), [("", 2), ("A B", 2), ("USD", -1), ("USD", 37), ("USD", True)])
def test_an_asset_is_named_and_bounded(code: str, exponent: int) -> None:
    with pytest.raises(Invalid):
        Asset(code, exponent)


def test_well_known_assets_have_their_exponents() -> None:
    wanted = {"USDT": 6, "ETH": 18, "TON": 9, "BTC": 8, "AED": 2, "USD": 2, "EUR": 2, "JPY": 0, "KWD": 3}
    assert {code: well_known(code).exponent for code in wanted} == wanted
    with pytest.raises(Invalid, match="Asset"):
        well_known("NOPE")


def test_json_numbers_keep_every_digit() -> None:
    read = loads_exact(b'{"fee": 0.1, "wei": 123456789012345678901234567890, "tiny": 1E-18, "null": null}')
    assert read == {
        "fee": Decimal("0.1"),
        "wei": 123456789012345678901234567890,
        "tiny": Decimal("1E-18"),
        "null": None,
    }
    assert type(read["fee"]) is Decimal
    assert type(read["wei"]) is int


@pytest.mark.parametrize(
    "document",
    [b"", b"NaN", b"[Infinity]", b"{", b"\xff", b"[1e99999999999999999999]", b"[" * 100_000, b"9" * 5000, b"1 2"],
)
def test_unusable_json_is_one_clear_error(document: bytes) -> None:
    with pytest.raises(Invalid, match="not usable JSON"):
        loads_exact(document)


@given(st.one_of(st.binary(), st.text()))
def test_any_document_is_a_value_or_invalid(document: bytes | str) -> None:
    with contextlib.suppress(Invalid):
        loads_exact(document)


@pytest.mark.parametrize(
    ("amount", "locale", "shown"),
    [
        (Amount(123456789, USD), "en", "1,234,567.89 USD"),
        (Amount(-123456789, USD), "de", "-1.234.567,89 USD"),
        (Amount(1500, JPY), "en", "1,500 JPY"),
        (Amount(1500, KWD), "en", "1.500 KWD"),
        (Amount(10**18, ETH), "en", "1.00 ETH"),
        (Amount(10**18 + 1, ETH), "en", "1.000000000000000001 ETH"),
        (Amount(10**60 + 1, ETH), "en", f"1{',000' * 14}.000000000000000001 ETH"),
        (Amount(150, USD), "de-CH", "1.50 USD"),
    ],
)
def test_an_amount_is_shown_exactly_in_the_manner_of_the_place(amount: Amount, locale: str, shown: str) -> None:
    assert render(amount, locale) == shown.replace(" ", "\N{NO-BREAK SPACE}")


def test_an_unknown_locale_is_named() -> None:
    with pytest.raises(Invalid, match="'xx_YY'"):
        render(Amount(1, USD), "xx_YY")


def test_without_babel_an_amount_is_shown_plainly(monkeypatch: pytest.MonkeyPatch) -> None:
    genuine = builtins.__import__

    def without_babel(name: str, *rest: Any, **named: Any) -> Any:
        if name.startswith("babel"):
            raise ImportError(name)
        return genuine(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", without_babel)
    assert render(Amount(123450, USD)) == "1234.50\N{NO-BREAK SPACE}USD"
    assert str(Amount(123450, USD)) == "1234.50 USD"


@pytest.mark.parametrize(
    ("code", "shown"),
    [("AED", "12.34"), ("KWD", "1.234"), ("JPY", "1234"), ("IQD", "1.234"), ("CLF", "0.1234"), ("XOF", "1234")],
)
def test_a_currency_has_the_decimals_of_iso_4217(code: str, shown: str) -> None:
    assert Amount(1234, asset_of(code)).to_text() == shown
    assert asset_of(code) == well_known(code)


@pytest.mark.parametrize("code", ["aed", "USDT", "XTS", "", "DEM", None, []])
def test_what_is_no_currency_is_refused_and_named(code: Any) -> None:
    with pytest.raises(Invalid, match=r"is not a currency of ISO 4217: write its three capital letters, such as AED"):
        asset_of(code)
