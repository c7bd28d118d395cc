"""The cards of the simulated gateway and their outcomes. No number is stored, only the card's behaviour."""

import hashlib
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from payonce.kit.redact import could_be_card
from payonce.vendors.books import Denied
from payonce.vendors.gateway.port import DeclineCode

SUCCEEDS: Final = "succeeds"
DRAWN: Final = "drawn"
"""The outcome is drawn by seed, card and reference."""
SHARE_THAT_PAYS: Final = 0.85
NATURES: Final = {
    "4242424242424242": SUCCEEDS,
    "4000000000000002": DeclineCode.CARD_DECLINED.value,
    "4000000000009995": DeclineCode.INSUFFICIENT_FUNDS.value,
    "4000000000000069": DeclineCode.EXPIRED_CARD.value,
    "4000000000000127": DeclineCode.INVALID_CVV.value,
}
MESSAGES: Final = {
    DeclineCode.INSUFFICIENT_FUNDS.value: "The card has insufficient funds.",
    DeclineCode.CARD_DECLINED.value: "The card was declined.",
    DeclineCode.EXPIRED_CARD.value: "The card has expired.",
    DeclineCode.INVALID_CVV.value: "The security code of the card is wrong.",
}
OUTCOMES: Final = (SUCCEEDS, *MESSAGES)
DELAY_MIN_MS: Final = 500
DELAY_MAX_MS: Final = 3_000
_BRANDS: Final = (("4", "visa"), ("34", "amex"), ("37", "amex"), ("5", "mastercard"), ("2", "mastercard"))
_NUMBER_MIN_CHARS: Final = 12
_NUMBER_MAX_CHARS: Final = 19


@dataclass
class Card:
    """The card of a token."""

    token: str
    brand: str
    last4: str
    exp_month: int
    exp_year: int
    nature: str
    fingerprint: str
    """Distinguishes cards in random draws; it does not reveal the number."""
    script: list[str] = field(default_factory=list)
    """The outcomes of its next charges, in order; afterwards its nature decides."""


def nature_of(number: str) -> str:
    return NATURES.get(number, DRAWN)


def brand_of(number: str) -> str:
    return next((brand for start, brand in _BRANDS if number.startswith(start)), "unknown")


def fingerprint_of(number: str, seed: int) -> str:
    return hashlib.blake2b(f"card {number}".encode(), digest_size=8, key=f"{seed}".encode()).hexdigest()


def check_number(number: object) -> str:
    """The digits of a valid card number; raises Denied, without repeating the number."""
    digits = number.replace(" ", "") if isinstance(number, str) else ""
    if not digits.isascii() or not digits.isdigit() or not _NUMBER_MIN_CHARS <= len(digits) <= _NUMBER_MAX_CHARS:
        raise Denied("invalid_number", "The card number is not valid.")
    if not could_be_card(int(digits)):
        raise Denied("invalid_number", "The card number is not valid.")
    return digits


def check_expiry(month: object, year: object, now: datetime) -> tuple[int, int]:
    if type(month) is not int or type(year) is not int or not 1 <= month <= 12 or year > 9_999:
        raise Denied("invalid_expiry", "The expiry of the card is not valid.")
    if (year, month) < (now.year, now.month):
        raise Denied("invalid_expiry", "The card has expired.")
    return month, year


def check_security_code(code: object) -> None:
    if not isinstance(code, str) or not code.isascii() or not code.isdigit() or len(code) not in (3, 4):
        raise Denied("invalid_cvc", "The security code of the card is not valid.")


def decline_of(card: Card, reference: str, seed: int) -> str | None:
    """The code with which this charge is declined, or None. The same for the same card and reference."""
    ends = card.script[0] if card.script else card.nature
    if ends == DRAWN:
        place = _place(f"{seed} {card.fingerprint} {reference}")
        if place < SHARE_THAT_PAYS:
            return None
        soft = (DeclineCode.INSUFFICIENT_FUNDS, DeclineCode.CARD_DECLINED)
        return soft[place > (1 + SHARE_THAT_PAYS) / 2].value
    return None if ends == SUCCEEDS else ends


def delay_ms(reference: str, seed: int) -> int:
    """The reported processing time; no call waits for it."""
    return DELAY_MIN_MS + int(_place(f"{seed} delay {reference}") * (DELAY_MAX_MS - DELAY_MIN_MS))


def _place(text: str) -> float:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") / 2**64
