"""A card number that somebody sends is refused at the door and is nowhere afterwards."""

import json
import re
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from payonce.http.kit.problems import Problem
from payonce.kit.redact import Luhn, could_be_card
from payonce.services.billing.api.card_numbers import TEXT_MAX_CHARS, _is_suspect, refuse_in
from payonce.testing import OpenStage
from tests.ablations import patched
from tests.services.billing.payments.counter import open_counter

NUMBER = "4242424242424242"
SPELT = [
    NUMBER,
    "4242 4242 4242 4242",
    "4242-4242-4242-4242",
    "378282246310005",
    "4242\u00a04242\u00a04242\u00a04242",
    "4242\u200b4242\u200b4242\u200b4242",
    "4242\u20134242\u20134242\u20134242",
    "4242.4242.4242.4242",
]
JSON_ENCODINGS = ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"]
"""Each is told by its first bytes, and read."""


def bodies(number: str) -> list[bytes]:
    escaped = "".join(f"\\u{ord(digit):04x}" for digit in number)
    return [
        json.dumps({"token": number}).encode(),
        json.dumps({"token": "pm_1", "card": {"number": number}}).encode(),
        json.dumps({number: "pm_1"}).encode(),
        f'{{"token": "{escaped}"}}'.encode(),
        number.encode(),
        *(json.dumps({"token": number}, ensure_ascii=False).encode(encoding) for encoding in JSON_ENCODINGS),
    ]


