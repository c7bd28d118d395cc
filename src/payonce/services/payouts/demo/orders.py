"""The orders of the demonstration `payouts`: payments of every kind, each client with an address of their own."""

import asyncio
import hashlib
import hmac
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from http import HTTPStatus
from typing import Final

import msgspec

from payonce.kit.http import HttpClient
from payonce.kit.money import Amount
from payonce.kit.outcomes import NotSent, Unknown
from payonce.services.payouts.api.webhook import SIGNATURE_HEADER
from payonce.services.payouts.domain.checksums import BASE58, BITCOIN, HASH_BYTES, TRON, base58check, segwit
from payonce.services.payouts.model import USDT

BECH32: Final = "023456789acdefghjklmnpqrstuvwxyz"
HEXADECIMAL: Final = "0123456789abcdef"
CHANNELS: Final = 12
BATCH_OF: Final = 2
"""Small payouts of one client that together reach the minimum."""
DIRECT_LEAST_CENTS: Final = 5_000
"""Well above the gas minimum on the simulated chain, whose fees are constant."""
REPEATED_SHARE: Final = 0.3
"""The share of webhooks that are sent twice."""
TRY_AGAIN_S: Final = 0.2
TRIES_MAX: Final = 300


class Kind(StrEnum):
    SWAPPED = "swapped"
    """The client gets another coin."""
    DIRECT = "direct"
    """The client gets ether."""
    LARGE = "large"
    """Above the exchange's maximum."""
    BATCHED = "batched"
    """Too small by itself, but enough in a batch."""
    SMALL = "small"
    BAD_ADDRESS = "bad_address"
    """A plausible address that the exchange refuses."""


SHARES: Final[Mapping[Kind, float]] = {
    Kind.DIRECT: 0.08,
    Kind.LARGE: 0.03,
    Kind.BATCHED: 0.03,
    Kind.SMALL: 0.06,
    Kind.BAD_ADDRESS: 0.04,
}
"""The rest is swapped."""
COINS: Final = (("btc", "btc"), ("ltc", "ltc"), ("trx", "trx"), ("sol", "sol"), ("usdc", "eth"))
LARGE_COIN: Final = ("xmr", "xmr")


@dataclass(frozen=True)
class DemoOrder:
    payment_id: str
    kind: Kind
    user_id: int
    channel: str
    address: str
    currency: str
    network: str
    price: str

    @property
    def amount(self) -> Amount:
        return Amount.from_decimal(self.price, USDT)

    def body(self, at: datetime, price: str | None = None) -> bytes:
        return msgspec.json.encode(
            {
                "payment_id": self.payment_id,
                "user_id": self.user_id,
                "closed_channel_id": self.channel,
                "wallet_address": self.address,
                "payout_currency": self.currency,
                "payout_network": self.network,
                "subscription_price": price or self.price,
                "timestamp": int(at.timestamp()),
            }
        )


def seeded_orders(count: int, seed: int) -> list[DemoOrder]:
    """The same orders for the same seed."""
    chance = random.Random(seed)
    kinds = [kind for kind, share in SHARES.items() for _ in range(round(share * count))]
    while kinds.count(Kind.BATCHED) % BATCH_OF:
        kinds.append(Kind.BATCHED)
    kinds += [Kind.SWAPPED] * (count - len(kinds))
    batched = kinds.count(Kind.BATCHED)
    # Batched orders of one client share an address: they are generated first and shuffled afterwards.
    kinds = [Kind.BATCHED] * batched + [kind for kind in kinds if kind is not Kind.BATCHED]
    orders = [
        _order(number, kind, f"{seed}:{number // BATCH_OF if kind is Kind.BATCHED else f'alone {number}'}", chance)
        for number, kind in enumerate(kinds)
    ]
    chance.shuffle(orders)
    return orders


