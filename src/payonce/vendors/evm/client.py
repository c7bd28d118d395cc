"""The client of one node: JSON-RPC, and the outcome of each answer.

| answer to eth_sendRawTransaction | means |
|---|---|
| the hash of the bytes | accepted |
| `already known` | known: the node has these bytes |
| `nonce too low` | nonce_past: these bytes or others of this nonce are in a block |
| `… underpriced`, `fee cap less than block base fee`, `tip … below minimum` | underpriced |
| `insufficient funds …` | OutOfFunds: the node dropped the bytes; it may accept them later |
| 429; no connection | NotSent |
| any other answer or status, no answer, another hash | Unknown: the bytes may be on their way |
"""

import zlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol

import msgspec

from payonce.kit.budget import Budget, Unlimited
from payonce.kit.http import HttpClient, Response, Watch, request_within
from payonce.kit.money import Amount, Asset
from payonce.kit.outcomes import Invalid, NotSent, Unknown
from payonce.vendors.evm.port import (
    ETH,
    BroadcastResult,
    ChainStatus,
    Fees,
    IncomingTransfer,
    Market,
    OutOfFunds,
    Payment,
    Receipt,
    Signed,
)

BALANCE_OF: Final = "0x70a08231"
TRANSFERRED: Final = "0xddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef"
GAS_OF_ETH, GAS_OF_TOKEN = 21_000, 100_000
"""Limits: unused gas costs nothing."""
HEADROOM: Final = 2
"""The base fee rises by at most an eighth per block, so twice the fee suffices for five blocks."""
ANSWERS: Final = (
    ("already known", BroadcastResult.KNOWN),
    ("nonce too low", BroadcastResult.NONCE_PAST),
    ("underpriced", BroadcastResult.UNDERPRICED),
    ("less than block base fee", BroadcastResult.UNDERPRICED),
    ("below minimum", BroadcastResult.UNDERPRICED),
)
NO_FUNDS: Final = "insufficient funds"

Call = tuple[str, list[Any]]


class Key(Protocol):
    """Signs without network access."""

    @property
    def address(self) -> str: ...

    @property
    def chain_id(self) -> int: ...

    def sign(self, payment: Payment, nonce: int, fees: Fees) -> Signed: ...


class RpcError(msgspec.Struct, frozen=True):
    code: int
    message: str


class RpcAnswer(msgspec.Struct, frozen=True):
    id: int
    result: Any = None
    error: RpcError | None = None


