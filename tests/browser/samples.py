"""What the people in the browser tests find: transfers between two banks, one in doubt, and a parked message."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from uuid import UUID

from payonce.engine.effects.model import State
from payonce.engine.effects.queries import effects
from payonce.engine.messages.model import Message
from payonce.engine.operators import Role, add_person
from payonce.examples import tally
from payonce.examples.tally.policies import CHANGES
from payonce.testing import OpenStage
from payonce.testing.faults import Fault
from tests.browser.chromium import Watched
from tests.examples.transfers_stage import Office, open_office, order

PASSWORD = "correct horse battery"
DAY_S = 86_400.0


@dataclass
class Silence:
    """A bank that books a payment, loses the answer, and cannot be asked about it."""

    on: bool = False

    def draw(self, route: str, call: str, number: int) -> Fault | None:
        if not self.on:
            return None
        return Fault.ANSWER_LOST if route.startswith("POST") else Fault.ERROR_BEFORE


@dataclass
class SampleData:
    """Everything was done by the real handlers, against the banks' simulators."""

    office: Office
    silence: Silence
    ordered: int = 0

    async def transfers(self, count: int, amount: str = "12.50", *, settle: bool = True) -> None:
        await self.office.ask_for(*(order(self.ordered + number, amount) for number in range(1, count + 1)))
        self.ordered += count
        if settle:
            await self.office.run()

    async def transfer_in_review(self, amount: str = "420.00") -> UUID:
        """Southbank is silent for a day: its message is parked, and its effect put before a person."""
        self.silence.on = True
        await self.office.ask_for(order(self.ordered + 1, amount))
        self.ordered += 1
        await self.office.drain()
        await self.office.s.clock.advance(2 * DAY_S)
        await self.office.drain()
        self.silence.on = False
        [found] = await effects(self.office.s.read, [State.REVIEW])
        return found.effect.id

    async def parked_message(self, row: int = 7) -> UUID:
        """A change of a row that is not there is tried five times."""
        s = self.office.s
        worker = await s.worker(*tally.ROLES["worker"])
        [message_id] = await s.feed.put([Message(queue=CHANGES.queue, payload={"row_id": row}, correlation_id="row-7")])
        await s.run(worker, for_s=10.0)
        return message_id

    async def person(self, name: str, role: Role) -> None:
        async with self.office.s.begin() as tx:
            await add_person(tx, name, role, PASSWORD, by="the test")


@asynccontextmanager
async def open_samples(stage: OpenStage) -> AsyncIterator[SampleData]:
    silence = Silence()
    async with open_office(stage, at_southbank=silence) as office:
        yield SampleData(office, silence)


async def log_in(person: Watched, name: str) -> None:
    await person.page.goto("/console/login")
    await person.page.get_by_label("Name").fill(name)
    await person.page.get_by_label("Password").fill(PASSWORD)
    await person.page.get_by_role("button", name="Log in").click()
    await person.page.get_by_role("navigation", name="Pages", exact=True).wait_for()
