"""Rejects requests that contain something like a card number, so that none is stored, logged or echoed."""

import json
import re
import unicodedata
from collections.abc import Iterator, Sequence
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import unquote

from starlette.requests import Request

from payonce.http.kit.problems import Problem
from payonce.kit.redact import Luhn, candidates

CARD_NUMBER_REFUSED: Final = (
    "the request contains something that looks like a card number, and card numbers are never accepted here; let "
    "the customer's browser send it to the gateway, and send the resulting token, such as pm_1a2b; put a letter "
    "before the digits of an id that only looks like one"
)
KEY_REFUSED: Final = "the Idempotency-Key looks like a card number, and would be stored; use a UUID"
TEXT_MAX_CHARS: Final = 64 * 1024
"""Per request. No billing route accepts longer text, and scanning takes time."""
SEPARATOR: Final = "~~~"
"""Longer than any gap within a number, so digits on its two sides never form one number."""
_ENOUGH_DIGITS: Final = re.compile(r"(?:\d\D*+){12}")
"""As many digits as the shortest card number. Most requests stop here."""
_UUID: Final = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
"""Our own ids, some of whose digits could by chance form a card number."""
_NO_DIGIT_BEFORE: Final = r"(?<!\d)(?<!\d[\W_])(?<!\d[\W_]{2})"
"""No digits shortly before it that it would be a part of."""
_ORDINARY: Final = (
    # A date, then a time of day; no card number begins with 19 to 21.
    re.compile(r"(?<!\d)(?:19|20|21)\d\d(?P<by>[-/.])(?:0[1-9]|1[0-2])(?P=by)(?:0[1-9]|[12]\d|3[01])(?!\d)"),
    re.compile(
        r"(?<![\d:])(?:[01]\d|2[0-3]):[0-5]\d(?::[0-6]\d(?:[.,]\d{1,9})?)?(?:[ ]?[+-][01]\d:?[0-5]\d)?(?![\d:])"
    ),
    # An amount below a hundred billion, with up to three decimals, with or without thousands separators.
    re.compile(rf"{_NO_DIGIT_BEFORE}\d{{1,11}}[.,]\d{{1,3}}(?![\W_]{{0,2}}\d)"),
    re.compile(
        rf"{_NO_DIGIT_BEFORE}\d{{1,3}}(?P<mark>[,.' ])\d{{3}}(?:(?P=mark)\d{{3}}){{0,2}}(?:[.,]\d{{1,3}})?"
        r"(?![\W_]{0,2}\d)"
    ),
    # An id with a prefix, such as a gateway token.
    re.compile(r"(?<![^\W_])[A-Za-z]{1,20}_\d+(?![\W_]{1,2}\d|[^\W_])"),
    # A ULID, whose digits could all appear between the same two letters.
    re.compile(r"(?<![^\W_])[0-7][0-9A-HJKMNP-TV-Za-hjkmnp-tv-z]{25}(?![^\W_])"),
)
"""Ordinary values with as many digits as a card number has, in forms that no card number takes."""
_PHONE: Final = re.compile(r"\+[(]?\d(?:[ ().\-/]{0,2}\d){6,14}+(?![ ().\-/]{0,2}\d)")
"""With its +, and no more digits than ITU-T E.164 allows."""
_CARD_AFTER_PLUS: Final = re.compile(r"3[47]\d{13}|3[0689]\d{12}")
"""No phone number with these country codes is as long as these card numbers."""
_IBAN: Final = re.compile(r"(?<![^\W_])[A-Za-z]{2}\d{2}(?:[ -]?[A-Za-z0-9]){11,30}(?![^\W_])")
_RUN: Final = re.compile(r"(?<![^\W_])\d++(?:[\W_]{1,2}\d++(?![^\W_]))*+(?![^\W_])")
"""Digit groups separated by one or two characters that are neither letters nor digits."""
_BETWEEN_LETTERS: Final = re.compile(r"(?<![^\W_])\d++(?P<by>[^\W\d_]{1,2})\d++(?:(?P=by)\d++)*+(?![^\W_])")
_GROUP: Final = re.compile(r"\d+")
_PRINTED_GAP: Final = re.compile("[ \u00a0\u2000-\u200a\u2010-\u2015\u202f\u205f\u2212\u3000-]?")
"""Nothing, a space or a dash of any width: the way card numbers are printed, and numbers outside any issuer's range."""
_NEVER_ISSUED: Final = re.compile(r"1(?!\d{14}$)|2[01]")
"""Card numbers never begin with 0 or like a year; with 1 only those of airlines, which have 15 digits. Anything else is
a timestamp."""
_ISSUED: Final = re.compile(
    r"4(?:\d{12}|\d{15}|\d{18})"  # Visa
    r"|(?:5[1-5]\d\d|222[1-9]|22[3-9]\d|2[3-6]\d\d|27[01]\d|2720)\d{12}"  # Mastercard
    r"|3[47]\d{13}"  # American Express
    r"|3(?:0[0-59]|[689]\d)\d{11,16}"  # Diners Club
    r"|35(?:2[89]|[3-8]\d)\d{12,15}"  # JCB
    r"|220[0-4]\d{12,15}"  # Mir
    r"|(?:5[06-9]|6\d)\d{11,17}"  # Maestro, Discover, UnionPay, RuPay, Verve, Elo
    r"|8[12]\d{14,17}"  # RuPay, UnionPay
    r"|9792\d{12}"  # Troy
)
"""By issuer prefix and length. A number with unusual separators must match one of these."""


