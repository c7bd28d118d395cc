"""The host wallet on record: nonces, signed bytes, and the states of payments."""

from enum import StrEnum
from typing import Any, Final

import msgspec

from payonce.engine.audit import Severity, note
from payonce.engine.database.connections import Connection, Database
from payonce.engine.messages.transaction import Reader, Tx
from payonce.kit.money import Amount
from payonce.kit.outcomes import Held, Retry, Unprocessable
from payonce.services.payouts.model import ETH, ETH_NETWORK, ETH_TICKER, Swap, swap_from
from payonce.vendors.evm.port import Fees, Payment, Receipt, Signed, Wallet

ATTEMPTS_MAX: Final = 100
"""Never reached: fees that grow by an eighth per attempt reach any cap long before."""
FOREIGN_LOOK_S: Final = 60.0
"""How often a payment checks whether a foreign transaction is still pending with its nonce: every few blocks."""


class PaymentState(StrEnum):
    SIGNED = "signed"
    """Its bytes are recorded, and sent or about to be."""
    FINAL = "final"
    REVERTED = "reverted"
    """In a final block, gas spent, nothing transferred."""
    LOST = "lost"
    """Its nonce was used by a foreign transaction: it did not happen and never will."""


class WalletPayment(msgspec.Struct, frozen=True, kw_only=True):
    swap_id: str
    wallet: str
    nonce: int
    payment: Payment
    state: PaymentState


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One signed version of a payment, and its age."""

    number: int
    signed: Signed
    age_s: float


class PaymentProgress(msgspec.Struct, frozen=True, kw_only=True):
    """A swap with its payment."""

    swap: Swap
    paid: WalletPayment | None
    """None if nothing is signed; no longer read once it is in a final block."""
    attempts: list[Attempt]
    """Newest first."""


class PayRequest(msgspec.Struct, frozen=True):
    """A payment to be signed, with the chain's state a moment ago. The signed bytes are in the wallet's own table."""

    swap_id: str
    payment: Payment
    fees: Fees
    next_nonce: int
    pending_nonce: int
    balance: str = "0"
    """The wallet's balance in minor units. Requests of earlier versions lack it; none of those is signed any more."""


async def sign_payment(tx: Tx, wallet: Wallet, request: PayRequest) -> Signed:
    """Gives the payment the next nonce and records its signed bytes in this transaction. The wallet's row stays locked
    until the transaction ends, so nonces have neither gaps nor two owners.

    Raises Held while a foreign transaction is pending with the nonce: it may never be mined, and all later payments
    would wait for ever. Raises Retry if payments signed since the balance was read leave too little.
    """
    counted = await _lock(tx, wallet, request.next_nonce)
    nonce, in_flight = await _free_nonce_and_funds(tx, wallet.address, request.next_nonce)
    if request.pending_nonce > nonce:
        raise Held(f"a foreign transaction is pending with nonce {nonce} of {wallet.address}", FOREIGN_LOOK_S)
    _check_funds(wallet.address, request, in_flight)
    signed = wallet.sign(request.payment, nonce, request.fees)
    if nonce < counted:
        text = f"nonce {nonce} was never used, and later payments waited for it: {request.swap_id} takes it"
        await tx.audit("payouts.nonces", wallet.address, text, actor="payouts", severity=Severity.WARNING)
    await _insert_payment(tx, wallet.address, request, signed)
    return signed


def _check_funds(wallet: str, request: PayRequest, in_flight: Amount) -> None:
    """Runs under the wallet's lock: concurrent payments may each have read the same balance."""
    needed = in_flight + request.payment.amount + request.fees.most
    if Amount.from_minor(request.balance, needed.asset) < needed:
        raise Retry(
            f"the wallet {wallet} no longer has enough for {request.swap_id}: other payments were signed", after_s=0.0
        )


