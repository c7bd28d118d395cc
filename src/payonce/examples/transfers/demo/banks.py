"""The banks of the demonstration: simulators with faults, served to the workers, and an operator who reads their
records."""

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from payonce import Amount, Answer, Review, Stale, answer_review, reviews, well_known
from payonce.cli.demo.kit import App
from payonce.examples.transfers import effects, model
from payonce.testing import Fault, FaultPlan, Faulty, Odds, serving
from payonce.vendors.northbank.port import TransferReceipt
from payonce.vendors.northbank.simulator import NorthbankSimulator
from payonce.vendors.southbank.port import PaymentReceipt
from payonce.vendors.southbank.simulator import SouthbankSimulator

CUSTOMERS: Final = 40
CLOSED_ACCOUNTS: Final = 5
POOR_ACCOUNT: Final = "n-poor"
LATE_S: Final = 6.0
"""Later than a payment is taken as not made: only the bank's fence prevents a second payment."""
SLOW_S: Final = 0.1
REST_S: Final = 0
"""The Retry-After of a bank. These banks reject calls at random, not because of a limit: a second each time would
dominate the demonstration."""
EFFECTS: Final[dict[str, Any]] = {each.kind: each for each in (effects.Withdraw, effects.PayIn, effects.Refund)}


@dataclass(frozen=True)
class Banks:
    northbank: NorthbankSimulator
    southbank: SouthbankSimulator
    doors: Sequence[Faulty]
    environment: dict[str, str]
    """Environment variables with the banks' addresses."""
    opening: Sequence[Amount]

    def faults(self) -> dict[str, int]:
        total: Counter[Fault] = Counter()
        for door in self.doors:
            total += door.enacted
        return {fault.value: total[fault] for fault in Fault if total[fault]}

    async def deliver(self) -> None:
        for door in self.doors:
            await door.close()

    async def answer_reviews(self, app: App) -> None:
        """Answers reviews as an operator would, from the banks' records."""
        for review in await reviews(app.read):
            happened = self._receipt(review)
            answer = Answer.DID_NOT if happened is None else Answer.HAPPENED
            effect = EFFECTS[review.effect.kind]
            try:
                async with app.begin() as tx:
                    answered = await answer_review(
                        tx,
                        review.effect.id,
                        answer,
                        "demo",
                        "by the bank's books",
                        revision=review.effect.revision,
                        outcome=happened,
                        effect=effect,
                    )
                    # The message would retry by itself after some minutes, when the demonstration is over.
                    await tx.execute(
                        "update payonce.messages set ready_at = payonce.due_now() where id = $1 and state = 'ready'",
                        answered.message_id,
                    )
            except Stale:
                continue

    def _receipt(self, review: Review) -> TransferReceipt | PaymentReceipt | None:
        reference = f"{review.effect.key}:{review.effect.generation}"
        if review.effect.kind == effects.PayIn.kind:
            for each in self.southbank.books.under(reference):
                return PaymentReceipt(f"SB{each.number:08}", reference, round(each.booked_at.timestamp() * 1_000))
            return None
        for each in self.northbank.books.under(reference):
            return TransferReceipt(f"nb-{each.number}", reference, each.booked_at)
        return None


@asynccontextmanager
async def open_banks(orders: Sequence[model.Order], seed: int, share: float) -> AsyncIterator[Banks]:
    """Serves both banks on the loopback, with enough money for all orders, and faults determined by the seed."""
    northbank, southbank = NorthbankSimulator(), SouthbankSimulator()
    needed = {well_known(order.currency): Amount.zero(well_known(order.currency)) for order in orders}
    for order in orders:
        amount = Amount.from_decimal(order.amount, well_known(order.currency))
        needed[amount.asset] += amount
    northbank.open_account(model.HOUSE)
    northbank.open_account(POOR_ACCOUNT)
    southbank.open_account(model.HOUSE, *needed.values())
    for number in range(CUSTOMERS):
        northbank.open_account(f"n-{number}", *needed.values())
        southbank.open_account(f"s-{number}")
    for number in range(CLOSED_ACCOUNTS):
        southbank.open_account(f"closed-{number}")
        southbank.close_account(f"closed-{number}")
    # This bank would pay a duplicated request twice, which no client can prevent (see its README).
    spared = Odds(share).without(Fault.DUPLICATE)
    doors = [
        Faulty(
            northbank, FaultPlan(seed, share), over_sockets=True, slow_s=SLOW_S, retry_after_s=REST_S, late_s=LATE_S
        ),
        Faulty(
            southbank,
            FaultPlan(seed, share, routes={"POST /payments": spared}),
            over_sockets=True,
            slow_s=SLOW_S,
            retry_after_s=REST_S,
            late_s=LATE_S,
        ),
    ]
    async with serving(doors[0]) as northbank_url, serving(doors[1]) as southbank_url:
        urls = {"PAYONCE_NORTHBANK_URL": northbank_url, "PAYONCE_SOUTHBANK_URL": southbank_url}
        yield Banks(northbank, southbank, doors, urls, list(needed.values()))