async def refuse_card_numbers(request: Request) -> None:
    """The dependency of billing's routes; it runs before anything else parses the request."""
    query = request.scope["query_string"].decode("latin-1")
    refuse_in(await request.body(), query, unquote(query), request.url.path)
    if _is_suspect(request.headers.get("Idempotency-Key", "")):
        raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, KEY_REFUSED)


def refuse_in(body: bytes, *texts: str) -> None:
    """The same check for a route that parses its request itself."""
    # Decoded like any JSON parser would: a body in UTF-16 is accepted too.
    read = body.decode(json.detect_encoding(body), "replace")
    if len(read) > TEXT_MAX_CHARS:
        raise Problem(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body has more than {TEXT_MAX_CHARS:,} characters; send less"
        )
    if _has_enough(read):
        texts = (*texts, _values(read))
    if any(_is_suspect(text) for text in texts):
        raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, CARD_NUMBER_REFUSED)


def _is_suspect(text: str) -> bool:
    if not _has_enough(text):
        return False
    text = _without_ordinary(_plain(_UUID.sub(SEPARATOR, text)))
    if any(_holds_card(match[0]) for match in _RUN.finditer(text)):
        return True
    between = (match[0] for match in _BETWEEN_LETTERS.finditer(text))
    return any(_is_issued("".join(_GROUP.findall(each))) for each in between)


def _has_enough(text: str) -> bool:
    return _ENOUGH_DIGITS.search(_UUID.sub(SEPARATOR, text)) is not None


def _holds_card(run: str) -> bool:
    """Whole groups only: an id may contain digits that would form a card number."""
    groups = [match.span() for match in _GROUP.finditer(run)]
    digits = "".join(run[start:stop] for start, stop in groups)
    luhn = Luhn(digits)
    for (start, stop), (first, last) in candidates(groups):
        if digits[first] != "0" and luhn.passes(first, last):
            number = digits[first:last]
            if _ISSUED.fullmatch(number) or (not _NEVER_ISSUED.match(number) and _is_printed(run[start:stop])):
                return True
    return False


def _is_printed(text: str) -> bool:
    return all(_PRINTED_GAP.fullmatch(between) for between in _GROUP.split(text)[1:-1])


def _is_issued(number: str) -> bool:
    return _ISSUED.fullmatch(number) is not None and Luhn(number).passes(0, len(number))


def _plain(text: str) -> str:
    """Digits of any script as ASCII, without invisible characters between them."""
    if text.isascii():
        return text
    seen = (each for each in text if unicodedata.category(each) != "Cf")
    return "".join(str(unicodedata.digit(each, each)) for each in seen)


def _without_ordinary(text: str) -> str:
    for shape in _ORDINARY:
        text = shape.sub(SEPARATOR, text)
    text = _IBAN.sub(lambda match: SEPARATOR if _is_iban(match[0]) else match[0], text)
    return _PHONE.sub(lambda match: match[0] if _is_card_after_plus(match[0]) else SEPARATOR, text)


def _is_iban(text: str) -> bool:
    """Checks the check digits (ISO 7064, 97-10)."""
    written = re.sub("[ -]", "", text).upper()
    return int("".join(str(int(each, 36)) for each in written[4:] + written[:4])) % 97 == 1


def _is_card_after_plus(text: str) -> bool:
    return _CARD_AFTER_PLUS.fullmatch("".join(_GROUP.findall(text))) is not None


def _values(body: str) -> str:
    r"""Every name and value of a JSON document, including escaped (\u0034\u0032…) and duplicate ones; for other text,
    the text itself."""
    try:
        read = json.loads(body.lstrip("\ufeff"), object_pairs_hook=list, parse_int=str, parse_float=str)
    except (ValueError, RecursionError):
        return body
    return SEPARATOR.join(_texts(read))


def _texts(value: Any) -> Iterator[str]:
    pending: list[Sequence[Any] | Any] = [value]
    while pending:
        each = pending.pop()
        if isinstance(each, list | tuple):
            pending.extend(each)
        elif isinstance(each, str):
            yield each
