"""The wallet's client against the simulated chain: the outcome of each answer and each fault."""

import pytest

from payonce.kit.money import Amount, Asset
from payonce.kit.outcomes import Invalid, NotSent, Unknown
from payonce.testing.faults import Fault
from payonce.vendors.evm.chain import OUTSIDE, Fate
from payonce.vendors.evm.port import ETH, BroadcastResult, Fees, OutOfFunds, Payment, Wallet
from payonce.vendors.evm.simulated_key import SimulatedKey
from tests.vendors.evm.wallets import CLIENT, OTHER, USDT, OpenChain, ether
from tests.vendors.outcomes import outcomes, seen

OUTCOMES = outcomes(BroadcastResult.ACCEPTED, of_a_duplicate=1)
"""The client's outcome, and how many transactions are pending then."""


@pytest.mark.parametrize("fault", Fault)
async def test_each_fault_has_its_outcome_and_the_same_bytes_again_pay_once(
    open_chain: OpenChain, over_sockets: bool, fault: Fault
) -> None:
    wanted, waiting = OUTCOMES[fault]
    async with open_chain(fault) as at:
        signed = await at.signed()
        try:
            outcome: type[Exception] | BroadcastResult = await at.wallet.broadcast(signed)
        except (NotSent, Unknown) as error:
            outcome = type(error)
        assert (outcome, len(at.chain.pool)) == (seen(wanted, fault, over_sockets), waiting)
        assert await at.wallet.broadcast(signed) is (BroadcastResult.KNOWN if waiting else BroadcastResult.ACCEPTED)
        await at.faulty.deliver()
        at.chain.mine()
        assert await at.wallet.broadcast(signed) is BroadcastResult.NONCE_PAST
        at.chain.mine(at.chain.finality_blocks)
        [transfer] = at.chain.transfers()
        assert (transfer.hash, at.paid()) == (signed.hash, ether("1.5"))
        at.adds_up()


async def test_a_receipt_becomes_final_and_has_the_cost_of_the_gas(open_chain: OpenChain) -> None:
    async with open_chain() as at:
        signed = await at.signed()
        await at.wallet.broadcast(signed)
        assert await at.receipt(signed.hash) is None
        at.chain.mine()
        receipt = await at.receipt(signed.hash)
        assert receipt is not None
        assert (receipt.succeeded, receipt.final, receipt.block_number) == (True, False, 1)
        at.chain.mine(at.chain.finality_blocks)
        receipt = await at.receipt(signed.hash)
        assert receipt is not None
        assert receipt.final
        assert (await at.wallet.market(ETH)).balance == ether("8.5") - receipt.fee
        assert receipt.fee <= signed.fees.most


async def test_a_token_is_paid_through_its_contract_and_its_gas_in_ether(open_chain: OpenChain) -> None:
    async with open_chain() as at:
        signed = await at.signed(value="12.5", asset=USDT)
        await at.wallet.broadcast(signed)
        at.chain.mine()
        receipt = await at.receipt(signed.hash)
        assert receipt is not None
        assert (await at.wallet.market(USDT)).balance == Amount.from_decimal("487.5", USDT)
        assert at.paid(asset=USDT) == Amount.from_decimal("12.5", USDT)
        assert (await at.wallet.market(ETH)).balance == ether("10") - receipt.fee
        at.adds_up()


async def test_nonces_count_pending_and_final_transactions(open_chain: OpenChain) -> None:
    async with open_chain() as at:
        for nonce in range(2):
            await at.wallet.broadcast(await at.signed(nonce))
        assert (await at.nonces()) == (2, 0)
        at.chain.mine(1 + at.chain.finality_blocks)
        assert (await at.nonces()) == (2, 2)


async def test_a_gap_blocks_the_nonces_after_it(open_chain: OpenChain) -> None:
    async with open_chain() as at:
        await at.wallet.broadcast(await at.signed(1))
        at.chain.mine(2)
        assert not at.chain.transfers(final=False)
        await at.wallet.broadcast(await at.signed(0, to=OTHER))
        at.chain.mine()
        assert [each.transaction.nonce for each in at.chain.transfers(final=False)] == [0, 1]


