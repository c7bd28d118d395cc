"""Cards are issued once although answers are lost, refused when the mint refuses them, and expire after a year."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
from giftcards import store
from giftcards.handlers import expire_cards, issue_card
from giftcards.invariants import INVARIANTS
from giftcards.mint.client import MintClient
from giftcards.mint.simulator import BLOCKED, MintSimulator
from giftcards.model import AT_MINT, EXPIRED, VALID_FOR, State, ordered
from giftcards.policies import EXPIRY

from payonce import Account, Amount, HttpClient, Invalid, Message, balance, well_known
from payonce.testing import Fault, Faulty, OpenStage, Script, Stage, Worker

EUR = well_known("EUR")
EUROS_100 = Amount.from_decimal("100.00", EUR)
EUROS_25 = Amount.from_decimal("25.00", EUR)


@dataclass
class Desk:
    stage: Stage
    mint: MintSimulator
    worker: Worker

    async def order(self, holder: str = "ada", amount: str = "25.00") -> None:
        async with self.stage.begin() as tx:
            await store.order(tx, ordered("c-1", holder, amount, "EUR"))

    async def run(self, for_s: float = 3_600) -> None:
        await self.stage.run(self.worker, for_s)

    async def state(self) -> State:
        return (await store.card_of(self.stage.read, "c-1")).state

    async def at_mint(self) -> Amount:
        return await balance(self.stage.read, Account(AT_MINT, EUR))

    async def broken(self) -> list[str]:
        return [name for name, query in INVARIANTS.items() if await self.stage.read.fetch(query)]


@asynccontextmanager
async def desk(stage: OpenStage, *faults: Fault | None) -> AsyncIterator[Desk]:
    mint = MintSimulator()
    mint.deposit(EUROS_100)
    async with (
        stage() as s,
        HttpClient("mint", "https://mint.example", transport=Faulty(mint, Script(list(faults)))) as http,
    ):
        async with s.begin() as tx:
            await store.post_opening(tx.connection, [EUROS_100])
        found = Desk(s, mint, await s.worker(issue_card, expire_cards, resources=[MintClient(http)]))
        yield found
        assert await found.broken() == []
        assert await found.at_mint() == mint.balance(EUROS_100)


FAULTS = (None, Fault.ANSWER_LOST, Fault.TIMEOUT_AFTER, Fault.ERROR_BEFORE, Fault.TOO_MANY_REQUESTS)


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_card_is_issued_once(stage: OpenStage, fault: Fault | None) -> None:
    async with desk(stage, fault) as d:
        await d.order()
        await d.run()
        assert await d.state() is State.ISSUED
        assert len(d.mint.books.under("c-1/issue:1")) == 1
        assert d.mint.balance(EUROS_100) == EUROS_100 - EUROS_25


async def test_a_refused_card_moves_nothing(stage: OpenStage) -> None:
    async with desk(stage, Fault.ANSWER_LOST) as d:
        await d.order(BLOCKED)
        await d.run()
        assert await d.state() is State.REFUSED
        assert await d.at_mint() == EUROS_100


async def test_a_card_beyond_our_money_at_the_mint_is_refused(stage: OpenStage) -> None:
    async with desk(stage) as d:
        await d.order(amount="100.01")
        await d.run()
        assert await d.state() is State.REFUSED


async def test_a_card_expires_after_a_year(stage: OpenStage) -> None:
    async with desk(stage) as d:
        await d.order()
        await d.run()
        year_s = VALID_FOR.total_seconds()
        for ahead_s, state in ((year_s - 7_200, State.ISSUED), (7_200.0, State.EXPIRED)):
            await d.stage.clock.advance(ahead_s)
            await d.stage.feed.put([Message(queue=EXPIRY.queue)])
            await d.run(for_s=60)
            assert await d.state() is state
        assert await balance(d.stage.read, Account(EXPIRED, EUR)) == EUROS_25


@pytest.mark.parametrize(("holder", "amount"), [("", "1.00"), ("a" * 101, "1.00"), ("ada", "0.00"), ("ada", "1.001")])
def test_an_impossible_order_is_refused(holder: str, amount: str) -> None:
    with pytest.raises(Invalid):
        ordered("c-1", holder, amount, "EUR")
