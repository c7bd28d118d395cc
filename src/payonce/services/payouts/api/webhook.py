"""The webhook that orders a payout: verifies its signature over the raw bytes, then its fields. Each refusal is one
clear sentence.

401  the signature is missing, or matches none of our keys
400  the body is not a JSON object, repeats a name, has a lossy number, or its time is too far from ours
409  the payment is on record with another body
422  a field is invalid
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import ROUND_HALF_EVEN, Decimal
from http import HTTPStatus
from typing import Any, Final

import msgspec

from payonce.kit.crypto import verify_hex
from payonce.kit.money import Amount, loads_exact
from payonce.kit.outcomes import Invalid, PayonceError
from payonce.services.payouts.domain.addresses import (
    MEMO_RULE,
    checksummed,
    in_capitals,
    in_one_spelling,
    is_memo,
    key_of,
    wrong_with,
)
from payonce.services.payouts.domain.config import PayoutConfig
from payonce.services.payouts.domain.pricing import fee_and_rest
from payonce.services.payouts.model import ETH_NETWORK, ETH_TICKER, USDT

SIGNATURE_HEADER: Final = "X-Webhook-Signature"
USER_ID_LIMIT: Final = 2**63
PRICE_MAX: Final = Amount(10**12 * 10**6, USDT)
"""A trillion: no subscription costs that, and every amount derived from it fits its column."""
UNIQUE_ID_LENGTH: Final = 16
_ALPHABET: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"

DERIVED: Final = "derived:"
"""Prefix of the payment ids that payonce derives for callers who send none."""
PRICE_NAMES: Final = ("subscription_price", "sub_price")
MEMO_NAMES: Final = ("extra_id", "extraId")
"""Two names of one field each; the second one is an alias for older callers."""

_CHANNEL: Final = re.compile(r"[A-Za-z0-9_@.:-]{1,64}")
_TICKER: Final = re.compile(r"[a-z0-9]{1,30}")
_PAYMENT: Final = re.compile(r"[\x21-\x7e]{1,200}")
_NUMBER: Final = re.compile(r"[0-9]{1,19}")
_SECONDS: Final = re.compile(r"[0-9]{1,12}")
_DECIMAL: Final = re.compile(r"[0-9]{1,15}(\.[0-9]{1,18})?")


class WebhookRefused(PayonceError):
    """The webhook was refused; nothing of it was written."""

    def __init__(self, status: HTTPStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status


@dataclass(frozen=True)
class PayoutOrder:
    """The order of a webhook, with every field in its canonical form."""

    payment_id: str | None
    user_id: int
    closed_channel_id: str
    wallet_address: str
    extra_id: str | None
    says_extra_id: bool
    """Whether the caller sent a memo field at all; an empty one states that the address needs none."""
    payout_currency: str
    payout_network: str
    price: Amount
    fee: Amount
    adjusted: Amount
    derives_payment_id: bool = False
    """The caller sends no payment id; one is derived when the order is recorded."""

    @property
    def natural_key(self) -> str:
        """Hash of all fields but the time: a repeated order without a payment id has the same one. Addresses are
        compared by their bytes, not by their spelling."""
        return self._key_with(key_of(self.wallet_address))

    @property
    def natural_keys(self) -> frozenset[str]:
        """Includes the keys of earlier versions, which hashed the address as it was spelled."""
        address = self.wallet_address
        spellings = {key_of(address), address, checksummed(address), in_capitals(address)}
        return frozenset(self._key_with(spelling) for spelling in spellings)

    def _key_with(self, address: str) -> str:
        fields = (
            self.user_id,
            self.closed_channel_id,
            address,
            self.extra_id,
            self.payout_currency,
            self.payout_network,
            self.price.to_minor_text(),
        )
        return hashlib.sha256(msgspec.json.encode(fields)).hexdigest()


def read_webhook(config: PayoutConfig, signature: str | None, body: bytes, now: datetime) -> PayoutOrder:
    """Returns the order, or raises WebhookRefused, whatever the bytes."""
    check_signature(config, signature, body)
    try:
        document = loads_exact(body)
    except Invalid as error:
        raise WebhookRefused(HTTPStatus.BAD_REQUEST, str(error)) from None
    if not isinstance(document, dict):
        raise WebhookRefused(HTTPStatus.BAD_REQUEST, "the body is not a JSON object")
    _check_duplicates(body, document)
    if document.get("timestamp") is not None or not config.six_fields:
        _check_time(document.get("timestamp"), now, config.tolerance_s)
    return _order_from(document, config)


def check_signature(config: PayoutConfig, signature: str | None, body: bytes) -> None:
    """Verifies the signature over the raw bytes in constant time. Raises WebhookRefused."""
    if signature is None:
        raise WebhookRefused(HTTPStatus.UNAUTHORIZED, f"the header {SIGNATURE_HEADER} is missing")
    # All keys are tried, so that the response time reveals neither their number nor the matching one.
    right = [verify_hex(key, body, signature.strip()) for key in config.signing_keys]
    if True not in right:
        raise WebhookRefused(
            HTTPStatus.UNAUTHORIZED,
            f"{SIGNATURE_HEADER} is not the hex HMAC-SHA256 of the body under a configured key",
        )


def unique_id_of(payment: str) -> str:
    """16 characters of A-Z0-9 from a hash of the payment, 82 bits: among a billion payments the probability of a
    collision is below one in ten million, and a collision is refused with an alert."""
    number = int.from_bytes(hashlib.sha256(b"payonce payout\n" + payment.encode()).digest(), "big")
    letters = []
    for _ in range(UNIQUE_ID_LENGTH):
        number, letter = divmod(number, len(_ALPHABET))
        letters.append(_ALPHABET[letter])
    return "".join(letters)


def _check_time(given: object, now: datetime, tolerance_s: int) -> None:
    text = str(given) if type(given) is int else given
    if not isinstance(text, str) or not _SECONDS.fullmatch(text):
        raise WebhookRefused(HTTPStatus.BAD_REQUEST, "timestamp must be whole seconds since 1970")
    if abs(int(text) - now.timestamp()) > tolerance_s:
        raise WebhookRefused(
            HTTPStatus.BAD_REQUEST, f"timestamp is more than {tolerance_s} s away from our clock; sign the body again"
        )


def _check_duplicates(body: bytes, document: Mapping[str, Any]) -> None:
    """Refuses duplicate names: parsers disagree on which value counts, so the caller's intent is unknown."""

    def seen(pairs: list[tuple[str, object]]) -> dict[str, object]:
        [(name, times), *_] = Counter(name for name, _ in pairs).most_common(1) or [("", 0)]
        if times > 1:
            raise WebhookRefused(HTTPStatus.BAD_REQUEST, f"the body repeats {ascii(name)[:80]}; send each name once")
        return dict(pairs)

    try:
        json.loads(body, object_pairs_hook=seen, parse_int=str, parse_float=str)
    except (ValueError, RecursionError):
        raise WebhookRefused(HTTPStatus.BAD_REQUEST, "the body is not valid JSON") from None
    for one, other in (PRICE_NAMES, MEMO_NAMES):
        if one in document and other in document and document[one] != document[other]:
            raise WebhookRefused(
                HTTPStatus.BAD_REQUEST, f"{one} and {other} are names of the same field and differ; send one of them"
            )