async def test_a_payment_beyond_the_balance_is_not_sent_and_can_be_accepted_later(open_chain: OpenChain) -> None:
    async with open_chain() as at:
        signed = await at.signed(value="25")
        with pytest.raises(OutOfFunds, match="insufficient funds"):
            await at.wallet.broadcast(signed)
        at.chain.arrive(at.wallet.address, ether("20"), "top-up")
        at.chain.mine()
        assert await at.wallet.broadcast(signed) is BroadcastResult.ACCEPTED


async def test_a_stuck_payment_is_replaced_by_one_with_higher_fees(open_chain: OpenChain) -> None:
    async with open_chain() as at:
        at.chain.fates.append(Fate.STUCK)
        first = await at.signed()
        await at.wallet.broadcast(first)
        at.chain.mine(5)
        assert await at.receipt(first.hash) is None
        payment, market = Payment.of(CLIENT, ether("1.5")), (await at.wallet.market(ETH)).fees
        shy = at.wallet.sign(payment, 0, Fees(first.fees.max_fee + 1, first.fees.priority_fee + 1, 21_000))
        assert await at.wallet.broadcast(shy) is BroadcastResult.UNDERPRICED
        bumped = first.fees.bumped(market, 10**12)
        assert bumped is not None
        second = at.wallet.sign(payment, 0, bumped)
        assert await at.wallet.broadcast(second) is BroadcastResult.ACCEPTED
        at.chain.mine()
        assert await at.receipt(second.hash) is not None
        assert await at.wallet.broadcast(first) is BroadcastResult.NONCE_PAST
        assert at.paid() == ether("1.5")


async def test_of_two_attempts_the_older_may_win(open_chain: OpenChain) -> None:
    async with open_chain() as at:
        at.chain.fates += [Fate.STUCK, Fate.OLD_WINS]
        first = await at.signed()
        await at.wallet.broadcast(first)
        bumped = first.fees.bumped(first.fees, 10**12)
        assert bumped is not None
        second = at.wallet.sign(Payment.of(CLIENT, ether("1.5")), 0, bumped)
        assert await at.wallet.broadcast(second) is BroadcastResult.ACCEPTED
        at.chain.mine()
        assert await at.receipt(second.hash) is None
        assert await at.receipt(first.hash) is not None


async def test_a_payment_below_the_base_fee_stays_pending(open_chain: OpenChain) -> None:
    async with open_chain() as at:
        signed = await at.signed()
        await at.wallet.broadcast(signed)
        at.chain.set_base_fee(signed.fees.max_fee + 1)
        at.chain.mine(3)
        assert await at.receipt(signed.hash) is None
        at.chain.set_base_fee(signed.fees.max_fee)
        at.chain.mine()
        assert await at.receipt(signed.hash) is not None


@pytest.mark.parametrize("forget", [False, True])
async def test_a_reorganisation_removes_a_receipt_and_the_same_bytes_pay_once(
    open_chain: OpenChain, forget: bool
) -> None:
    async with open_chain() as at:
        signed = await at.signed()
        await at.wallet.broadcast(signed)
        at.chain.mine()
        before = await at.receipt(signed.hash)
        at.chain.reorganise(1, forget=forget)
        assert await at.receipt(signed.hash) is None
        assert at.paid() == ether("0")
        assert await at.wallet.broadcast(signed) is (BroadcastResult.ACCEPTED if forget else BroadcastResult.KNOWN)
        at.chain.mine()
        after = await at.receipt(signed.hash)
        assert before is not None
        assert after is not None
        assert (after.block_number, after.block_hash != before.block_hash) == (1, True)
        assert at.paid() == ether("1.5")
        at.adds_up()


async def test_a_final_block_cannot_be_dropped(open_chain: OpenChain) -> None:
    async with open_chain() as at:
        at.chain.mine(5)
        with pytest.raises(Invalid, match="a block 3 deep is final"):
            at.chain.reorganise(4)