async def _lock(tx: Tx, wallet: Wallet, next_nonce: int) -> int:
    """Locks the wallet's row until the transaction ends and returns the nonce it has counted to."""
    for _ in range(2):
        counted: int | None = await tx.fetchval(
            "select next_nonce from payouts.wallets where address = $1 for update", wallet.address
        )
        if counted is not None:
            return counted
        await tx.execute(
            """
            insert into payouts.wallets (address, chain_id, next_nonce) values ($1, $2, $3)
            on conflict (address) do nothing
            """,
            wallet.address,
            wallet.chain_id,
            next_nonce,
        )
    raise Retry(f"the row of the wallet {wallet.address} is being deleted")


async def _insert_payment(tx: Tx, wallet: str, request: PayRequest, signed: Signed) -> None:
    """One statement: the wallet is locked for as long as it takes."""
    amount, fees = request.payment.amount, signed.fees
    await tx.execute(
        """
        with shown as (
            -- Callers of the older tables look at this row; it is written before anything is sent.
            insert into payouts.split_payout_hostpay
                (unique_id, cn_api_id, from_currency, from_network, from_amount, payin_address, tx_hash, tx_status)
            select unique_id, cn_api_id, $13, $14, $15, $4, $8, 'signed' from payouts.swaps where id = $2
        ), paid as (
            insert into payouts.wallet_payments (swap_id, wallet, nonce, to_address, asset, exponent, amount_minor)
            values ($2, $1, $3, $4, $5, $6, $7)
        ), signed as (
            insert into payouts.wallet_attempts (hash, wallet, nonce, attempt, raw, max_fee, priority_fee, gas_limit)
            values ($8, $1, $3, 1, $9, $10, $11, $12)
        )
        update payouts.wallets set next_nonce = greatest(next_nonce, $3 + 1) where address = $1
        """,
        wallet,
        request.swap_id,
        signed.nonce,
        request.payment.to,
        amount.asset.code,
        amount.asset.exponent,
        amount.minor,
        signed.hash,
        signed.raw,
        fees.max_fee,
        fees.priority_fee,
        fees.gas_limit,
        ETH_TICKER,
        ETH_NETWORK,
        amount.to_decimal(),
    )


_FREE_NONCE: Final = """
    select min(c.nonce) from (
        select $2::bigint as nonce
        union all select p.nonce + 1 from payouts.wallet_payments p where p.wallet = $1 and p.nonce >= $2) c
    left join lateral (
        select q.nonce from payouts.wallet_payments q where q.wallet = $1 and q.nonce = c.nonce limit 1) taken on true
    where taken.nonce is null"""


async def free_nonce(read: Reader | Tx, wallet: str, next_nonce: int) -> int:
    """The lowest nonce that is in no block and belongs to none of our payments."""
    nonce: int = await read.fetchval(_FREE_NONCE, wallet, next_nonce)
    return nonce


_IN_FLIGHT: Final = """
    select coalesce(sum(amount_minor), 0) from payouts.wallet_payments
    where wallet = $1 and asset = $3 and exponent = $4 and state = 'signed'"""
_GAS_IN_FLIGHT: Final = """
    select coalesce(sum(most.minor), 0) from payouts.wallet_payments p cross join lateral (
        select max(a.max_fee * a.gas_limit) as minor from payouts.wallet_attempts a
        where a.wallet = p.wallet and a.nonce = p.nonce) most
    where p.wallet = $1 and p.state = 'signed'"""
"""Signed payments that the balance may still include, and their maximum gas."""


async def _free_nonce_and_funds(tx: Tx, wallet: str, next_nonce: int) -> tuple[int, Amount]:
    """The lowest free nonce, and the amount in flight including gas."""
    row = await tx.fetchrow(
        f"select ({_FREE_NONCE}) as nonce, ({_IN_FLIGHT}) + ({_GAS_IN_FLIGHT}) as minor",
        wallet,
        next_nonce,
        ETH.code,
        ETH.exponent,
    )
    return row["nonce"], Amount(int(row["minor"]), ETH)


