"""The demonstration `giftcards`: cards from a mint that loses answers, through workers that are killed."""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from giftcards import store
from giftcards.invariants import INVARIANTS
from giftcards.mint.simulator import BLOCKED, CARDS, MintSimulator
from giftcards.model import AT_MINT, State, ordered
from giftcards.policies import ISSUE
from payonce import Account, Amount, Reader, Settings, balance, well_known
from payonce.cli.demo.kit import DisruptedRun, Workload, run_workload, scratch_app, table, too_few_kills
from payonce.testing import FaultPlan, Faulty, serving

CARDS_DEFAULT: Final = 1_000
SHARE_OF_FAULTS: Final = 0.2
SHARE_BLOCKED: Final = 0.05
LIMIT_S: Final = 120.0
EURO: Final = well_known("EUR")
MEANINGS: Final = {
    "cards": "ordered",
    "issued": "by the mint, once, and posted",
    "refused": "by the mint; nothing moved",
    "lost": "neither issued nor refused, or not in the mint's books",
    "doubled": "issued more than once, by the mint's books",
    "unexplained": "minor units by which the mint's books and ours differ",
    "faults": "calls to the mint that went wrong on purpose",
    "kills": "workers killed with SIGKILL while they worked",
    "seconds": "from the first worker to the last card",
    "seed": "of the cards, the faults and the kills",
}


@dataclass(frozen=True)
class Report:
    seed: int
    cards: int
    issued: int
    refused: int
    lost: int
    doubled: int
    unexplained: Amount
    broken: tuple[str, ...]
    faults: int
    disturbed: DisruptedRun

    @property
    def log_path(self) -> Path:
        return self.disturbed.log_path

    def figures(self) -> Mapping[str, Any]:
        return {
            "cards": self.cards,
            "issued": self.issued,
            "refused": self.refused,
            "lost": self.lost,
            "doubled": self.doubled,
            "unexplained": self.unexplained.to_minor_text(),
            "faults": self.faults,
            "kills": self.disturbed.kills,
            "seconds": round(self.disturbed.seconds, 1),
            "seed": self.seed,
        }

    def complaints(self) -> list[str]:
        found = [f"the invariant does not hold: {name}" for name in self.broken]
        if self.lost:
            found.append(f"{self.lost} cards are lost")
        if self.doubled:
            found.append(f"{self.doubled} cards were issued more than once")
        if self.unexplained:
            found.append(f"{self.unexplained} are unexplained: the mint's books and ours differ")
        if not self.faults:
            found.append("no call went wrong, so nothing was proven")
        return found + too_few_kills(self.disturbed.kills)

    def rendered(self) -> Any:
        rows = [(name, figure, MEANINGS[name]) for name, figure in self.figures().items()]
        return table("Every card accounted for", ("figure", "", "meaning"), rows, right=("",))


async def demonstrate(settings: Settings, seed: int, size: int | None) -> Report:
    count, chance = size or CARDS_DEFAULT, random.Random(seed)
    cards = [
        ordered(f"c-{number:05}", BLOCKED if chance.random() < SHARE_BLOCKED else "ada", _amount(chance), "EUR")
        for number in range(count)
    ]
    opening = Amount.total([card.amount for card in cards], EURO)
    mint = MintSimulator()
    mint.deposit(opening)
    door = Faulty(mint, FaultPlan(seed, SHARE_OF_FAULTS), over_sockets=True, slow_s=0.1, retry_after_s=0)

    async def ended(read: Reader) -> int:
        counts = await store.counts(read)
        return counts.get(State.ISSUED, 0) + counts.get(State.REFUSED, 0)

    async with scratch_app(settings) as (app, addresses), serving(door) as url:
        async with app.begin() as tx:
            await store.post_opening(tx.connection, [opening])
            for card in cards:
                await store.order(tx, card)
        workload = Workload("giftcards.worker", [ISSUE.queue], ISSUE.lease_s, count, ended, LIMIT_S)
        disturbed = await run_workload(app, addresses, workload, seed, {"GIFTCARDS_MINT_URL": url})
        # Orders that are still on their way arrive now, so that they are counted.
        await door.close()
        states = await store.counts(app.read)
        issued = [movement.reference for movement in mint.books.movements if movement.target == CARDS]
        return Report(
            seed=seed,
            cards=count,
            issued=states.get(State.ISSUED, 0),
            refused=states.get(State.REFUSED, 0),
            lost=count - await ended(app.read) + max(0, states.get(State.ISSUED, 0) - len(set(issued))),
            doubled=len(issued) - len(set(issued)),
            unexplained=abs(await balance(app.read, Account(AT_MINT, EURO)) - mint.balance(opening)),
            broken=tuple([name for name, query in INVARIANTS.items() if await app.read.fetch(query)]),
            faults=sum(door.enacted.values()),
            disturbed=disturbed,
        )


def _amount(chance: random.Random) -> str:
    cents = chance.randint(100, 20_000)
    return f"{cents // 100}.{cents % 100:02}"