@pytest.mark.parametrize("number", SPELT)
async def test_it_is_refused_without_being_said_back(
    stage: OpenStage, number: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async with open_counter(stage) as counter:
        customer, digits = counter.as_customer(), "".join(re.findall("[0-9]", number))
        said = []
        for body in bodies(number):
            said.append(await customer("POST", "/v1/payment-methods/", body))
        order = {"amount": "1.00", "currency": "AED", "description": f"card {number}"}
        said.append(await customer("POST", "/v1/payments/process", order, idempotency_key="k"))
        said.append(
            await customer("POST", "/v1/payments/process", order | {"description": "d"}, idempotency_key=digits)
        )
        said.append(await customer("GET", f"/v1/transactions?after={digits}"))
        said.append(await customer("GET", f"/v1/transactions/{digits}"))
        assert {answer.status for answer in said} <= {400, 422}
        logged = "".join(capsys.readouterr())
        for text in (logged, *(answer.body.decode() for answer in said)):
            assert digits not in text
            assert number not in text
        assert await tables_with(counter.till.s.owner, digits[-12:]) == []


async def test_a_cards_number_is_nowhere_after_a_whole_payment(
    stage: OpenStage, capsys: pytest.CaptureFixture[str]
) -> None:
    async with open_counter(stage) as counter:
        await counter.till.card()
        await counter.till.charged(action="trial", amount_minor=100)
        await counter.till.card("4000000000000002", "acc-2")
        await counter.till.charged("inv-2", account_id="acc-2")
        assert NUMBER not in "".join(capsys.readouterr())
        assert await tables_with(counter.till.s.owner, NUMBER) == []
        assert await tables_with(counter.till.s.owner, "acc-2") != []


async def tables_with(owner: object, text: str) -> list[str]:
    """Every table of the database that has the text anywhere."""
    names = await owner.fetch(  # type: ignore[attr-defined]
        """
        select format('%I.%I', schemaname, tablename) as name from pg_tables
        where schemaname not in ('pg_catalog', 'information_schema')
        """
    )
    found = []
    for row in names:
        query = f"select exists (select from {row['name']} t where strpos(t::text, $1) > 0)"
        if await owner.fetchval(query, text):  # type: ignore[attr-defined]
            found.append(row["name"])
    return found


BRANDS = {
    "visa": ("4", 16),
    "visa of old": ("4", 13),
    "visa, long": ("4", 19),
    "mastercard": ("55", 16),
    "mastercard of the twos": ("2720", 16),
    "american express": ("37", 15),
    "diners": ("36", 14),
    "jcb": ("3530", 16),
    "maestro": ("6759", 18),
    "discover": ("6011", 16),
    "unionpay": ("62", 16),
    "mir": ("2200", 16),
}
"""First digits and lengths as their issuers publish them."""
BETWEEN = st.one_of(
    st.sampled_from(
        [".", "_", "/", " ", "-", ":", ";", "|", "*", ",", ", ", " / ".strip(), "..", "__", "\u200b", "\u00b7"]
    ),
    st.text(st.characters(exclude_categories=["Nd", "Nl", "No", "L", "Cs", "Cc"]), min_size=1, max_size=2),
)


def with_check_digit(digits: str) -> str:
    return next(f"{digits}{last}" for last in range(10) if could_be_card(int(f"{digits}{last}")))


@st.composite
def cards(draw: st.DrawFn) -> str:
    first, length = BRANDS[draw(st.sampled_from(sorted(BRANDS)))]
    rest = draw(st.integers(0, 10 ** (length - len(first) - 1) - 1))
    return with_check_digit(f"{first}{rest:0{length - len(first) - 1}}")


@st.composite
def parted(draw: st.DrawFn) -> str:
    """By four and four, with whatever between them: the same everywhere, or every time another."""
    number, once = draw(cards()), draw(BETWEEN)
    groups = [number[at : at + 4] for at in range(0, len(number), 4)]
    marks = [once] * len(groups) if draw(st.booleans()) else [draw(BETWEEN) for _ in groups]
    return "".join(group + mark for group, mark in zip(groups, [*marks[1:], ""], strict=True))


@given(cards(), parted(), st.text(alphabet='abc {}":,', max_size=20))
def test_a_number_is_seen_wherever_it_stands_and_however_it_is_parted(whole: str, some: str, around: str) -> None:
    for number in (whole, some):
        assert _is_suspect(f"{around} {number} {around}"), number
        with pytest.raises(Problem, match="like a card number"):
            refuse_in(json.dumps({"name": {"of": ["x", number]}}).encode())


@given(cards(), st.sampled_from("xXo"))
def test_letters_between_its_digits_hide_it_from_nobody(number: str, letter: str) -> None:
    assert _is_suspect(letter.join(number[at : at + 4] for at in range(0, len(number), 4)))


def ulid(number: int) -> str:
    letters = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
    return "".join(letters[number >> 5 * place & 31] for place in range(25, -1, -1))


def iban(country: str, account: str) -> str:
    digits = "".join(str(int(each, 36)) for each in f"{account}{country}00")
    return f"{country}{98 - int(digits) % 97:02}{account}"


def by_four(text: str) -> str:
    return " ".join(text[at : at + 4] for at in range(0, len(text), 4))


@st.composite
def phones(draw: st.DrawFn) -> str:
    """With a country's code as people write them: at most 13 digits, the longest that are given out."""
    code = draw(st.sampled_from(["1", "7", "20", "34", "44", "49", "86", "91", "370", "375", "966", "971"]))
    area, number = draw(st.integers(10, 999)), draw(st.integers(10**5, 10**7 - 1))
    return draw(st.sampled_from(["+{} {} {}", "+{}{}{}", "+{}-{}-{}", "+{} ({}) {}", "+{}.{}.{}"])).format(
        code, area, number
    )


@st.composite
def amounts(draw: st.DrawFn) -> str:
    whole, decimals = draw(st.integers(0, 10**11 - 1)), draw(st.integers(0, 3))
    text = draw(st.sampled_from([f"{whole}", f"{whole:,}", f"{whole:,}".replace(",", "'")]))
    return text if decimals == 0 else f"{text}.{draw(st.integers(0, 10**decimals - 1)):0{decimals}}"


MOMENTS = st.datetimes(
    datetime(1990, 1, 1),  # noqa: DTZ001 - the zone is drawn beside them
    datetime(2100, 1, 1),  # noqa: DTZ001
    timezones=st.sampled_from([UTC, timezone(timedelta(hours=5, minutes=30)), timezone(-timedelta(hours=8))]),
)
ORDINARY = st.one_of(
    st.uuids().map(str),
    st.uuids().map(lambda some: some.hex),
    st.integers(0, 2**128 - 1).map(ulid),
    MOMENTS.map(datetime.isoformat),
    MOMENTS.map(str),
    MOMENTS.map(lambda at: at.strftime("%Y%m%dT%H%M%SZ")),
    MOMENTS.map(lambda at: str(int(at.timestamp() * 1_000)) if 2001 < at.year < 2033 else ""),
    phones(),
    amounts(),
    st.integers(0, 10**18 - 1).map(lambda account: iban("DE", f"{account:018}")),
    st.integers(0, 10**18 - 1).map(lambda account: by_four(iban("DE", f"{account:018}"))),
    st.integers(0, 10**19 - 1).map(lambda account: by_four(iban("AE", f"{account:019}"))),
    st.integers(0, 10**14 - 1).map(lambda account: by_four(iban("GB", f"WEST{account:014}"))),
    st.integers(10**11, 10**18).map(lambda number: f"pm_{number}"),
    st.integers(10**11, 10**18).map(lambda number: f"C{number}"),
    st.integers(0, 10**11 - 1).map(lambda number: f"INV-2026-{number:011}"),
)


@settings(max_examples=300)
@given(ORDINARY)
def test_what_people_and_programs_write_is_never_taken_for_a_card(some: str) -> None:
    assert not _is_suspect(some)
    refuse_in(json.dumps({"external_id": some, "note": f"for {some}, as agreed", "more": [some, 1, 2.5]}).encode())


def test_numbers_beside_each_other_are_no_card_together() -> None:
    assert not _is_suspect("29.00")
    refuse_in(b'{"limits": [4242, 4242, 4242, 4242], "a": 4242, "b": {"c": 4242}, "d": "4242", "e": "4242"}')
    refuse_in(b'{"limits": {"calls": 4242424242424241}}')
    with pytest.raises(Problem):
        refuse_in(b'{"limits": {"calls": 4242424242424242}}')


def test_what_is_there_twice_or_is_no_json_is_looked_at_all_the_same() -> None:
    for body in (
        b'{"token": "4242/4242/4242/4242", "token": "pm_1"}',
        b'{"token": "4242.4242.4242.4242"',
        b"4242|4242|4242|4242",
    ):
        with pytest.raises(Problem, match="like a card number"):
            refuse_in(body)


@pytest.mark.parametrize("filler", ["4 ", "4. ", "0 ", "4242.", "4a", "1,", "+4 ", "DE89 3704 ", "12:34:"])
def test_a_long_body_is_refused_before_it_is_looked_through(filler: str) -> None:
    """The work grows with the text and no faster, and the text has a bound."""
    most = TEXT_MAX_CHARS // len(filler)
    with pytest.raises(Problem, match="65,536 characters"):
        refuse_in((filler * (most + 1)).encode() + b" ")
    tried = 0

    def counted(*given: Any) -> bool:
        nonlocal tried
        tried += 1
        return False

    with patched(Luhn, "passes", counted)():
        refuse_in((filler * (most - 1)).encode())
    assert tried <= 8 * TEXT_MAX_CHARS