async def report_nonce(connection: Connection, wallet: Wallet, nonce: int, why: str) -> bool:
    """Notes the nonce in the audit log unless it was the last one noted; returns whether it did."""
    told = await connection.fetchval(
        """
        insert into payouts.wallets as w (address, chain_id, next_nonce, told_nonce) values ($1, $2, $3, $3)
        on conflict (address) do update set told_nonce = excluded.told_nonce
            where w.told_nonce is distinct from excluded.told_nonce
        returning true
        """,
        wallet.address,
        wallet.chain_id,
        nonce,
    )
    if told is None:
        return False
    await note(connection, "payouts.nonces", wallet.address, why, actor="payouts", severity=Severity.ERROR)
    return True


async def add_attempt(tx: Tx, paid: WalletPayment, before: Attempt, signed: Signed) -> None:
    """Records another attempt; raises Retry if the payment has changed since it was read."""
    assert signed.nonce == paid.nonce, "a bump keeps the nonce"
    state = await tx.fetchval("select state from payouts.wallet_payments where swap_id = $1 for update", paid.swap_id)
    newest = await tx.fetchval(
        "select max(attempt) from payouts.wallet_attempts where wallet = $1 and nonce = $2", paid.wallet, paid.nonce
    )
    if (state, newest) != (PaymentState.SIGNED, before.number) or newest >= ATTEMPTS_MAX:
        raise Retry(f"the payment of {paid.swap_id} is no longer at attempt {before.number}")
    await _insert_attempt(tx, paid.wallet, signed, before.number + 1)


async def progress_of(read: Reader, swap_id: str) -> PaymentProgress:
    """The swap, with its payment while it is being paid. Raises Unprocessable if there is no such swap."""
    rows = await read.fetch(
        """
        select s.*, p.wallet, p.nonce, p.to_address, p.asset, p.exponent, p.amount_minor as paid_minor,
            p.state as payment_state, a.attempt, a.hash, a.raw, a.max_fee, a.priority_fee, a.gas_limit,
            extract(epoch from payonce.due_now() - a.created_at)::float8 as age_s
        from payouts.swaps s left join payouts.wallet_payments p on p.swap_id = s.id and s.state = 'paying'
        left join payouts.wallet_attempts a on a.wallet = p.wallet and a.nonce = p.nonce
        where s.id = $1 order by a.attempt desc
        """,
        swap_id,
    )
    if not rows:
        raise Unprocessable(f"there is no swap {swap_id!r} to follow")
    [row, *_] = rows
    swap = swap_from(row)
    if row["payment_state"] is None:
        return PaymentProgress(swap=swap, paid=None, attempts=[])
    paid = WalletPayment(
        swap_id=swap.id,
        wallet=row["wallet"],
        nonce=row["nonce"],
        payment=Payment(row["to_address"], str(int(row["paid_minor"])), row["asset"], row["exponent"]),
        state=PaymentState(row["payment_state"]),
    )
    return PaymentProgress(swap=swap, paid=paid, attempts=[_attempt(row) for row in rows])


async def attempts_of(read: Reader | Tx, swap_id: str) -> list[Attempt]:
    """Newest first."""
    rows = await read.fetch(
        """
        select a.*, extract(epoch from payonce.due_now() - a.created_at)::float8 as age_s
        from payouts.wallet_attempts a join payouts.wallet_payments p using (wallet, nonce)
        where p.swap_id = $1 order by a.attempt desc
        """,
        swap_id,
    )
    return [_attempt(row) for row in rows]