def _order_from(document: Mapping[str, Any], config: PayoutConfig) -> PayoutOrder:
    currency = ticker("payout_currency", document.get("payout_currency"))
    network = ticker("payout_network", document.get("payout_network"))
    if (refusal := refuse_direct(config, currency, network)) is not None:
        raise WebhookRefused(HTTPStatus.UNPROCESSABLE_ENTITY, refusal)
    price = _price(document, config)
    fee, adjusted = fee_and_rest(price, config.fee_percent)
    if adjusted.minor <= 0:
        raise _invalid_field("subscription_price", "leaves nothing to pay out after the fee")
    said = next((name for name in MEMO_NAMES if name in document), MEMO_NAMES[0])
    return PayoutOrder(
        payment_id=_payment_id(document.get("payment_id"), config),
        user_id=_user_id(document.get("user_id"), config),
        closed_channel_id=channel(document.get("closed_channel_id")),
        wallet_address=_address(document.get("wallet_address"), network, config),
        extra_id=_memo(document.get(said)),
        says_extra_id=document.get(said) is not None,
        payout_currency=currency,
        payout_network=network,
        price=price,
        fee=fee,
        adjusted=adjusted,
        derives_payment_id=config.six_fields and document.get("payment_id") is None,
    )


def refuse_direct(config: PayoutConfig, currency: str, network: str) -> str | None:
    """Why a payout in ETH is refused; None if it is accepted."""
    if config.external_hostpay and (currency, network) == (ETH_TICKER, ETH_NETWORK):
        return (
            "payout_currency eth on the network eth needs no exchange, and PAYOUTS_HOSTPAY=external pays only "
            "exchanges; choose another coin"
        )
    return None


