"""The simulated chain keeps its balances through crashes, forks and faults, and reports every final transfer."""

import asyncio
from pathlib import Path

import pytest

from payonce.kit.http import HttpClient
from payonce.kit.outcomes import Unavailable
from payonce.testing.server import serving
from payonce.vendors.evm.chain import Chain, Conditions, Fate, MinedTransaction
from payonce.vendors.evm.client import EvmClient
from payonce.vendors.evm.port import ETH, BroadcastResult, Payment
from payonce.vendors.evm.simulated_key import SimulatedKey
from payonce.vendors.evm.simulator import ChainSimulator
from tests.vendors.banks import BankClock
from tests.vendors.evm.wallets import CLIENT, ether, on_chain


async def test_balances_pool_and_forks_survive_a_restart(tmp_path: Path) -> None:
    journal = tmp_path / "chain.journal"
    key = SimulatedKey("host", 31_337)

    async def hand_over(chain: Chain, nonce: int) -> BroadcastResult:
        async with HttpClient("node", "https://node.example", transport=ChainSimulator(chain)) as http:
            wallet = EvmClient(http, key)
            return await wallet.broadcast(
                wallet.sign(Payment.of(CLIENT, ether("1")), nonce, (await wallet.market(ETH)).fees)
            )

    chain = Chain(journal)
    chain.fund(key.address, ether("10"))
    assert await hand_over(chain, 0) is BroadcastResult.ACCEPTED
    chain.mine()
    chain.reorganise(1)
    chain.mine()
    assert await hand_over(chain, 1) is BroadcastResult.ACCEPTED
    with pytest.raises(Unavailable, match="another process"):
        Chain(journal)
    block_hash, balances = chain.block_hash(1), chain.balances()
    chain.close()
    with journal.open("ab") as torn:
        torn.write(b'{"event":"mined","blo')

    again = Chain(journal)
    again.fund(key.address, ether("10"))
    assert (again.block_hash(1), again.balances(), again.height) == (block_hash, balances, 1)
    assert await hand_over(again, 1) is BroadcastResult.KNOWN
    again.mine(4)
    assert [each.transaction.nonce for each in again.transfers()] == [0, 1]
    again.close()


async def test_a_chain_with_a_block_time_mines_by_its_clock() -> None:
    async with on_chain(False, block_s=12.0) as at:
        signed = await at.signed()
        await at.wallet.broadcast(signed)
        at.clock.advance(11)
        assert await at.receipt(signed.hash) is None
        at.clock.advance(1)
        receipt = await at.receipt(signed.hash)
        assert receipt is not None
        assert not receipt.final
        at.clock.advance(36)
        receipt = await at.receipt(signed.hash)
        assert receipt is not None
        assert receipt.final


async def test_a_watcher_is_notified_of_a_final_transfer_once_and_again_after_a_failure(tmp_path: Path) -> None:
    received: list[MinedTransaction] = []
    failures = [True]

    async def watch(mined: MinedTransaction) -> None:
        if failures.pop():
            raise ConnectionError("the watcher is down")
        failures.append(False)
        received.append(mined)

    chain = Chain(tmp_path / "chain.journal")
    key = SimulatedKey("host", chain.chain_id)
    chain.fund(key.address, ether("10"))
    simulator = ChainSimulator(chain, watcher=watch)
    async with HttpClient("node", "https://node.example", transport=simulator) as http:
        wallet = EvmClient(http, key)
        signed = wallet.sign(Payment.of(CLIENT, ether("1")), 0, (await wallet.market(ETH)).fees)
        await wallet.broadcast(signed)
        chain.mine(1 + chain.finality_blocks)
        await simulator.notify()
        assert not received
        failures.append(False)
        await asyncio.gather(simulator.notify(), simulator.notify(), wallet.status([signed.hash]))
        assert [each.hash for each in received] == [signed.hash]
    chain.close()
    again = Chain(tmp_path / "chain.journal")
    assert not again.not_notified()
    again.close()


async def test_a_transfer_in_a_new_block_is_not_notified() -> None:
    async with on_chain(False) as at:
        await at.wallet.broadcast(await at.signed())
        at.chain.mine()
        assert not at.chain.not_notified()
        at.chain.mine(at.chain.finality_blocks)
        assert len(at.chain.not_notified()) == 1


