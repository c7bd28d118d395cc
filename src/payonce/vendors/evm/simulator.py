"""A node of the simulated chain, with JSON-RPC. `payonce.testing.faults` adds network faults."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from payonce.kit.log import get_logger
from payonce.kit.money import Amount, Asset, loads_exact
from payonce.kit.outcomes import Invalid
from payonce.kit.redact import redact
from payonce.vendors.books import Denied
from payonce.vendors.evm.chain import TIP_WEI, Chain, MinedTransaction
from payonce.vendors.evm.port import ETH
from payonce.vendors.simulator_http import Paths, json_response

BATCH_MAX: Final = 100
BALANCE_OF: Final = "0x70a08231"
"""Of ERC-20: balanceOf(address)."""
TRANSFERRED: Final = "0xddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef"
"""Of ERC-20: the topic of Transfer(address, address, uint256)."""

Watcher = Callable[[MinedTransaction], Awaitable[None]]

log = get_logger(__name__)


class ChainSimulator:
    """An ASGI application. `watcher` is notified of every final transfer at least once, as an exchange is of deposits;
    `tokens` are the contracts by address."""

    def __init__(
        self,
        chain: Chain,
        *,
        tokens: Mapping[str, Asset] | None = None,
        watcher: Watcher | None = None,
    ) -> None:
        self.chain = chain
        self.tokens = {address.lower(): asset for address, asset in (tokens or {}).items()}
        self._watcher = watcher
        self._notifying = asyncio.Lock()
        self._methods: dict[str, Callable[[list[Any]], Any]] = {
            "eth_chainId": lambda _: hex(self.chain.chain_id),
            "eth_blockNumber": lambda _: hex(self.chain.height),
            "eth_getBalance": lambda asked: hex(self.chain.balance(_text(asked, 0), ETH).minor),
            "eth_getTransactionCount": self._count,
            "eth_getBlockByNumber": self._block,
            "eth_maxPriorityFeePerGas": lambda _: hex(TIP_WEI),
            "eth_call": self._call,
            "eth_sendRawTransaction": lambda asked: self.chain.take(_text(asked, 0)),
            "eth_getTransactionReceipt": self._receipt,
            "eth_getTransactionByHash": self._transaction,
        }
        self._routes = Paths(
            [
                Route("/", self._serve_rpc, methods=["POST"]),
                Route("/simulator/books", self._books),
                Route("/simulator/mine", self._mine, methods=["POST"]),
                Route("/simulator/transfers", self._arrive, methods=["POST"]),
            ]
        )

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._routes(scope, receive, send)

    def close(self) -> None:
        self.chain.close()

    async def notify(self) -> None:
        """Notifies the watcher of new final transfers. After an exception the next call begins with the same one."""
        if self._watcher is None:
            return
        async with self._notifying:
            for each in self.chain.not_notified():
                try:
                    await self._watcher(each)
                except Exception as error:
                    log.warning("transfer_notification_failed", hash=each.hash, error=redact(str(error)))
                    return
                self.chain.mark_notified(each.hash)

    async def _serve_rpc(self, request: Request) -> Response:
        self.chain.catch_up()
        await self.notify()
        try:
            asked = loads_exact(await request.body())
        except Invalid:
            return json_response(_error(None, -32700, "parse error"), 400)
        if isinstance(asked, list):
            if not 0 < len(asked) <= BATCH_MAX:
                return json_response(_error(None, -32600, f"a batch has 1 to {BATCH_MAX} requests"), 400)
            return json_response([self._result_of(each) for each in asked])
        return json_response(self._result_of(asked))

    def _result_of(self, asked: Any) -> dict[str, Any]:
        if not isinstance(asked, dict) or not isinstance(asked.get("method"), str):
            return _error(None, -32600, "invalid request")
        number, method, parameters = asked.get("id"), asked["method"], asked.get("params", [])
        if method not in self._methods:
            return _error(number, -32601, f"the method {method[:60]} does not exist/is not available")
        try:
            if not isinstance(parameters, list):
                raise Denied("-32602", "invalid argument: parameters are a list")
            return {"jsonrpc": "2.0", "id": number, "result": self._methods[method](parameters)}
        except Denied as denied:
            return _error(number, int(denied.code), denied.text)

    def _count(self, asked: list[Any]) -> str:
        address, tag = _text(asked, 0), _text(asked, 1)
        match tag:
            case "pending":
                return hex(self.chain.pending_nonce(address))
            case "latest":
                return hex(self.chain.nonce(address))
            case "finalized":
                return hex(self.chain.nonce(address, final=True))
        raise Denied("-32602", f"invalid argument: block {tag[:20]!r}")

    def _block(self, asked: list[Any]) -> dict[str, Any]:
        tag = _text(asked, 0)
        numbers = {"latest": self.chain.height, "finalized": max(self.chain.final_height, 0)}
        if tag not in numbers:
            raise Denied("-32602", f"invalid argument: block {tag[:20]!r}")
        number = numbers[tag]
        return {"number": hex(number), "hash": self.chain.block_hash(number), "baseFeePerGas": hex(self.chain.base_fee)}

    def _call(self, asked: list[Any]) -> str:
        call = asked[0] if asked and isinstance(asked[0], dict) else {}
        contract, data = str(call.get("to", "")).lower(), str(call.get("data", ""))
        if contract not in self.tokens or not data.startswith(BALANCE_OF) or len(data) != len(BALANCE_OF) + 64:
            raise Denied("-32000", "execution reverted")
        return f"0x{self.chain.balance(f'0x{data[-40:]}', self.tokens[contract]).minor:064x}"

    def _receipt(self, asked: list[Any]) -> dict[str, Any] | None:
        mined = self.chain.mined(_text(asked, 0))
        if mined is None:
            return None
        return {
            "transactionHash": mined.hash,
            "status": hex(int(mined.succeeded)),
            "blockNumber": hex(mined.block_number),
            "blockHash": self.chain.block_hash(mined.block_number),
            "gasUsed": hex(mined.gas_used),
            "effectiveGasPrice": hex(mined.gas_price),
            "logs": self._logs(mined),
        }

    def _logs(self, mined: MinedTransaction) -> list[dict[str, Any]]:
        contract = next((address for address, asset in self.tokens.items() if asset == mined.amount.asset), None)
        if contract is None or not mined.succeeded:
            return []
        topics = [TRANSFERRED, _padded(mined.sender), _padded(mined.transaction.to)]
        return [{"address": contract, "topics": topics, "data": f"0x{mined.amount.minor:064x}"}]

    def _transaction(self, asked: list[Any]) -> dict[str, Any] | None:
        transaction_hash = _text(asked, 0)
        mined = self.chain.mined(transaction_hash)
        waiting = next((each for each in self.chain.pool.values() if each.hash == transaction_hash), None)
        found = mined or waiting
        if found is None:
            return None
        ether = found.transaction.asset == ETH.code
        return {
            "hash": transaction_hash,
            "from": found.sender,
            "to": found.transaction.to if ether else None,
            "value": hex(int(found.transaction.minor)) if ether else "0x0",
            "nonce": hex(found.transaction.nonce),
            "blockNumber": None if mined is None else hex(mined.block_number),
        }

    async def _books(self, request: Request) -> Response:
        """All final transfers and all balances, for assertions."""
        self.chain.catch_up()
        transfers = [
            {
                "hash": each.hash,
                "from": each.sender,
                "to": each.transaction.to,
                "nonce": each.transaction.nonce,
                "amount": each.amount.to_text(),
                "asset": each.amount.asset.code,
                "block": each.block_number,
            }
            for each in self.chain.transfers()
        ]
        balances = [
            {"address": address, "asset": asset.code, "balance": Amount(minor, asset).to_text()}
            for (address, asset), minor in sorted(self.chain.balances().items(), key=str)
        ]
        return json_response({"transfers": transfers, "balances": balances, "height": self.chain.height})

    async def _mine(self, request: Request) -> Response:
        self.chain.mine(int(request.query_params.get("blocks", "1")))
        await self.notify()
        return json_response({"height": self.chain.height})

    async def _arrive(self, request: Request) -> Response:
        """A transfer from outside, such as an exchange's refund of a deposit."""
        try:
            asked = loads_exact(await request.body())
            asset = Asset(asked["asset"], int(asked["exponent"]))
            amount = Amount.from_decimal(asked["amount"], asset)
            return json_response({"hash": self.chain.arrive(str(asked["to"]), amount, str(asked["reference"]))})
        except (Invalid, KeyError, TypeError, ValueError) as error:
            return json_response({"error": f"a transfer has to, asset, exponent, amount and reference: {error}"}, 400)


def _text(asked: list[Any], place: int) -> str:
    if place < len(asked) and isinstance(asked[place], str):
        return str(asked[place])
    raise Denied("-32602", f"missing value for required argument {place}")


def _padded(address: str) -> str:
    return f"0x{address.removeprefix('0x'):0>64}"


def _error(number: Any, code: int, text: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "error": {"code": code, "message": text}}