async def settle(tx: Tx, swap: Swap, state: PaymentState, receipt: Receipt | None) -> None:
    """Records the payment's outcome on the chain, also in the older table; raises Retry if it has ended already."""
    settled = await tx.fetchval(
        """
        with shown as (
            update payouts.split_payout_hostpay
            set tx_status = $2, tx_hash = coalesce($6, tx_hash), gas_used = coalesce($7, gas_used),
                block_number = coalesce($8, block_number), is_complete = $9, updated_at = payonce.due_now()
            where unique_id = $4 and cn_api_id = $5 and tx_status in ('signed', 'sent')
        )
        update payouts.wallet_payments set state = $2, fee_minor = $3, updated_at = payonce.due_now()
        where swap_id = $1 and state = $10 returning true
        """,
        swap.id,
        state,
        None if receipt is None else receipt.fee.minor,
        swap.unique_id,
        swap.cn_api_id,
        receipt and receipt.hash,
        receipt and receipt.gas_used,
        receipt and receipt.block_number,
        # A parameter: the word itself would lead the planner to the index of all that is in flight.
        state is PaymentState.FINAL,
        PaymentState.SIGNED,
    )
    if settled is None:
        raise Retry(f"the payment of {swap.id} has ended already")


class WalletCommitments(msgspec.Struct, frozen=True):
    """The wallet's open payments, which precede any further one."""

    nonce: int
    """The next free nonce."""
    in_flight: Amount
    """Signed but not known to be final: the balance may still include it."""
    gas_in_flight: Amount
    """Their maximum gas; of several attempts the most expensive one."""
    low_balance: Amount | None
    """The alert level; None if not configured."""
    others_wait: bool
    """Whether payments of other swaps wait for a top-up."""


async def commitments_of(read: Reader, wallet: str, swap: Swap, next_nonce: int) -> WalletCommitments:
    asset = swap.amount.asset
    row = await read.fetchrow(
        f"""
        select ({_FREE_NONCE}) as nonce,
            ({_IN_FLIGHT}) as flying, ({_GAS_IN_FLIGHT}) as gas,
            (select low_balance_minor from payouts.wallet_limits where asset = $3 and exponent = $4) as low,
            array(select id from payouts.swaps
                  where state = 'created' and waits_for is not null order by id limit 2) as waiting
        """,
        wallet,
        next_nonce,
        asset.code,
        asset.exponent,
    )
    low = None if row["low"] is None else Amount(int(row["low"]), asset)
    return WalletCommitments(
        row["nonce"],
        Amount(int(row["flying"]), asset),
        Amount(int(row["gas"]), ETH),
        low,
        any(swap_id != swap.id for swap_id in row["waiting"]),
    )


async def record_wait(database: Database, swap: Swap, why: str | None) -> None:
    """Records why the swap's payment waits, for operators; None clears it. Outside a run's transaction, as such a run
    has nothing to commit."""
    await database.engine.execute(
        "update payouts.swaps set waits_for = $2 where id = $1 and state = 'created'", swap.id, why
    )


async def record_sent(tx: Tx, swap: Swap, *, tx_hash: str | None = None) -> None:
    """Marks the payment as sent in the older table. An ended payment keeps its state: a run that sends the bytes again
    may finish after the run that found them final."""
    await tx.execute(
        """
        update payouts.split_payout_hostpay
        set tx_status = 'sent', tx_hash = coalesce($3, tx_hash), updated_at = payonce.due_now()
        where unique_id = $1 and cn_api_id = $2 and tx_status in ('signed', 'sent')
        """,
        swap.unique_id,
        swap.cn_api_id,
        tx_hash,
    )


async def _insert_attempt(tx: Tx, wallet: str, signed: Signed, number: int) -> None:
    fees = signed.fees
    await tx.execute(
        """
        insert into payouts.wallet_attempts
            (hash, wallet, nonce, attempt, raw, max_fee, priority_fee, gas_limit)
        values ($1, $2, $3, $4, $5, $6, $7, $8)
        """,
        signed.hash,
        wallet,
        signed.nonce,
        number,
        signed.raw,
        fees.max_fee,
        fees.priority_fee,
        fees.gas_limit,
    )


def _attempt(row: Any) -> Attempt:
    fees = Fees(int(row["max_fee"]), int(row["priority_fee"]), row["gas_limit"])
    return Attempt(
        number=row["attempt"], signed=Signed(row["hash"], row["raw"], row["nonce"], fees), age_s=row["age_s"]
    )
