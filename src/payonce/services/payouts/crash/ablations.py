"""Safeguards of payouts and of their queues, removed one at a time: each must be missed."""

from collections.abc import Mapping
from typing import Any, Final

from payonce.engine.messages.job_log import EndedRun, write_runs
from payonce.engine.messages.model import Message, Settlement, message_from_wire, message_to_wire
from payonce.engine.messages.push import DecodedTask
from payonce.engine.messages.transaction import Tx
from payonce.engine.messages.work import Work
from payonce.queues.cloudtasks import queue as queues
from payonce.queues.cloudtasks import statements
from payonce.queues.cloudtasks.queue import CloudTasksQueue
from payonce.queues.cloudtasks.refill import TaskMaintenance
from payonce.services.payouts.handlers import hostpay, next_messages, prior_attempts
from payonce.services.payouts.handlers.swap_replacement import replace_swap
from payonce.services.payouts.handlers.wallet import HostWallet, PayDeposit, Sent
from payonce.services.payouts.messages.tokens.codec import TokenCodec
from payonce.services.payouts.model import ETH, Payout, SwapState
from payonce.services.payouts.store import swaps
from payonce.services.payouts.store.swap_details import SwapDetails
from payonce.services.payouts.store.wallet import PayRequest
from payonce.testing.crash.ablations import (
    DAMAGE,
    Ablation,
    message_after_the_commit,
    posting_after_the_commit,
    put,
)
from payonce.testing.crash.model import Mode

STUCK: Final = frozenset({"stuck"})


def no_inbox() -> None:
    """The common use of a task service: the message is only in the task, and ended messages are not remembered."""
    remembered = "id::text from gone\n"
    for name in ("SETTLE", "SETTLE_ONE"):
        statement: str = getattr(statements, name)
        assert remembered in statement
        put(queues, name, statement.replace(remembered, "id::text from gone where false\n"))

    def encode(codec: TokenCodec, message: Message) -> bytes:
        return message_to_wire(message)

    def decode(codec: TokenCodec, body: bytes, headers: Mapping[str, str]) -> DecodedTask:
        message = message_from_wire(codec._hop.queue, body)
        return DecodedTask(message.id, message)

    put(TokenCodec, "encode", encode)
    put(TokenCodec, "decode", decode)


def no_run_token() -> None:
    """A run that was taken over still begins effects and ends its message once more."""
    settle_within = CloudTasksQueue.settle_within

    async def settled_anyway(queue: CloudTasksQueue, connection: Any, settlement: Settlement) -> bool:
        if not await settle_within(queue, connection, settlement):
            await _end_again(connection, settlement)
        return True

    async def always(queue: CloudTasksQueue, connection: Any, claim: object) -> bool:
        return True

    put(CloudTasksQueue, "settle_within", settled_anyway)
    put(CloudTasksQueue, "hold_within", always)


async def _end_again(connection: Any, settlement: Settlement) -> None:
    """Writes what the statement writes for a run with a valid token."""
    message = settlement.claim.message
    await write_runs(connection, [EndedRun(message, settlement.ending.value, message.attempts + 1)])


def sent_before_it_is_on_record() -> None:
    """The payment is sent first, and its intent, nonce and bytes are recorded afterwards."""
    prepare = PayDeposit.prepare

    async def send_first(effect: PayDeposit) -> PayRequest:
        asked = await prepare(effect)
        wallet = effect.host.wallet
        await wallet.broadcast(wallet.sign(asked.payment, asked.pending_nonce, asked.fees))
        return asked

    put(PayDeposit, "prepare", send_first)


def another_nonce_for_every_broadcast() -> None:
    """The naive implementation: sign at each sending."""

    async def perform(effect: PayDeposit, request: PayRequest) -> Sent:
        wallet = effect.host.wallet
        market = await wallet.market(ETH)
        signed = wallet.sign(request.payment, market.pending_nonce, request.fees)
        return Sent(wallet.address, signed.nonce, signed.hash, await wallet.broadcast(signed))

    put(PayDeposit, "perform", perform)


def replaced_although_hostpay_was_told() -> None:
    """A swap in doubt is replaced by another one, which is paid without checking the earlier one."""
    pay = hostpay._pay

    async def replace_what_is_in_doubt(work: Work, host: HostWallet, details: SwapDetails) -> None:
        swap = details.swap
        if swap.state is not SwapState.PAYING:
            await pay(work, host, details)
            return
        async with work.commit() as tx:
            await swaps.advance(tx, swap, SwapState.RETURNED, reason="in doubt")
            await replace_swap(tx, swap, "in doubt")

    async def not_asked(*about: object) -> str:
        return ""

    put(hostpay, "_pay", replace_what_is_in_doubt)
    put(prior_attempts, "find_prior_payment", not_asked)


def lost_tasks_stay_lost() -> None:
    async def nothing(maintenance: TaskMaintenance, late_s: float = 0.0) -> int:
        return 0

    put(TaskMaintenance, "refill", nothing)


def forgotten_payouts_stay_forgotten() -> None:
    async def nothing(tx: Tx, payout: Payout) -> None:
        return None

    put(next_messages, "resume", nothing)


ABLATIONS: Final = (
    Ablation("the inbox", no_inbox, "payout-direct", Mode.BEFORE, near="TaskStore.settle"),
    Ablation("the run token", no_run_token, "payout-direct", Mode.STOPPED, near="find_currency_problem"),
    Ablation("the intent of a payment", sent_before_it_is_on_record, "payout-direct", Mode.BEFORE, near="Run.intent"),
    Ablation(
        "a nonce on record", another_nonce_for_every_broadcast, "payout-direct", Mode.AFTER, near="vendors.evm.client"
    ),
    Ablation(
        "no other swap once hostpay is told",
        replaced_although_hostpay_was_told,
        "payout",
        Mode.AFTER,
        near="record_performed",
    ),
    Ablation(
        "the next message in the same commit",
        message_after_the_commit,
        "payout-direct",
        Mode.AFTER,
        near="engine.messages.work",
    ),
    Ablation(
        "the books in the same commit",
        posting_after_the_commit,
        "payout-direct",
        Mode.AFTER,
        near="engine.messages.work",
    ),
    Ablation(
        "the refill of lost tasks", lost_tasks_stay_lost, "payout-lost", Mode.BEFORE, DAMAGE | STUCK, "Work.commit"
    ),
    Ablation(
        "the putting back of payouts", forgotten_payouts_stay_forgotten, "payout-lost", Mode.AFTER, DAMAGE | STUCK
    ),
)
