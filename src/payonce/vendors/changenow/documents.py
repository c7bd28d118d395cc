"""Rendering of the simulated exchange's answers in the vendor's format, and of its books for test oracles."""

from datetime import UTC, datetime
from decimal import Context, Decimal
from typing import Any, Final

import msgspec

from payonce.vendors.changenow.books import Deposit, Entry, ExchangeBooks, Paid
from payonce.vendors.changenow.port import Pair
from payonce.vendors.changenow.prices import ADDRESSES, LISTINGS, Listing, Quote

_ENCODER: Final = msgspec.json.Encoder(decimal_format="number")


def encoded(document: Any, digits: int | None) -> bytes:
    """Amounts are numbers: of so many digits, as out of a binary double, or with all of them."""
    return _ENCODER.encode(document if digits is None else _cut(document, Context(prec=digits)))


def moment(at: datetime | None) -> str | None:
    return None if at is None else f"{at.astimezone(UTC).replace(tzinfo=None).isoformat(timespec='milliseconds')}Z"


def pair(asked: Pair) -> dict[str, Any]:
    return {
        "fromCurrency": asked.from_currency.lower(),
        "fromNetwork": asked.from_network.lower(),
        "toCurrency": asked.to_currency.lower(),
        "toNetwork": asked.to_network.lower(),
        "flow": "standard",
    }


def estimate(asked: Pair, deal: Quote) -> dict[str, Any]:
    return pair(asked) | {
        "type": "direct",
        "rateId": None,
        "validUntil": None,
        "transactionSpeedForecast": "10-60",
        "warningMessage": None,
        "depositFee": deal.deposit_fee,
        "withdrawalFee": deal.withdrawal_fee,
        "userId": None,
        "fromAmount": deal.from_amount,
        "toAmount": deal.to_amount,
    }


def created(entry: Entry) -> dict[str, Any]:
    return pair(entry.pair) | {
        "id": entry.id,
        "type": "direct",
        "fromAmount": entry.expected_from,
        "toAmount": entry.expected_to,
        "payinAddress": entry.payin_address,
        "payinExtraId": entry.payin_extra_id,
        "payoutAddress": entry.payout_address,
        "payoutExtraId": entry.payout_extra_id,
        "refundAddress": entry.refund_address,
        "refundExtraId": entry.refund_extra_id,
        "validUntil": moment(entry.valid_until),
    }


def exchange(entry: Entry) -> dict[str, Any]:
    document = pair(entry.pair) | {
        "id": entry.id,
        "status": entry.status.value,
        "actionsAvailable": False,
        "expectedAmountFrom": entry.expected_from,
        "expectedAmountTo": entry.expected_to,
        "amountFrom": entry.amount_from,
        "amountTo": entry.amount_to,
        "payinAddress": entry.payin_address,
        "payoutAddress": entry.payout_address,
        "payinExtraId": entry.payin_extra_id,
        "payoutExtraId": entry.payout_extra_id,
        "refundAddress": entry.refund_address,
        "refundExtraId": entry.refund_extra_id,
        "createdAt": moment(entry.created_at),
        "updatedAt": moment(entry.updated_at),
        "validUntil": moment(entry.valid_until),
        "depositReceivedAt": moment(entry.deposited_at),
        "payinHash": entry.payin_hash,
        "payoutHash": entry.payout_hash,
        "refundHash": entry.refund_hash,
        "refundAmount": entry.refund_amount,
        "userId": entry.user_id,
        "payload": entry.payload,
    }
    del document["flow"]
    return document