def _payment_id(given: object, config: PayoutConfig) -> str | None:
    if given is None and (config.allow_missing_payment_id or config.six_fields):
        return None
    if isinstance(given, str) and given.startswith(DERIVED):
        raise _invalid_field("payment_id", f"begins with {DERIVED}, which is reserved for derived ids; choose another")
    if not isinstance(given, str) or not _PAYMENT.fullmatch(given):
        raise _invalid_field(
            "payment_id", "must be 1 to 200 printable ASCII characters without spaces, unique per payment"
        )
    return given


def _user_id(given: object, config: PayoutConfig) -> int:
    if config.six_fields and isinstance(given, str) and _NUMBER.fullmatch(given):
        given = int(given)
    if type(given) is not int or not 0 <= given < USER_ID_LIMIT:
        raise _invalid_field("user_id", "must be a whole number from 0 to 2^63-1")
    return given


def channel(given: object) -> str:
    text = str(given) if type(given) is int and abs(given) < USER_ID_LIMIT else given
    if not isinstance(text, str) or not _CHANNEL.fullmatch(text):
        raise _invalid_field("closed_channel_id", "must be a text such as -1001234567890")
    return text


def ticker(name: str, given: object) -> str:
    # lower() maps some other characters to ASCII letters: the Kelvin sign becomes a k.
    text = given.strip().lower() if isinstance(given, str) and given.isascii() else ""
    if not _TICKER.fullmatch(text):
        raise _invalid_field(name, "must be a name such as eth")
    return text


def _address(given: object, network: str, config: PayoutConfig) -> str:
    if not isinstance(given, str):
        raise _invalid_field("wallet_address", f"is not an address of the network {network}")
    if (wrong := wrong_with(network, given)) is not None:
        raise _invalid_field("wallet_address", wrong)
    if key_of(given) == key_of(config.host_wallet):
        raise _invalid_field(
            "wallet_address", "is the wallet that pays, which cannot pay itself; give the client's own address"
        )
    return in_one_spelling(network, given)


def _memo(given: object) -> str | None:
    if given is None or given == "":
        return None
    if not isinstance(given, str) or not is_memo(given):
        raise _invalid_field("extra_id", MEMO_RULE)
    return given


def _price(document: Mapping[str, Any], config: PayoutConfig) -> Amount:
    given = next((document[name] for name in PRICE_NAMES if name in document), None)
    if config.six_fields and isinstance(given, int | Decimal) and not isinstance(given, bool):
        given = _from_number(Decimal(given))
    if isinstance(given, int | Decimal) and not isinstance(given, bool):
        raise WebhookRefused(
            HTTPStatus.BAD_REQUEST,
            'subscription_price is a JSON number, which loses digits in many parsers; send a string such as "29.99"',
        )
    if not isinstance(given, str) or not _DECIMAL.fullmatch(given):
        raise _invalid_field("subscription_price", "must be a decimal string such as 29.99, above zero")
    try:
        price = Amount.from_decimal(given, USDT)
    except Invalid as error:
        raise _invalid_field("subscription_price", f"is refused: {error}") from None
    if not 0 < price.minor <= PRICE_MAX.minor:
        raise _invalid_field("subscription_price", f"must be above zero and at most {PRICE_MAX}")
    return price


def _from_number(given: Decimal) -> object:
    """Six-field callers may send a JSON number that was a double: it is rounded to the nearest amount."""
    if abs(given) > PRICE_MAX.to_decimal():
        return None
    return format(given.quantize(Decimal("1e-6"), ROUND_HALF_EVEN), "f")


def _invalid_field(name: str, rule: str) -> WebhookRefused:
    return WebhookRefused(HTTPStatus.UNPROCESSABLE_ENTITY, f"{name} {rule}")
