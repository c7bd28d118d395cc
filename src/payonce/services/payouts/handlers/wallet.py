"""The host wallet as hostpay uses it: its writer lease, the chain's fees, and the effects that pay."""

import asyncio
import time
from collections.abc import Awaitable
from typing import Final, TypeVar

import msgspec

from payonce.engine.database import leases
from payonce.engine.database.connections import Database
from payonce.engine.effects import Effect, Rebroadcast
from payonce.engine.messages.model import Lease
from payonce.engine.messages.transaction import Reader, Tx
from payonce.kit.log import get_logger
from payonce.kit.money import Amount, Asset
from payonce.kit.outcomes import Held, NotSent, Retry, Stale, Unknown
from payonce.services.payouts.model import Swap
from payonce.services.payouts.policies import VENDOR_TIMEOUT_S
from payonce.services.payouts.store import wallet as wallet_store
from payonce.services.payouts.store.wallet import Attempt, PayRequest, WalletPayment
from payonce.vendors.evm.port import BroadcastResult, Fees, Market, Payment, Signed, Wallet

LEASE_TTL_S: Final = 5.0
RENEW_AFTER_S: Final = LEASE_TTL_S / 3
MARKET_S: Final = 3.0
"""Maximum age of the chain's fees and nonces: concurrent payments share one query."""
FEE_CAP_WEI: Final = 500_000_000_000
"""Per unit of gas: 500 gwei, which mainnet has exceeded for a few hours of its history. Above it payments wait."""

log = get_logger(__name__)

Anything = TypeVar("Anything")


class HostWallet:
    """The wallet of this process. While it writes, it holds the lease, so that no other process writes; an idle wallet
    lets the lease expire."""

    def __init__(
        self,
        wallet: Wallet,
        database: Database,
        holder: str,
        *,
        market_s: float = MARKET_S,
        fee_cap_wei: int = FEE_CAP_WEI,
    ) -> None:
        self.wallet = wallet
        self.fee_cap_wei = fee_cap_wei
        self._database = database
        self._holder = holder
        self._lease: Lease | None = None
        self._leased_at = 0.0
        self._asking = asyncio.Lock()
        self._market_s = market_s
        self._markets: dict[Asset, tuple[float, asyncio.Task[Market]]] = {}

    async def lease(self) -> Lease:
        """The lease to write for the wallet. Raises Held while another process has it."""
        async with self._asking:
            asked_at = time.monotonic()
            if self._lease is not None and asked_at < self._leased_at + RENEW_AFTER_S:
                return self._lease
            if self._lease is not None and not await leases.renew(self._database, self._lease):
                self._lease = None
            if self._lease is None:
                name = f"wallet:{self.wallet.address}"
                self._lease = await leases.acquire(self._database, name, self._holder, LEASE_TTL_S)
            self._leased_at = asked_at
            if self._lease is None:
                raise Held(f"another process writes for the wallet {self.wallet.address}", LEASE_TTL_S)
            return self._lease

    async def fence(self, tx: Tx, lease: Lease) -> None:
        """Prevents a takeover of the wallet until the transaction ends. Raises Held if the lease is lost."""
        try:
            await tx.fence(lease)
        except Stale as error:
            self._lease = None
            raise Held(str(error), LEASE_TTL_S) from error

    async def record_wait(self, swap: Swap, why: str | None) -> None:
        await wallet_store.record_wait(self._database, swap, why)

    async def market(self, asset: Asset) -> Market:
        """Fees, nonces and balance, at most `market_s` old. Concurrent callers share one query and its failure;
        one by one, each would wait for its own time-out."""
        known = self._markets.get(asset)
        if known is None or time.monotonic() >= known[0] + self._market_s or _has_failed(known[1]):
            known = self._markets[asset] = time.monotonic(), asyncio.create_task(self._fetch_market(asset))
        # A cancelled caller must not cancel the query of the others.
        return await asyncio.shield(known[1])

    async def _fetch_market(self, asset: Asset) -> Market:
        found = await chain_answer(self.wallet.market(asset))
        max_fee = min(found.fees.max_fee, self.fee_cap_wei)
        capped = Fees(max_fee, min(found.fees.priority_fee, max_fee), found.fees.gas_limit)
        return msgspec.structs.replace(found, fees=capped)

    async def report_nonce(self, nonce: int, why: str) -> None:
        """Alerts operators of a foreign nonce, once however often it is seen."""
        async with self._database.transaction() as connection:
            is_new = await wallet_store.report_nonce(connection, self.wallet, nonce, why)
        if is_new:
            log.error("wallet_nonce", wallet=self.wallet.address, nonce=nonce, why=why)