class EvmClient:
    """One address at one node, within a budget of calls. `tokens` are the contracts of the assets other than ETH."""

    def __init__(
        self,
        http: HttpClient,
        key: Key,
        tokens: Mapping[Asset, str] | None = None,
        budget: Budget | None = None,
        *,
        watch: Watch | None = None,
    ) -> None:
        self._http = http
        self._key = key
        self._tokens = dict(tokens or {})
        self._budget = budget or Unlimited()
        self._watch = watch

    @property
    def address(self) -> str:
        return self._key.address

    @property
    def chain_id(self) -> int:
        return self._key.chain_id

    def sign(self, payment: Payment, nonce: int, fees: Fees) -> Signed:
        self._contract(payment.amount.asset)
        return self._key.sign(payment, nonce, fees)

    async def broadcast(self, signed: Signed) -> BroadcastResult:
        answer, source = await self._ask("eth_sendRawTransaction", [signed.raw])
        if answer.error is None:
            if answer.result != signed.hash:
                raise Unknown(f"{source} accepted other bytes than those of {signed.hash}")
            return BroadcastResult.ACCEPTED
        text = answer.error.message
        if NO_FUNDS in text:
            raise OutOfFunds(f"{self.address} cannot pay for nonce {signed.nonce}: {text}")
        for words, taken in ANSWERS:
            if words in text:
                return taken
        raise Unknown(f"{source} answered {answer.error.code}: {text[:200]}")

    async def status(self, hashes: Sequence[str]) -> ChainStatus:
        # The final height is read first: a receipt read later whose block is no higher is final.
        final, used, latest, *found = await self._results(
            ("eth_getBlockByNumber", ["finalized", False]),
            ("eth_getTransactionCount", [self.address, "finalized"]),
            ("eth_getTransactionCount", [self.address, "latest"]),
            *(("eth_getTransactionReceipt", [each]) for each in hashes),
        )
        height = _number(_field(final, "number"))
        receipts = [_receipt(name, each, height) for name, each in zip(hashes, found, strict=True) if each is not None]
        return ChainStatus(tuple(receipts), _number(latest), _number(used))

    async def incoming(self, transaction_hash: str, asset: Asset) -> IncomingTransfer | None:
        contract = self._contract(asset)
        final, found, sent = await self._results(
            ("eth_getBlockByNumber", ["finalized", False]),
            ("eth_getTransactionReceipt", [transaction_hash]),
            ("eth_getTransactionByHash", [transaction_hash]),
        )
        if found is None or sent is None:
            return None
        receipt = _receipt(transaction_hash, found, _number(_field(final, "number")))
        minor = self._value(sent) if contract is None else self._logged(found, contract)
        if not receipt.succeeded or minor == 0:
            return None
        sender = str(_field(sent, "from")).lower()
        return IncomingTransfer(
            transaction_hash, str(minor), asset.code, asset.exponent, sender, receipt.block_number, receipt.final
        )

    async def market(self, asset: Asset) -> Market:
        contract = self._contract(asset)
        calls: list[Call] = [
            ("eth_getBlockByNumber", ["latest", False]),
            ("eth_maxPriorityFeePerGas", []),
            ("eth_getTransactionCount", [self.address, "pending"]),
            ("eth_getTransactionCount", [self.address, "latest"]),
            ("eth_getBalance", [self.address, "latest"]),
        ]
        if contract is not None:
            data = f"{BALANCE_OF}{self.address.removeprefix('0x'):0>64}"
            calls.append(("eth_call", [{"to": contract, "data": data}, "latest"]))
        block, tip, pending, used, ether, *token = await self._results(*calls)
        base_fee, priority_fee = _number(_field(block, "baseFeePerGas")), _number(tip)
        return Market(
            Fees(base_fee * HEADROOM + priority_fee, priority_fee, GAS_OF_TOKEN if token else GAS_OF_ETH),
            _number(pending),
            _number(used),
            Amount(_number(token[0] if token else ether), asset),
            Amount(_number(ether), ETH),
        )

    def _value(self, sent: Any) -> int:
        if str(_field(sent, "to")).lower() != self.address.lower():
            return 0
        return _number(_field(sent, "value"))

    def _logged(self, found: Any, contract: str) -> int:
        here = f"0x{self.address.removeprefix('0x').lower():0>64}"
        total = 0
        for line in found.get("logs", ()):
            topics = [str(each).lower() for each in line.get("topics", ())]
            if str(line.get("address", "")).lower() == contract.lower() and topics[:1] + topics[2:] == [
                TRANSFERRED,
                here,
            ]:
                total += _number(line.get("data"))
        return total

    def _contract(self, asset: Asset) -> str | None:
        """None for ETH itself."""
        if asset == ETH:
            return None
        if asset not in self._tokens:
            raise Invalid(
                f"the wallet knows no contract of {asset} with {asset.exponent} decimals; name it where the "
                "wallet is opened"
            )
        return self._tokens[asset]

    async def _results(self, *calls: Call) -> list[Any]:
        """The results of several calls in one request. Raises Unknown for an error: a failed query proves nothing."""
        bodies = [_body(*call) for call in calls]
        answered = await self._send(calls[0][0], bodies)
        answers = {each.id: each for each in answered.decode(list[RpcAnswer])}
        found = []
        for (method, _), body in zip(calls, bodies, strict=True):
            answer = answers.get(body["id"])
            if answer is None:
                raise Unknown(f"{answered.source} {method} answered another request")
            if answer.error is not None:
                raise Unknown(f"{answered.source} {method} answered {answer.error.code}: {answer.error.message[:200]}")
            found.append(answer.result)
        return found

    async def _ask(self, method: str, parameters: list[Any]) -> tuple[RpcAnswer, str]:
        body = _body(method, parameters)
        answered = await self._send(method, body)
        answer = answered.decode(RpcAnswer)
        if answer.id != body["id"]:
            raise Unknown(f"{answered.source} {method} answered another request")
        return answer, f"{answered.source} {method}"

    async def _send(self, call: str, body: Any) -> Response:
        """Calls in one request count as one, under the name of the first."""
        observe = None if self._watch is None else partial(self._watch, call)
        answered = await request_within(self._budget, self._http, "POST", "/", observe=observe, json=body)
        if answered.status == 429:
            raise NotSent(f"{answered.source} was refused: too many requests")
        if answered.status != 200:
            raise Unknown(f"{answered.source} answered {answered.status}: {answered.excerpt()}")
        return answered


def _body(method: str, parameters: list[Any]) -> dict[str, Any]:
    # The id depends on the call alone: an answer to another call is detected, and a repeated call can be recognised.
    number = zlib.crc32(msgspec.json.encode([method, parameters]))
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": parameters}


def _receipt(transaction_hash: str, found: Any, final_height: int) -> Receipt:
    if _field(found, "transactionHash") != transaction_hash:
        raise Unknown(f"the node answered about another transaction than {transaction_hash}")
    block_number = _number(_field(found, "blockNumber"))
    return Receipt(
        transaction_hash,
        _number(_field(found, "status")) == 1,
        block_number,
        str(_field(found, "blockHash")),
        _number(_field(found, "gasUsed")),
        _number(_field(found, "effectiveGasPrice")),
        block_number <= final_height,
    )


def _field(found: Any, name: str) -> Any:
    if not isinstance(found, dict) or name not in found:
        raise Unknown(f"the node answered without {name}")
    return found[name]


def _number(quantity: Any) -> int:
    """A quantity as nodes write it: 0x and hexadecimal digits."""
    try:
        if not isinstance(quantity, str) or not quantity.startswith("0x"):
            raise ValueError
        return int(quantity, 16)
    except ValueError:
        raise Unknown(f"the node answered {str(quantity)[:60]!r} instead of a number") from None
