"""Removes secrets and card numbers from text before it is logged, stored or shown.

Some of these texts are chosen by strangers, so the time grows linearly with their length, and long texts are cut.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Final

HIDDEN: Final = "[redacted]"
TEXT_MAX_CHARS: Final = 20_000
"""The worst text of this length blocks the event loop for 50 ms."""
LOOK_AHEAD_CHARS: Final = 200
"""Characters read beyond the cut: half a secret would not be recognised."""

_CREDENTIALS_IN_URL: Final = re.compile(r"(?<=://)[^/\s:@]*+:[^@\s/]++(?=@)")
_BEARER: Final = re.compile(r"(?i)\b(bearer|basic)\s++[\w.~+/=-]{8,}")
_PREFIXED: Final = re.compile(r"\b(?:whsec_|sk_|rk_|pk_|ghp_|xox[bp]-)[\w-]{8,}")
# Text before the keyword is not matched: names are kept, and a pattern beginning with any name could start anywhere.
_NAME: Final = (
    r"(?:password|passwd|passphrase|secret|token|api[_-]?key|authorization|private[_-]?key|signing[_-]?key|credential"
    r"|mnemonic|(?:seed|recovery)[_-]?phrase|(?<![^\W_])(?:cvc2?|cvv2?|pin|iban)(?![^\W_]))[\w-]{0,64}"
)
_IS: Final = r"(?:\\{0,7}[\"'])?\s*+[:=]\s*+"
"""Follows the name, which may be in quotes, or in the escaped quotes of nested JSON."""
_AUTHORIZATION: Final = re.compile(r"(?i)(authorization[\w-]{0,64}\s*+[:=]\s*+)[^\s\"'\\][^\r\n]*+")
"""The value may have several secret words: it extends to the end of the line."""
_NAMED: Final = re.compile(
    rf"(?i)({_NAME}{_IS})(?:"
    r"(?:\"(?:[^\"\\]|\\.)++\"|'(?:[^'\\]|\\.)++'|(\\{1,7}[\"'])(?s:.)+?(?<!\\)\2)[^\s\"',;&}]*+"
    # An unclosed quote: the text was cut, and the rest of the line is secret.
    r"|\\{0,7}[\"'](?!\\{0,7}[\"'])[^\r\n]++"
    r"|[^\s\"',;&}]{3,})"
)
_DIGITS: Final = re.compile(r"(?<!\w)(?<!\d\.)\d(?:[ -]?\d){11,}(?!\w|\.\d)")
_OUR_ID: Final = r"(?<![\w-])[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}(?![\w-])"
_ID_OR_DIGITS: Final = re.compile(rf"(?P<id>{_OUR_ID})|{_DIGITS.pattern}")
"""One in thousands of our ids contains digits that a short card number could have; ids are kept whole."""
_GROUP: Final = re.compile(r"\d+")
_CARD_DIGITS_MIN: Final = 12
"""As in some debit cards."""
_CARD_DIGITS_MAX: Final = 19


def redact(text: str, max_chars: int = TEXT_MAX_CHARS) -> str:
    """The text without secrets. A text longer than `max_chars` is cut, with the number of omitted characters."""
    if len(text) <= max_chars:
        return _redacted(text)
    begins = text[: max_chars + LOOK_AHEAD_CHARS]
    shown = _redacted(begins)
    # Redaction has moved the rest forward: its last characters are still those after the cut.
    shown = shown[: max(0, min(max_chars, len(shown) - (len(begins) - max_chars)))]
    return f"{shown}… ({len(text) - max_chars:,} more characters)"


def _redacted(text: str) -> str:
    text = _CREDENTIALS_IN_URL.sub(HIDDEN, text)
    text = _AUTHORIZATION.sub(rf"\1{HIDDEN}", text)
    text = _BEARER.sub(rf"\1 {HIDDEN}", text)
    text = _PREFIXED.sub(HIDDEN, text)
    text = _NAMED.sub(rf"\1{HIDDEN}", text)
    return _ID_OR_DIGITS.sub(lambda match: match["id"] or _without_cards(match[0]), text)


def could_be_card(number: int) -> bool:
    """Whether a number could be a card number."""
    if not 10 ** (_CARD_DIGITS_MIN - 1) <= number < 10**_CARD_DIGITS_MAX:
        return False
    digits = str(number)
    return Luhn(digits).passes(0, len(digits))


def _without_cards(text: str) -> str:
    """Hides everything that could belong to a card number, which may be among other numbers."""
    groups = [match.span() for match in _GROUP.finditer(text)]
    luhn = Luhn("".join(text[start:stop] for start, stop in groups))
    kept, end = [], 0
    for (start, stop), (first, last) in candidates(groups):
        if stop > end and luhn.passes(first, last):
            if start >= end:
                kept.append(text[end:start] + HIDDEN)
            end = stop
    return "".join([*kept, text[end:]])


Span = tuple[int, int]


def candidates(groups: Sequence[Span]) -> Iterator[tuple[Span, Span]]:
    """Every run of whole groups with the length of a card number, at most 8 from each group: its span in the text, and
    among the digits."""
    before = 0
    for index, (start, end) in enumerate(groups):
        count = 0
        for first, stop in groups[index : index + _CARD_DIGITS_MAX]:
            count += stop - first
            if count > _CARD_DIGITS_MAX:
                break
            if count >= _CARD_DIGITS_MIN:
                yield (start, stop), (before, before + count)
        before += end - start


class Luhn:
    """The Luhn check, which ids and amounts of the same length nearly always fail, for any part of the digits in one
    step: by prefix sums, with every second digit doubled."""

    def __init__(self, digits: str) -> None:
        numbers = [int(digit) for digit in digits]
        self._sums = [
            list(accumulate((_DOUBLED[n] if i % 2 == parity else n for i, n in enumerate(numbers)), initial=0))
            for parity in (0, 1)
        ]

    def passes(self, first: int, last: int) -> bool:
        # The last digit counts once, the one before it doubled.
        sums = self._sums[last % 2]
        return (sums[last] - sums[first]) % 10 == 0


_DOUBLED: Final = (0, 2, 4, 6, 8, 1, 3, 5, 7, 9)
