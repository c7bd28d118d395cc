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
"""Everybody else: where opening balances and incoming transfers come from. It may owe."""
MINERS: Final = "0x" + "f" * 40
GAS_OF_ETH, GAS_OF_TOKEN = 21_000, 52_000
BASE_FEE_WEI: Final = 10_000_000_000
TIP_WEI: Final = 1_000_000_000
FINALITY_BLOCKS: Final = 3
CHAIN_ID: Final = 31_337


class Fate(StrEnum):
    """What becomes of bytes that the node says it took."""

    FORGOTTEN = "forgotten"
    """Kept by nobody: never in a block unless they are sent again."""
    STUCK = "stuck"
    """No miner takes them before they are replaced."""
    OLD_WINS = "old_wins"
    """As a replacement: taken, and a miner has the older one all the same."""
    REVERTED = "reverted"
    """In a block, gas spent, nothing transferred."""


@dataclass(frozen=True)
class Conditions:
    """How often fates and reorganisations come; drawn from the seed and the hash or block, so a run can be repeated."""

    seed: int = 0
    shares: Mapping[Fate, float] = field(default_factory=dict)
    reorg_share: float = 0.0
    """Of the blocks with transactions, those that are dropped once; half of the time their transactions are, too."""

    def fate(self, transaction_hash: str) -> Fate | None:
        roll = self.roll(transaction_hash)
        for fate, share in sorted(self.shares.items()):
            if roll < share:
                return fate
            roll -= share
        return None

    def roll(self, what: str) -> float:
        digest = hashlib.blake2b(f"{self.seed}:{what}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") / 2**64


@dataclass
class Waiting:
    hash: str
    sender: str
    transaction: Transaction
    stuck: bool = False
    reverts: bool = False


@dataclass(frozen=True)
class Mined:
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
    """Everything changes through the journal: what is on record makes the same chain again."""

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
        self.blocks: dict[int, list[Mined]] = {}
        """Only those with transactions."""
        self.pool: dict[tuple[str, int], Waiting] = {}
        self.fates: deque[Fate | None] = deque()
        """Of the next transactions, before the conditions are asked."""
        self.told: set[str] = set()
        """Final transfers that whoever watches has heard of."""
        self._told_to = 0
        """Up to this block whoever watches has heard of everything."""
        self._balances: dict[tuple[str, Asset], int] = {}
        self._nonces: dict[str, int] = {}
        self._forks: dict[int, int] = {}
        self._mined: dict[str, Mined] = {}
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
        """An opening balance; one who has any keeps what they have."""
        address = address.lower()
        if (address, amount.asset) not in self._balances:
            self._record({"event": "funded", "address": address, **_plain(amount)})

    def set_base_fee(self, wei: int) -> None:
        self._record({"event": "fee", "base_fee": wei})

    def take(self, raw: str) -> str:
        """The node's answer to bytes: their hash, or Denied in the words of real nodes."""
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
        """A transfer from outside, in the next block; the same reference again is the same transfer. Whoever has named
        its hash already names it here."""
        transaction_hash = transaction_hash or f"0x{hashlib.sha256(f'incoming:{reference}'.encode()).hexdigest()}"
        if transaction_hash not in self._mined and all(each.hash != transaction_hash for each in self.pool.values()):
            self._record({"event": "arriving", "hash": transaction_hash, "to": to.lower(), **_plain(amount)})
        return transaction_hash

    def mine(self, blocks: int = 1) -> None:
        """The next block with what can be in it, and empty ones behind it."""
        self._perhaps_reorganise()
        hashes = [each.hash for each in self._includable()]
        self._record({"event": "mined", "blocks": blocks, "hashes": hashes})

    def reorganise(self, blocks: int = 1, *, forget: bool = False) -> None:
        """Drops the newest blocks, which are not final; with `forget` their transactions are in no pool either."""
        if not 0 < blocks <= min(self.finality_blocks, self.height):
            raise Invalid(f"{blocks} blocks cannot be dropped: {self.finality_blocks} deep a block is final")
        self._record({"event": "reorganised", "blocks": blocks, "forget": forget})

    def catch_up(self) -> None:
        """Mines what has fallen due by the clock, if blocks come by the clock."""
        if self._block_s is None:
            return
        now = self._clock()
        if self._mined_at is None:
            self._record({"event": "mined", "blocks": 1, "hashes": []})
        elif (due := int((now - self._mined_at) / timedelta(seconds=self._block_s))) > 0:
            self.mine(due)

    def tell(self, transaction_hash: str) -> None:
        """Notes that whoever watches has heard of a final transfer."""
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
        """Of everybody; in every asset they add up to zero."""
        return dict(self._balances)

    def mined(self, transaction_hash: str) -> Mined | None:
        return self._mined.get(transaction_hash)

    def block_hash(self, number: int) -> str:
        return f"0x{hashlib.sha256(f'{number}:{self._forks.get(number, 0)}'.encode()).hexdigest()}"

    def transfers(self, *, final: bool = True) -> list[Mined]:
        """Every transfer that moved money, in order: what a double payment shows in."""
        numbers = sorted(number for number in self.blocks if not final or number <= self.final_height)
        return [each for number in numbers for each in self.blocks[number] if each.succeeded]

    def untold(self) -> list[Mined]:
        found = [
            each
            for number in range(self._told_to + 1, self.final_height + 1)
            for each in self.blocks.get(number, ())
            if each.succeeded and each.hash not in self.told
        ]
        if not found:
            # It grows with every block: what is behind is not looked at again.
            self._told_to = max(self._told_to, self.final_height)
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

    def _includable(self) -> list[Waiting]:
        """In the order of nonces: a gap or a stuck one holds up what stands behind it."""
        found: list[Waiting] = []
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

    def _acceptable(self, waiting: Waiting) -> bool:
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
                self.pool[sender, transaction.nonce] = Waiting(
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
                self.pool[OUTSIDE, nonce] = Waiting(record["hash"], OUTSIDE, transaction)
            case "mined":
                self._include(record["hashes"])
                self.height += record["blocks"] - 1
                self._mined_at = datetime.fromisoformat(record["at"])
            case "reorganised":
                self._drop(record["blocks"], record["forget"])
            case "told":
                self.told.add(record["hash"])

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
            mined = Mined(
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
                    waiting = Waiting(mined.hash, mined.sender, mined.transaction, reverts=mined.reverts)
                    self.pool.setdefault((mined.sender, mined.transaction.nonce), waiting)
            self._forks[self.height] = self._forks.get(self.height, 0) + 1
            self.height -= 1
        self._told_to = min(self._told_to, self.height)

    def _execute(self, mined: Mined, sign: int) -> None:
        """With -1 it is undone."""
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
