"""A simulated chain: accounts, a pool of waiting transactions, blocks, reorganisations, and a journal of all of it."""

import hashlib
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from payonce.kit.money import Amount, Asset
from payonce.kit.outcomes import Invalid
from payonce.vendors.books import Denied, system_clock
from payonce.vendors.evm.port import ETH
from payonce.vendors.evm.simulated_key import Transaction, read_raw
from payonce.vendors.journal import Journal

OUTSIDE: Final = "0x" + "e" * 40
"""The account of everyone else: it pays opening balances and incoming transfers, and may go below zero."""
MINERS: Final = "0x" + "f" * 40
GAS_OF_ETH, GAS_OF_TOKEN = 21_000, 52_000
BASE_FEE_WEI: Final = 10_000_000_000
TIP_WEI: Final = 1_000_000_000
FINALITY_BLOCKS: Final = 3
CHAIN_ID: Final = 31_337


class Fate(StrEnum):
    """What happens to bytes that the node has accepted."""

    FORGOTTEN = "forgotten"
    """Dropped: mined only if they are sent again."""
    STUCK = "stuck"
    """Never mined; only a replacement is."""
    OLD_WINS = "old_wins"
    """A replacement is accepted, but the older transaction is mined."""
    REVERTED = "reverted"
    """Mined; the gas is spent and nothing is transferred."""


@dataclass(frozen=True)
class Conditions:
    """How often fates and reorganisations occur. They depend on the seed and the hash or block: runs are repeatable."""

    seed: int = 0
    shares: Mapping[Fate, float] = field(default_factory=dict)
    reorg_share: float = 0.0
    """Share of the blocks with transactions that are dropped once; half of them lose their transactions too."""

    def fate(self, transaction_hash: str) -> Fate | None:
        roll = self.roll(transaction_hash)
        for fate, share in sorted(self.shares.items()):
            if roll < share:
                return fate
            roll -= share
        return None

    def roll(self, subject: str) -> float:
        digest = hashlib.blake2b(f"{self.seed}:{subject}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") / 2**64


@dataclass
class PooledTransaction:
    hash: str
    sender: str
    transaction: Transaction
    stuck: bool = False
    reverts: bool = False


@dataclass(frozen=True)
class MinedTransaction:
    """One transaction of a block."""

    hash: str
    sender: str
    transaction: Transaction
    block_number: int
    succeeded: bool
    gas_used: int
    gas_price: int
    reverts: bool

    @property
    def amount(self) -> Amount:
        return self.transaction.payment.amount

    @property
    def fee_minor(self) -> int:
        return self.gas_used * self.gas_price


