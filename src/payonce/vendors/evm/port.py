"""The port of a hot wallet on an Ethereum-compatible chain.

The same signed bytes can be sent any number of times and move money once. So signing and sending are two calls:
between them the caller records nonce and bytes in one transaction.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Final, Protocol, runtime_checkable

import msgspec

from payonce.kit.money import Amount, Asset, well_known
from payonce.kit.outcomes import NotSent

ETH: Final = well_known("ETH")
"""The asset that pays for gas, in wei."""
ADDRESS_PATTERN: Final = r"0x[0-9a-fA-F]{40}"
BUMP_EIGHTHS: Final = 9
"""A replacement offers 9/8 of both fees, 12.5 % more: nodes require 10, some chains 12.5."""


class Fees(msgspec.Struct, frozen=True):
    """The fees that a transaction offers, in wei per unit of gas, and its gas limit."""

    max_fee: int
    priority_fee: int
    gas_limit: int

    @property
    def most(self) -> Amount:
        """The highest cost of the gas."""
        return Amount(self.max_fee * self.gas_limit, ETH)

    def bumped(self, market: "Fees", cap: int) -> "Fees | None":
        """Fees for a replacement: at least an eighth more on both, and at least the market's. None if that exceeds the
        cap, for nodes refuse a smaller increase."""
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
    """In minor units, as text: wei exceed the range of JSON numbers."""
    asset: str
    exponent: int

    @staticmethod
    def of(to: str, amount: Amount) -> "Payment":
        return Payment(to, amount.to_minor_text(), amount.asset.code, amount.asset.exponent)

    @property
    def amount(self) -> Amount:
        return Amount.from_minor(self.minor, Asset(self.asset, self.exponent))


class Signed(msgspec.Struct, frozen=True):
    """A signed transaction. Its bytes determine its effect and its hash."""

    hash: str
    raw: str
    """0x and hexadecimal digits."""
    nonce: int
    fees: Fees


class BroadcastResult(StrEnum):
    """A node's answer to signed bytes."""

    ACCEPTED = "accepted"
    KNOWN = "known"
    """The node already has these bytes."""
    NONCE_PAST = "nonce_past"
    """A transaction with this nonce is in a block: these bytes or others. Receipts show which."""
    UNDERPRICED = "underpriced"
    """The fees are too low for the pool, or to replace the transaction with this nonce."""


class Receipt(msgspec.Struct, frozen=True):
    """The receipt of a mined transaction."""

    hash: str
    succeeded: bool
    """False if it reverted: the gas is spent and nothing was transferred."""
    block_number: int
    block_hash: str
    gas_used: int
    gas_price: int
    """The price charged, in wei."""
    final: bool
    """Whether no reorganisation can revert it."""

    @property
    def fee(self) -> Amount:
        return Amount(self.gas_used * self.gas_price, ETH)


class ChainStatus(msgspec.Struct, frozen=True):
    """The state of the queried transactions and of the wallet's nonces."""

    receipts: tuple[Receipt, ...]
    """Receipts of the mined ones. A reorganisation that drops a block removes its receipts."""
    next_nonce: int
    """The nonce that the next block can include; all lower ones are used."""
    final_nonce: int
    """All lower nonces are used in final blocks."""


class Market(msgspec.Struct, frozen=True):
    """The current price of a transfer, and the wallet's funds."""

    fees: Fees
    """Fees with which a transfer is mined soon."""
    pending_nonce: int
    """The next nonce, counting pending transactions."""
    next_nonce: int
    """The next nonce, counting mined transactions only."""
    balance: Amount
    """The balance of the asset in the newest block."""
    ether: Amount
    """The balance of ETH, for gas."""


class IncomingTransfer(msgspec.Struct, frozen=True):
    """A transfer to this wallet."""

    hash: str
    minor: str
    asset: str
    exponent: int
    sender: str
    """The signer's address, in lower case."""
    block_number: int
    final: bool

    @property
    def amount(self) -> Amount:
        return Amount.from_minor(self.minor, Asset(self.asset, self.exponent))


class OutOfFunds(NotSent):
    """The wallet cannot pay for the transaction, so the node drops it. The same bytes can be sent again later."""


@runtime_checkable
class Wallet(Protocol):
    """One address. The caller holds the wallet's lease. All methods except `sign` raise NotSent or Unknown."""

    @property
    def address(self) -> str: ...

    @property
    def chain_id(self) -> int: ...

    def sign(self, payment: Payment, nonce: int, fees: Fees) -> Signed:
        """Does no I/O, so it can run inside the transaction that records it. Equal arguments give equal bytes. Raises
        Invalid for an asset or address that does not exist on this chain."""
        ...

    async def broadcast(self, signed: Signed) -> BroadcastResult:
        """Sends the bytes to the chain. Raises OutOfFunds, NotSent (no node has the bytes) or Unknown."""
        ...

    async def status(self, hashes: Sequence[str]) -> ChainStatus:
        """The state of these transactions of this wallet, read in one request."""
        ...

    async def incoming(self, transaction_hash: str, asset: Asset) -> IncomingTransfer | None:
        """The transfer to this wallet in the transaction. None if it is not mined or has no such transfer."""
        ...

    async def market(self, asset: Asset) -> Market:
        """Current fees, nonces and balances for a transfer of this asset, read in one request."""
        ...
