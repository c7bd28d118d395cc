"""What payonce asks of a hot wallet on a chain that speaks Ethereum's language, and the words it asks with.

The promise of a payment is that the same signed bytes may go out any number of times and move money once. So signing
and sending are two calls: between them the caller puts nonce and bytes on record, in one transaction.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Final, Protocol, runtime_checkable

import msgspec

from payonce.kit.money import Amount, Asset, well_known
from payonce.kit.outcomes import NotSent

ETH: Final = well_known("ETH")
"""What gas is paid with, in wei."""
ADDRESS_PATTERN: Final = r"0x[0-9a-fA-F]{40}"
BUMP_EIGHTHS: Final = 9
"""A replacement offers 9/8 of both fees, 12.5 % more: nodes ask for 10, and some chains for 12.5."""


class Fees(msgspec.Struct, frozen=True):
    """What a transaction offers, in wei for a unit of gas, and how much gas it may use."""

    max_fee: int
    priority_fee: int
    gas_limit: int

    @property
    def most(self) -> Amount:
        """What the gas costs at worst."""
        return Amount(self.max_fee * self.gas_limit, ETH)

    def bumped(self, market: "Fees", cap: int) -> "Fees | None":
        """At least an eighth more on both fees, and no less than the market offers now. None above the cap: a
        replacement with less than an eighth more would be refused."""
        least = [-(-fee * BUMP_EIGHTHS // 8) for fee in (self.max_fee, self.priority_fee)]
        max_fee = min(max(least[0], market.max_fee), cap)
        if max_fee < least[0]:
            return None
        priority_fee = min(max(least[1], market.priority_fee), max_fee)
        return Fees(max_fee, priority_fee, max(self.gas_limit, market.gas_limit))


class Payment(msgspec.Struct, frozen=True):
    """One transfer out of the wallet."""

    to: str
    minor: str
    """In minor units, as a text: JSON's numbers are too small for wei."""
    asset: str
    exponent: int

    @staticmethod
    def of(to: str, amount: Amount) -> "Payment":
        return Payment(to, amount.to_minor_text(), amount.asset.code, amount.asset.exponent)

    @property
    def amount(self) -> Amount:
        return Amount.from_minor(self.minor, Asset(self.asset, self.exponent))


class Signed(msgspec.Struct, frozen=True):
    """A transaction that anybody may hand to the chain: what it does and its hash are settled by its bytes."""

    hash: str
    raw: str
    """0x and hexadecimal digits."""
    nonce: int
    fees: Fees


class Taken(StrEnum):
    """What a node said of bytes that it was handed. Each of these is an answer, none an error."""

    ACCEPTED = "accepted"
    KNOWN = "known"
    """It has these very bytes already."""
    NONCE_PAST = "nonce_past"
    """A transaction of this nonce is in a block: these bytes or others; their receipts tell."""
    UNDERPRICED = "underpriced"
    """It offers too little to be kept, or to replace what has its nonce."""


class Receipt(msgspec.Struct, frozen=True):
    """Of a transaction that is in a block."""

    hash: str
    succeeded: bool
    """False: the gas is spent and nothing was transferred."""
    block_number: int
    block_hash: str
    gas_used: int
    gas_price: int
    """In wei, as it was charged."""
    final: bool
    """No reorganisation of the chain takes it back any more."""

    @property
    def fee(self) -> Amount:
        return Amount(self.gas_used * self.gas_price, ETH)


class Standing(msgspec.Struct, frozen=True):
    """Of some transactions of the wallet, and of its nonces."""

    receipts: tuple[Receipt, ...]
    """Of those that are in a block. One is gone again after a reorganisation that dropped its block."""
    next_nonce: int
    """The one that the next block can take: every lower one is used in the newest block or before."""
    final_nonce: int
    """Every lower one is used for ever."""


class Market(msgspec.Struct, frozen=True):
    """What the chain asks for a transfer, and what the wallet has for it."""

    fees: Fees
    """What gets it into a block soon."""
    pending_nonce: int
    """The next one, counting what waits for a block."""
    next_nonce: int
    """The next one, counting only what is in a block."""
    balance: Amount
    """Of the asset, in the newest block."""
    ether: Amount
    """For the gas."""


class Incoming(msgspec.Struct, frozen=True):
    """What a transaction of somebody else brought to this wallet."""

    hash: str
    minor: str
    asset: str
    exponent: int
    sender: str
    """Who signed it, in small letters."""
    block_number: int
    final: bool

    @property
    def amount(self) -> Amount:
        return Amount.from_minor(self.minor, Asset(self.asset, self.exponent))


class OutOfFunds(NotSent):
    """The node keeps no transaction that the wallet cannot pay for; the same bytes may be taken once it can."""


@runtime_checkable
class Wallet(Protocol):
    """One address. Whoever calls holds the wallet's lease. Calls but `sign` raise NotSent or Unknown."""

    @property
    def address(self) -> str: ...

    @property
    def chain_id(self) -> int: ...

    def sign(self, payment: Payment, nonce: int, fees: Fees) -> Signed:
        """Without any input or output, so that it may happen inside the transaction that records it; the same
        arguments give the same bytes. Raises Invalid for an asset or address that this chain does not have."""
        ...

    async def broadcast(self, signed: Signed) -> Taken:
        """Hands the bytes to the chain. Raises OutOfFunds, NotSent (no node has seen them) or Unknown."""
        ...

    async def standing(self, hashes: Sequence[str]) -> Standing:
        """Where the chain stands with these transactions of this wallet, asked at one moment."""
        ...

    async def incoming(self, transaction_hash: str, asset: Asset) -> Incoming | None:
        """What the transaction brought here; None while it is in no block, and for one that brought nothing."""
        ...

    async def market(self, asset: Asset) -> Market:
        """What a transfer of this asset needs now, asked at one moment."""
        ...