async def test_under_bad_conditions_every_payment_is_made_once_by_sending_and_bumping() -> None:
    conditions = Conditions(seed=3, shares={Fate.FORGOTTEN: 0.2, Fate.STUCK: 0.2, Fate.OLD_WINS: 0.1}, reorg_share=0.5)
    async with on_chain(False, conditions=conditions) as at:
        payment = Payment.of(CLIENT, ether("0.01"))
        attempts = {nonce: [await at.signed(nonce, "0.01")] for nonce in range(20)}
        for turn in range(200):
            for signed in attempts.values():
                if turn % 3 == 2 and await at.receipt(signed[-1].hash) is None:
                    bumped = signed[-1].fees.bumped(signed[-1].fees, 10**15)
                    assert bumped is not None
                    signed.append(at.wallet.sign(payment, signed[-1].nonce, bumped))
                await at.wallet.broadcast(signed[-1])
            at.chain.mine()
            if len(at.chain.transfers()) == len(attempts):
                break
        assert [each.transaction.nonce for each in at.chain.transfers()] == list(range(20))
        assert at.paid() == ether("0.2")
        at.adds_up()


async def test_the_chain_is_served_with_its_books_over_a_port() -> None:
    chain = Chain(clock=BankClock())
    key = SimulatedKey("host", chain.chain_id)
    chain.fund(key.address, ether("10"))
    async with serving(ChainSimulator(chain)) as url, HttpClient("node", url, allow_private=True) as http:
        wallet = EvmClient(http, key)
        await wallet.broadcast(wallet.sign(Payment.of(CLIENT, ether("1")), 0, (await wallet.market(ETH)).fees))
        await http.request("POST", "/simulator/mine", query={"blocks": 4})
        arriving = {"to": key.address, "asset": "ETH", "exponent": 18, "amount": "0.5", "reference": "r-1"}
        answer = await http.request("POST", "/simulator/transfers", json=arriving)
        await http.request("POST", "/simulator/mine")
        incoming = await wallet.incoming(answer.json()["hash"], ETH)
        assert incoming is not None
        assert incoming.amount == ether("0.5")
        books = (await http.request("GET", "/simulator/books")).json()
        [transfer] = books["transfers"]
        assert (transfer["to"], transfer["amount"], transfer["nonce"]) == (CLIENT, "1.000000000000000000", 0)
        assert (await http.request("POST", "/simulator/transfers", json={"to": 1})).status == 400


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{", -32700),
        (b"[]", -32600),
        (b"1", -32600),
        (b'{"id":1,"method":"eth_mine"}', -32601),
        (b'{"id":1,"method":"eth_getBalance","params":[]}', -32602),
        (b'{"id":1,"method":"eth_getBalance","params":{}}', -32602),
        (b'{"id":1,"method":"eth_getTransactionCount","params":["0x1","soon"]}', -32602),
        (b'{"id":1,"method":"eth_call","params":[{}]}', -32000),
    ],
)
async def test_a_bad_request_gets_a_json_rpc_error(body: bytes, code: int) -> None:
    async with HttpClient("node", "https://node.example", transport=ChainSimulator(Chain())) as http:
        answer = (await http.request("POST", "/", body=body)).json()
        assert answer["error"]["code"] == code


async def test_a_batch_is_answered_one_by_one() -> None:
    async with HttpClient("node", "https://node.example", transport=ChainSimulator(Chain())) as http:
        asked: list[object] = [{"id": number, "method": "eth_chainId", "params": []} for number in (1, 2)]
        answers = (await http.request("POST", "/", json=asked)).json()
        assert [(each["id"], each["result"]) for each in answers] == [(1, "0x7a69"), (2, "0x7a69")]


def test_a_transfer_that_a_reorganisation_puts_into_an_old_block_is_notified_too() -> None:
    chain = Chain()
    chain.mine(6)
    assert not chain.not_notified()
    # Two in a row reach below the height that was final before.
    chain.reorganise(3)
    chain.reorganise(2)
    chain.arrive(CLIENT, ether("1"), "late")
    chain.mine(3)
    assert not chain.not_notified()
    chain.mine()
    (late,) = chain.not_notified()
    assert chain.not_notified() == [late]
    chain.mark_notified(late.hash)
    assert not chain.not_notified()


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/", 405), ("POST", "/v2", 404), ("HEAD", "/", 405)])
async def test_a_node_refuses_other_paths_and_methods(method: str, path: str, status: int) -> None:
    async with serving(ChainSimulator(Chain())) as url, HttpClient("node", url, allow_private=True) as http:
        assert (await http.request(method, path)).status == status