def _has_failed(look: asyncio.Task[Market]) -> bool:
    return look.done() and (look.cancelled() or look.exception() is not None)


async def chain_answer(query: Awaitable[Anything]) -> Anything:
    """The chain's answer to a query. Raises Retry if there is none."""
    try:
        return await query
    except (NotSent, Unknown) as silence:
        raise Retry(f"the chain did not answer: {silence.reason}") from silence


class Sent(msgspec.Struct, frozen=True):
    """The chain has accepted the bytes. Only a receipt proves that it keeps them."""

    wallet: str
    nonce: int
    hash: str
    taken: BroadcastResult


class PayDeposit(Effect[PayRequest, Sent]):
    """Broadcasts the recorded bytes. In doubt the same bytes are sent again; they move money only once."""

    kind, version, timeout_s = "evm.pay", 1, VENDOR_TIMEOUT_S
    safety = Rebroadcast()

    def __init__(self, host: HostWallet, read: Reader, swap: Swap) -> None:
        self.host = host
        self.read = read
        self.swap = swap
        self.prepared: PayRequest | None = None
        self.signed: Signed | None = None

    def identity(self) -> object:
        """Without fees, nonces and balance, which change with the chain."""
        assert self.swap.payin_address is not None
        return {"swap": self.swap.id, "payment": Payment.of(self.swap.payin_address, self.swap.amount)}

    async def prepare(self) -> PayRequest:
        market = await self.host.market(self.swap.amount.asset)
        assert self.swap.payin_address is not None
        payment = Payment.of(self.swap.payin_address, self.swap.amount)
        self.prepared = PayRequest(
            self.swap.id, payment, market.fees, market.next_nonce, market.pending_nonce, market.balance.to_minor_text()
        )
        return self.prepared

    async def sign(self, tx: Tx, lease: Lease) -> None:
        """Runs in the intent's transaction: fence, nonce and bytes are recorded with the request or not at all."""
        assert self.prepared is not None
        await self.host.fence(tx, lease)
        self.signed = await wallet_store.sign_payment(tx, self.host.wallet, self.prepared)

    async def perform(self, request: PayRequest) -> Sent:
        """Sends the bytes that the intent recorded; a later attempt reads them from the record."""
        newest, self.signed = self.signed, None
        if newest is None:
            newest = (await wallet_store.attempts_of(self.read, request.swap_id))[0].signed
        taken = await self.host.wallet.broadcast(newest)
        return Sent(self.host.wallet.address, newest.nonce, newest.hash, taken)

    def amount(self, request: PayRequest) -> Amount:
        return request.payment.amount

    def vendor_ref(self, outcome: Sent) -> str:
        return f"{outcome.wallet}:{outcome.nonce}"


class BumpRequest(msgspec.Struct, frozen=True):
    swap_id: str
    attempt: int
    fees: Fees


class BumpPayment(Effect[BumpRequest, Sent]):
    """Replaces a pending payment by bytes of the same nonce with higher fees. It moves no additional money."""

    kind, version, timeout_s = "evm.bump", 1, VENDOR_TIMEOUT_S
    safety = Rebroadcast()

    def __init__(self, host: HostWallet, read: Reader, paid: WalletPayment, attempt: int, fees: Fees) -> None:
        self.host = host
        self.read = read
        self.paid = paid
        self.attempt = attempt
        self.fees = fees

    @property
    def key(self) -> str:
        return f"{self.paid.swap_id}/bump/{self.attempt}"

    def identity(self) -> object:
        """Without the fees, which change with the chain."""
        return {"swap": self.paid.swap_id, "attempt": self.attempt, "payment": self.paid.payment}

    async def prepare(self) -> BumpRequest:
        return BumpRequest(self.paid.swap_id, self.attempt, self.fees)

    async def sign(self, tx: Tx, lease: Lease, swap: Swap, before: Attempt) -> None:
        """Runs in the intent's transaction: the attempt is recorded before it is sent."""
        await self.host.fence(tx, lease)
        signed = self.host.wallet.sign(self.paid.payment, self.paid.nonce, self.fees)
        await wallet_store.add_attempt(tx, self.paid, before, signed)
        await wallet_store.record_sent(tx, swap, tx_hash=signed.hash)

    async def perform(self, request: BumpRequest) -> Sent:
        attempts = await wallet_store.attempts_of(self.read, request.swap_id)
        [signed] = [each.signed for each in attempts if each.number == request.attempt]
        taken = await self.host.wallet.broadcast(signed)
        return Sent(self.paid.wallet, signed.nonce, signed.hash, taken)

    def vendor_ref(self, outcome: Sent) -> str:
        return outcome.hash
