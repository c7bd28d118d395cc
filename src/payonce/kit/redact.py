"""Takes secrets and card numbers out of text before it is logged, stored or shown."""

import re
from typing import Final

HIDDEN: Final = "[redacted]"

_CREDENTIALS_IN_URL: Final = re.compile(r"(?<=://)[^/\s:@]*:[^@\s/]+(?=@)")
_BEARER: Final = re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{8,}")
_PREFIXED: Final = re.compile(r"\b(?:whsec_|sk_|rk_|pk_|ghp_|xox[bp]-)[\w-]{8,}")
_NAMED: Final = re.compile(
    r"(?i)(\b[\w-]*(?:password|passwd|secret|token|api[_-]?key|authorization|private[_-]?key|signing[_-]?key)[\w-]*"
    r"[\"']?\s*[:=]\s*)(?:\"[^\"]+\"|'[^']+'|[^\s\"',;&}]{3,})"
)
_DIGITS: Final = re.compile(r"(?<!\w)(?<!\d\.)\d(?:[ -]?\d){12,}(?!\w|\.\d)")
_CARD_LENGTHS: Final = range(13, 20)


def redact(text: str) -> str:
    text = _CREDENTIALS_IN_URL.sub(HIDDEN, text)
    text = _BEARER.sub(rf"\1 {HIDDEN}", text)
    text = _PREFIXED.sub(HIDDEN, text)
    text = _NAMED.sub(rf"\1{HIDDEN}", text)
    return _DIGITS.sub(lambda match: _without_cards(match[0]), text)


def _without_cards(digits: str) -> str:
    """A card number may stand between other numbers: every run of whole groups is tried, the longest first."""
    groups = list(re.finditer(r"\d+", digits))
    spans = [(first.start(), last.end()) for index, first in enumerate(groups) for last in groups[index:]]
    for start, end in sorted(spans, key=lambda span: span[0] - span[1]):
        if _is_card_number(digits[start:end]):
            return _without_cards(digits[:start]) + HIDDEN + _without_cards(digits[end:])
    return digits


def _is_card_number(text: str) -> bool:
    """Luhn's check: ids and amounts of the same length nearly always fail it."""
    digits = [int(character) for character in text if character.isdigit()]
    if len(digits) not in _CARD_LENGTHS:
        return False
    doubled = [digit * 2 - 9 if digit > 4 else digit * 2 for digit in digits[-2::-2]]
    return (sum(digits[-1::-2]) + sum(doubled)) % 10 == 0