def _order(number: int, kind: Kind, client: str, chance: random.Random) -> DemoOrder:
    match kind:
        case Kind.DIRECT:
            currency, network = "eth", "eth"
        case Kind.LARGE:
            currency, network = LARGE_COIN
        case Kind.BATCHED:
            currency, network = "btc", "btc"
        case Kind.BAD_ADDRESS:
            # A coin whose checksum only the exchange verifies.
            currency, network = "ltc", "ltc"
        case _:
            currency, network = chance.choice(COINS)
    cents = {
        Kind.LARGE: chance.randint(200_000, 400_000),
        Kind.BATCHED: 400,
        Kind.SMALL: chance.randint(150, 450),
    }.get(kind, chance.randint(2_000, 60_000))
    if kind is Kind.DIRECT:
        cents = max(cents, DIRECT_LEAST_CENTS)
    address = _address(client, network)
    if kind is Kind.BAD_ADDRESS:
        address = address[:18]
    return DemoOrder(
        f"payment-{number:05}",
        kind,
        7_000_000_000 + number,
        f"-100{chance.randrange(CHANNELS)}",
        address,
        currency,
        network,
        f"{cents // 100}.{cents % 100:02}",
    )


def _address(client: str, network: str) -> str:
    hashed = hashlib.shake_256(client.encode())
    if network == "btc":
        return segwit(BITCOIN, 0, hashed.digest(HASH_BYTES))
    if network == "trx":
        return base58check(TRON + hashed.digest(HASH_BYTES))
    shapes = {
        "ltc": ("ltc1q", BECH32, 38),
        "sol": ("", BASE58, 44),
        "eth": ("0x", HEXADECIMAL, 40),
        "xmr": ("4", BASE58, 94),
    }
    start, letters, length = shapes[network]
    number = int.from_bytes(hashed.digest(length), "big")
    rest = []
    for _ in range(length):
        number, place = divmod(number, len(letters))
        rest.append(letters[place])
    return start + "".join(rest)


@dataclass
class WebhookCaller:
    """Sends the webhooks: each until it is answered, and some of them twice."""

    http: HttpClient
    key: bytes
    now: Callable[[], datetime]
    taken: dict[str, str] = field(default_factory=dict)
    """The payout of each payment, from the answers."""
    repeated: int = 0
    signed_again: int = 0
    """Bodies whose timestamp was too old on arrival."""
    wrong: list[str] = field(default_factory=list)
    """Unexpected answers."""

    async def order(self, order: DemoOrder, chance: random.Random) -> None:
        twice, other = chance.random() < REPEATED_SHARE, chance.random() < REPEATED_SHARE / 10
        await self._send(order)
        if twice:
            self.repeated += 1
            await self._send(order)
        if other:
            status, _ = await self._posted(order, price="1.23")
            if status != 409:
                self.wrong.append(f"{order.payment_id} with another price was answered {status}")

    async def _send(self, order: DemoOrder) -> None:
        status, answer = await self._posted(order)
        if status != 200:
            self.wrong.append(f"{order.payment_id} was answered {status}: {answer[:200]!r}")
            return
        payout_id = msgspec.json.decode(answer)["payout_id"]
        if self.taken.setdefault(order.payment_id, payout_id) != payout_id:
            self.wrong.append(f"{order.payment_id} became two payouts")

    async def _posted(self, order: DemoOrder, price: str | None = None) -> tuple[int, bytes]:
        for _ in range(TRIES_MAX):
            body = order.body(self.now(), price)
            signature = hmac.new(self.key, body, hashlib.sha256).hexdigest()
            headers = {SIGNATURE_HEADER: signature, "Content-Type": "application/json"}
            try:
                answer = await self.http.request("POST", "/", body=body, headers=headers)
            except (NotSent, Unknown):
                # The role is down or died before it could answer: send it again.
                await asyncio.sleep(TRY_AGAIN_S)
                continue
            if _is_stale(answer.status, answer.body):
                # On a busy machine the clock was moved between the signature and its verification: sign it again.
                self.signed_again += 1
            elif answer.status < 500:
                return answer.status, answer.body
            await asyncio.sleep(TRY_AGAIN_S)
        return 0, b"never answered"


def _is_stale(status: int, body: bytes) -> bool:
    """Whether the webhook was refused only for its timestamp."""
    return status == HTTPStatus.BAD_REQUEST and b"timestamp is more than" in body