async def test_a_reverted_payment_costs_gas_and_transfers_nothing(open_chain: OpenChain) -> None:
    async with open_chain() as at:
        at.chain.fates.append(Fate.REVERTED)
        signed = await at.signed()
        await at.wallet.broadcast(signed)
        at.chain.mine()
        receipt = await at.receipt(signed.hash)
        assert receipt is not None
        assert not receipt.succeeded
        assert (await at.wallet.market(ETH)).balance == ether("10") - receipt.fee
        assert not at.chain.transfers(final=False)


@pytest.mark.parametrize(("asset", "value"), [(ETH, "0.4"), (USDT, "7")])
async def test_an_incoming_transfer_is_found_by_its_hash(open_chain: OpenChain, asset: Asset, value: str) -> None:
    async with open_chain() as at:
        amount = Amount.from_decimal(value, asset)
        arriving = at.chain.arrive(at.wallet.address, amount, "refund-1")
        assert await at.wallet.incoming(arriving, asset) is None
        assert at.chain.arrive(at.wallet.address, amount, "refund-1") == arriving
        at.chain.mine(1 + at.chain.finality_blocks)
        seen = await at.wallet.incoming(arriving, asset)
        assert seen is not None
        assert (seen.amount, seen.final) == (amount, True)
        assert (seen.sender, seen.block_number) == (OUTSIDE, 1)
        elsewhere = at.chain.arrive(OTHER, amount, "refund-2")
        at.chain.mine()
        assert await at.wallet.incoming(elsewhere, asset) is None


@pytest.mark.parametrize("fault", [Fault.WRONG_ANSWER, Fault.MALFORMED_ANSWER, Fault.ERROR_BEFORE])
async def test_a_bad_answer_to_a_query_proves_nothing(open_chain: OpenChain, fault: Fault) -> None:
    async with open_chain(None, fault) as at:
        signed = await at.signed()
        await at.wallet.broadcast(signed)
        with pytest.raises(Unknown):
            await at.receipt(signed.hash)


async def test_a_node_refuses_bytes_without_a_valid_signature(open_chain: OpenChain) -> None:
    async with open_chain() as at:
        assert isinstance(at.wallet, Wallet)
        signed = await at.signed()
        forged = signed.raw[:-2] + ("00" if signed.raw[-2:] != "00" else "01")
        with pytest.raises(Unknown, match="no signed transaction"):
            await at.wallet.broadcast(type(signed)(signed.hash, forged, 0, signed.fees))
        elsewhere = SimulatedKey("host", 1).sign(Payment.of(CLIENT, ether("1")), 0, signed.fees)
        with pytest.raises(Unknown, match="chain id"):
            await at.wallet.broadcast(elsewhere)


def test_equal_payments_and_nonces_give_equal_bytes() -> None:
    key, fees = SimulatedKey("host", 1), Fees(20, 2, 21_000)
    payment = Payment.of(CLIENT, ether("1"))
    assert key.sign(payment, 7, fees) == SimulatedKey("host", 1).sign(payment, 7, fees)
    assert key.sign(payment, 8, fees).hash != key.sign(payment, 7, fees).hash
    with pytest.raises(Invalid, match="no address on this chain"):
        key.sign(Payment.of("bob", ether("1")), 7, fees)


async def test_an_asset_without_a_contract_is_refused(open_chain: OpenChain) -> None:
    async with open_chain() as at:
        with pytest.raises(Invalid, match="no contract of DAI"):
            await at.wallet.market(Asset("DAI", 18))


@pytest.mark.parametrize(
    ("fees", "market", "cap", "bumped"),
    [
        (Fees(100, 8, 21), Fees(90, 5, 21), 1_000, Fees(113, 9, 21)),
        (Fees(100, 8, 21), Fees(300, 50, 21), 1_000, Fees(300, 50, 21)),
        (Fees(100, 8, 21), Fees(300, 250, 21), 200, Fees(200, 200, 21)),
        (Fees(100, 8, 21), Fees(300, 50, 21), 112, None),
        (Fees(100, 8, 21), Fees(1, 1, 21), 113, Fees(113, 9, 21)),
    ],
)
def test_a_bump_is_an_eighth_more_on_both_fees_within_the_cap(
    fees: Fees, market: Fees, cap: int, bumped: Fees | None
) -> None:
    assert fees.bumped(market, cap) == bumped