class Chain:
    """Every change goes through the journal, and replaying the journal restores the same chain."""

    def __init__(
        self,
        journal: Path | None = None,
        clock: Callable[[], datetime] = system_clock,
        *,
        block_s: float | None = None,
        finality_blocks: int = FINALITY_BLOCKS,
        conditions: Conditions | None = None,
        chain_id: int = CHAIN_ID,
    ) -> None:
        self.finality_blocks = finality_blocks
        self.chain_id = chain_id
        self.height = 0
        self.base_fee = BASE_FEE_WEI
        self.blocks: dict[int, list[MinedTransaction]] = {}
        """Only those with transactions."""
        self.pool: dict[tuple[str, int], PooledTransaction] = {}
        self.fates: deque[Fate | None] = deque()
        """Fates of the next transactions; they take precedence over the conditions."""
        self.notified: set[str] = set()
        """Hashes of the final transfers of which the watcher has been notified."""
        self._notified_to = 0
        """The watcher has been notified of all transfers up to this block."""
        self._balances: dict[tuple[str, Asset], int] = {}
        self._nonces: dict[str, int] = {}
        self._forks: dict[int, int] = {}
        self._mined: dict[str, MinedTransaction] = {}
        self._clock = clock
        self._block_s = block_s
        self._conditions = conditions or Conditions()
        self._mined_at: datetime | None = None
        self._journal = Journal(journal)
        for record in self._journal.records:
            self._apply(record)

    def close(self) -> None:
        self._journal.close()

    def fund(self, address: str, amount: Amount) -> None:
        """Sets an opening balance, unless the address already has a balance of this asset."""
        address = address.lower()
        if (address, amount.asset) not in self._balances:
            self._record({"event": "funded", "address": address, **_plain(amount)})

    def set_base_fee(self, wei: int) -> None:
        self._record({"event": "fee", "base_fee": wei})

    def take(self, raw: str) -> str:
        """Returns the hash of the bytes, or raises Denied with the message of a real node."""
        self.catch_up()
        try:
            transaction_hash, sender, transaction = read_raw(raw)
        except Invalid as error:
            raise Denied("-32000", str(error)) from error
        if transaction.chain_id != self.chain_id:
            raise Denied("-32000", "invalid chain id for signer")
        waiting = self.pool.get((sender, transaction.nonce))
        if waiting is not None and waiting.hash == transaction_hash:
            raise Denied("-32000", "already known")
        if transaction.nonce < self.nonce(sender):
            raise Denied("-32000", f"nonce too low: next nonce {self.nonce(sender)}, tx nonce {transaction.nonce}")
        if waiting is not None and not _outbids(transaction, waiting.transaction):
            raise Denied("-32000", "replacement transaction underpriced")
        self._check_funds(sender, transaction)
        fate = self.fates.popleft() if self.fates else self._conditions.fate(transaction_hash)
        if fate is Fate.OLD_WINS and waiting is not None:
            self._record({"event": "old_wins", "sender": sender, "nonce": transaction.nonce})
        elif fate is not Fate.FORGOTTEN:
            self._record({"event": "taken", "raw": raw, "fate": fate})
        return transaction_hash

    def arrive(self, to: str, amount: Amount, reference: str, *, transaction_hash: str | None = None) -> str:
        """Adds a transfer from outside to the next block. A repeated reference is the same transfer.
        `transaction_hash` is for a sender that has already announced its hash."""
        transaction_hash = transaction_hash or f"0x{hashlib.sha256(f'incoming:{reference}'.encode()).hexdigest()}"
        if transaction_hash not in self._mined and all(each.hash != transaction_hash for each in self.pool.values()):
            self._record({"event": "arriving", "hash": transaction_hash, "to": to.lower(), **_plain(amount)})
        return transaction_hash

    def mine(self, blocks: int = 1) -> None:
        """Mines a block with all transactions that can be in it, then empty blocks."""
        self._perhaps_reorganise()
        hashes = [each.hash for each in self._includable()]
        self._record({"event": "mined", "blocks": blocks, "hashes": hashes})

    def reorganise(self, blocks: int = 1, *, forget: bool = False) -> None:
        """Drops the newest blocks. Their transactions return to the pool, or are lost with `forget`."""
        if not 0 < blocks <= min(self.finality_blocks, self.height):
            raise Invalid(f"{blocks} blocks cannot be dropped: a block {self.finality_blocks} deep is final")
        self._record({"event": "reorganised", "blocks": blocks, "forget": forget})

    def catch_up(self) -> None:
        """Mines the blocks that are due, if the chain has a block time."""
        if self._block_s is None:
            return
        now = self._clock()
        if self._mined_at is None:
            self._record({"event": "mined", "blocks": 1, "hashes": []})
        elif (due := int((now - self._mined_at) / timedelta(seconds=self._block_s))) > 0:
            self.mine(due)

    def mark_notified(self, transaction_hash: str) -> None:
        """Records that the watcher has been notified of a final transfer."""
        self._record({"event": "told", "hash": transaction_hash})

    def nonce(self, address: str, *, final: bool = False) -> int:
        nonce = self._nonces.get(address.lower(), 0)
        if not final:
            return nonce
        newer = [each for number in self._not_final() for each in self.blocks.get(number, ())]
        return nonce - sum(each.sender == address.lower() for each in newer)

    def pending_nonce(self, address: str) -> int:
        nonce = self.nonce(address)
        while (address.lower(), nonce) in self.pool:
            nonce += 1
        return nonce

    @property
    def final_height(self) -> int:
        return self.height - self.finality_blocks

    def balance(self, address: str, asset: Asset) -> Amount:
        return Amount(self._balances.get((address.lower(), asset), 0), asset)

    def balances(self) -> dict[tuple[str, Asset], int]:
        """All balances; those of one asset add up to zero."""
        return dict(self._balances)

    def mined(self, transaction_hash: str) -> MinedTransaction | None:
        return self._mined.get(transaction_hash)

    def block_hash(self, number: int) -> str:
        return f"0x{hashlib.sha256(f'{number}:{self._forks.get(number, 0)}'.encode()).hexdigest()}"

    def transfers(self, *, final: bool = True) -> list[MinedTransaction]:
        """Every transfer that moved money, in order. A double payment is in it twice."""
        numbers = sorted(number for number in self.blocks if not final or number <= self.final_height)
        return [each for number in numbers for each in self.blocks[number] if each.succeeded]

    def not_notified(self) -> list[MinedTransaction]:
        found = [
            each
            for number in range(self._notified_to + 1, self.final_height + 1)
            for each in self.blocks.get(number, ())
            if each.succeeded and each.hash not in self.notified
        ]
        if not found:
            # The number of blocks grows; those before this one need no second look.
            self._notified_to = max(self._notified_to, self.final_height)
        return found

    def _not_final(self) -> range:
        return range(self.final_height + 1, self.height + 1)

    def _check_funds(self, sender: str, transaction: Transaction) -> None:
        cost = transaction.fees.most.minor
        if transaction.asset == ETH.code:
            cost += int(transaction.minor)
        held = self.balance(sender, ETH).minor
        if held < cost:
            raise Denied("-32000", f"insufficient funds for gas * price + value: balance {held}, tx cost {cost}")

    def _includable(self) -> list[PooledTransaction]:
        """In the order of nonces: a gap or a stuck transaction blocks those after it."""
        found: list[PooledTransaction] = []
        left: dict[str, int] = {}
        for sender in sorted({sender for sender, _ in self.pool}):
            nonce = self.nonce(sender)
            left[sender] = self.balance(sender, ETH).minor
            while (waiting := self.pool.get((sender, nonce))) is not None and self._acceptable(waiting):
                transaction = waiting.transaction
                cost = transaction.fees.most.minor + (int(transaction.minor) if transaction.asset == ETH.code else 0)
                if sender != OUTSIDE and left[sender] < cost:
                    break
                left[sender] -= cost
                found.append(waiting)
                nonce += 1
        return found

    def _acceptable(self, waiting: PooledTransaction) -> bool:
        return not waiting.stuck and (waiting.sender == OUTSIDE or waiting.transaction.max_fee >= self.base_fee)

    def _perhaps_reorganise(self) -> None:
        number = self.height
        roll = self._conditions.roll(f"block {number}")
        if number in self.blocks and number not in self._forks and roll < self._conditions.reorg_share:
            self.reorganise(1, forget=roll < self._conditions.reorg_share / 2)

    def _record(self, record: dict[str, Any]) -> None:
        record = {**record, "at": self._clock().isoformat()}
        self._journal.append(record)
        self._apply(record)

    def _apply(self, record: Mapping[str, Any]) -> None:
        match record["event"]:
            case "funded":
                self._move(OUTSIDE, record["address"], _amount(record))
            case "fee":
                self.base_fee = record["base_fee"]
            case "taken":
                transaction_hash, sender, transaction = read_raw(record["raw"])
                self.pool[sender, transaction.nonce] = PooledTransaction(
                    transaction_hash,
                    sender,
                    transaction,
                    stuck=record["fate"] == Fate.STUCK,
                    reverts=record["fate"] == Fate.REVERTED,
                )
            case "old_wins":
                self.pool[record["sender"], record["nonce"]].stuck = False
            case "arriving":
                nonce = self.pending_nonce(OUTSIDE)
                transaction = Transaction(
                    self.chain_id, nonce, record["to"], record["minor"], record["asset"], record["exponent"], 0, 0, 0
                )
                self.pool[OUTSIDE, nonce] = PooledTransaction(record["hash"], OUTSIDE, transaction)
            case "mined":
                self._include(record["hashes"])
                self.height += record["blocks"] - 1
                self._mined_at = datetime.fromisoformat(record["at"])
            case "reorganised":
                self._drop(record["blocks"], record["forget"])
            case "told":
                self.notified.add(record["hash"])

    def _include(self, hashes: list[str]) -> None:
        self.height += 1
        waiting = {each.hash: each for each in self.pool.values()}
        for each in (waiting[one] for one in hashes):
            transaction = each.transaction
            outside = each.sender == OUTSIDE
            gas_used = 0 if outside else GAS_OF_ETH if transaction.asset == ETH.code else GAS_OF_TOKEN
            gas_price = min(transaction.max_fee, self.base_fee + transaction.priority_fee)
            held = self.balance(each.sender, transaction.payment.amount.asset)
            succeeded = outside or (not each.reverts and transaction.payment.amount <= held)
            mined = MinedTransaction(
                each.hash, each.sender, transaction, self.height, succeeded, gas_used, gas_price, each.reverts
            )
            self._execute(mined, 1)
            self._mined[each.hash] = mined
            self.blocks.setdefault(self.height, []).append(mined)
            del self.pool[each.sender, transaction.nonce]

    def _drop(self, blocks: int, forget: bool) -> None:
        for _ in range(blocks):
            for mined in reversed(self.blocks.pop(self.height, [])):
                self._execute(mined, -1)
                del self._mined[mined.hash]
                if not forget or mined.sender == OUTSIDE:
                    waiting = PooledTransaction(mined.hash, mined.sender, mined.transaction, reverts=mined.reverts)
                    self.pool.setdefault((mined.sender, mined.transaction.nonce), waiting)
            self._forks[self.height] = self._forks.get(self.height, 0) + 1
            self.height -= 1
        self._notified_to = min(self._notified_to, self.height)

    def _execute(self, mined: MinedTransaction, sign: int) -> None:
        """Applies a transaction with `sign` 1 and reverts it with -1."""
        sender = mined.sender
        self._nonces[sender] = self._nonces.get(sender, 0) + sign
        self._move(sender, MINERS, Amount(sign * mined.fee_minor, ETH))
        if mined.succeeded:
            self._move(sender, mined.transaction.to, mined.amount * sign)

    def _move(self, source: str, target: str, amount: Amount) -> None:
        for address, change in ((source, -amount.minor), (target, amount.minor)):
            place = (address, amount.asset)
            self._balances[place] = self._balances.get(place, 0) + change


def _outbids(new: Transaction, old: Transaction) -> bool:
    """The rule of real nodes: a tenth more on both fees."""
    return new.max_fee * 10 >= old.max_fee * 11 and new.priority_fee * 10 >= old.priority_fee * 11


def _plain(amount: Amount) -> dict[str, Any]:
    return {"minor": amount.to_minor_text(), "asset": amount.asset.code, "exponent": amount.asset.exponent}


def _amount(record: Mapping[str, Any]) -> Amount:
    return Amount.from_minor(record["minor"], Asset(record["asset"], record["exponent"]))