def listed(entry: Entry) -> dict[str, Any]:
    return {
        "createdAt": moment(entry.created_at),
        "updatedAt": moment(entry.updated_at),
        "exchangeId": f"{entry.id}-x",
        "requestId": entry.id,
        "status": entry.status.value,
        "validUntil": moment(entry.valid_until),
        "flow": "standard",
        "payin": {
            "currency": entry.pair.from_currency.lower(),
            "network": entry.pair.from_network.lower(),
            "address": entry.payin_address,
            "extraId": entry.payin_extra_id,
            "amount": entry.amount_from,
            "expectedAmount": entry.expected_from,
            "hash": entry.payin_hash,
        },
        "payout": {
            "currency": entry.pair.to_currency.lower(),
            "network": entry.pair.to_network.lower(),
            "address": entry.payout_address,
            "extraId": entry.payout_extra_id,
            "amount": entry.amount_to,
            "expectedAmount": entry.expected_to,
            "hash": entry.payout_hash,
        },
        "refund": {
            "currency": entry.pair.from_currency.lower(),
            "address": entry.refund_address,
            "extraId": entry.refund_extra_id,
            "amount": entry.refund_amount,
            "hash": entry.refund_hash,
        },
        "partnerInfo": {"userId": entry.user_id, "payload": entry.payload},
    }


def currencies() -> list[dict[str, Any]]:
    return [_currency(each) for each in LISTINGS.values()]


def verdict(network: str, address: str, is_valid: bool) -> dict[str, Any]:
    message = None if is_valid else f"Invalid {network} address"
    return {"result": is_valid, "message": message, "isActivated": None, "address": address[:128]}


def supports(network: str) -> bool:
    return network.lower() in ADDRESSES


def books(kept: ExchangeBooks) -> dict[str, Any]:
    """For oracles in other processes; amounts as text."""
    return {
        "exchanges": [_text(exchange(each)) | {"fate": each.fate.value} for each in kept.entries.values()],
        "deposits": [deposit(each) for each in kept.deposits],
        "payouts": [_paid(each) for each in kept.payouts],
        "refunds": [_paid(each) for each in kept.refunds],
        "held": {asset: format(amount, "f") for asset, amount in kept.held().items()},
    }


def deposit(seen: Deposit) -> dict[str, Any]:
    return {
        "number": seen.number,
        "payinAddress": seen.address,
        "asset": seen.asset,
        "amount": format(seen.amount, "f"),
        "txHash": seen.tx_hash,
        "seenAt": moment(seen.seen_at),
        "exchangeId": seen.exchange_id,
        "movedIt": seen.moved_it,
    }


def _paid(paid: Paid) -> dict[str, Any]:
    return {
        "exchangeId": paid.exchange_id,
        "address": paid.address,
        "extraId": paid.extra_id,
        "asset": paid.asset,
        "amount": format(paid.amount, "f"),
        "txHash": paid.tx_hash,
        "sentAt": moment(paid.sent_at),
    }


def _currency(each: Listing) -> dict[str, Any]:
    is_own_chain = each.ticker == each.network
    return {
        "ticker": each.ticker,
        "name": each.name,
        "image": f"https://content-api.changenow.example/uploads/{each.ticker}.svg",
        "hasExternalId": each.has_extra_id,
        "isExtraIdSupported": each.has_extra_id,
        "isFiat": False,
        "featured": each.ticker in ("btc", "eth"),
        "isStable": each.ticker in ("usdt", "usdc"),
        "supportsFixedRate": False,
        "network": each.network,
        "tokenContract": None if is_own_chain else f"contract-of-{each.ticker}-on-{each.network}",
        "buy": True,
        "sell": True,
        "legacyTicker": each.ticker if is_own_chain else f"{each.ticker}{each.network}",
    }


def _cut(document: Any, context: Context) -> Any:
    if isinstance(document, dict):
        return {name: _cut(value, context) for name, value in document.items()}
    if isinstance(document, list):
        return [_cut(each, context) for each in document]
    return context.plus(document) if isinstance(document, Decimal) else document


def _text(document: dict[str, Any]) -> dict[str, Any]:
    return {name: format(value, "f") if isinstance(value, Decimal) else value for name, value in document.items()}
