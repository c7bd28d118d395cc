"""A process that stands still between its intent and its send, and wakes up when another one has finished the work."""

import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec
import pytest
from aiohttp import web

from payonce.engine.effects import Answer, answer_review, reviews
from payonce.engine.messages.model import Message
from payonce.engine.messages.transaction import Reader, begin
from payonce.testing import eventually
from payonce.testing.processes import Child
from tests.processes.payer import KINDS, PAYMENTS, Duty, Order, Receipt
from tests.processes.testbed import ROOT, START_LIMIT_S, ProcessTestbed

FINISH_LIMIT_S = 60.0

AnyBank = TypeVar("AnyBank", bound="Bank")


@dataclass
class Bank:
    """Takes an order as often as it comes unless its kind says otherwise. Its books are the oracle."""

    url: str = ""
    booked: list[Order] = field(default_factory=list)
    carts: Counter[Order] = field(default_factory=Counter)
    """How often the cart of an order was wiped: a payment into an older one is refused."""

    def times(self) -> dict[str, int]:
        return dict(Counter(order.kind for order in self.booked))

    async def open(self, request: web.Request) -> web.Response:
        return web.json_response(self.carts[await order_of(request)])

    async def pay(self, request: web.Request) -> web.Response:
        order = await order_of(request)
        if int(request.match_info["cart"]) < self.carts[order]:
            raise web.HTTPGone
        if not (order.kind in ("keyed", "rebroadcast") and order in self.booked):
            self.booked.append(order)
            return _answer(Receipt(f"{order.reference}-{len(self.booked)}"))
        return self._first(order)

    async def find(self, request: web.Request) -> web.Response:
        return self._first(await order_of(request))

    async def forget(self, request: web.Request) -> web.Response:
        self.carts[await order_of(request)] += 1
        return _answer(None)

    def _first(self, order: Order) -> web.Response:
        places = [place for place, each in enumerate(self.booked, 1) if each == order]
        return _answer(Receipt(f"{order.reference}-{places[0]}") if places else None)


async def order_of(request: web.Request) -> Order:
    return msgspec.json.decode(await request.read(), type=Order)


def _answer(receipt: Receipt | None) -> web.Response:
    return web.Response(body=msgspec.json.encode(receipt))


@asynccontextmanager
async def open_bank(bank: AnyBank) -> AsyncIterator[AnyBank]:
    application = web.Application()
    application.add_routes([web.post(f"/{name}", getattr(bank, name)) for name in ("open", "find", "forget")])
    application.add_routes([web.post("/pay/{cart}", bank.pay)])
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        bank.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield bank
    finally:
        await runner.cleanup()


async def start_payer(
    testbed: ProcessTestbed,
    bank: Bank,
    stops: str = "",
    wanted: int = 0,
    *,
    looks: bool = False,
    url: str | None = None,
) -> Child:
    folder, url = str(testbed.journal.folder), url or testbed.scratch.service_url
    duty = Duty(url=url, folder=folder, bank_url=bank.url, stops=stops, wanted=wanted, looks=looks)
    command = (sys.executable, "-m", "tests.processes.payer", msgspec.json.encode(duty).decode())
    child = testbed.processes.start(*command, name="payer", cwd=ROOT)
    await testbed.noted("ready", 0, START_LIMIT_S, pid=child.pid)
    return child


async def put_one_of_each(testbed: ProcessTestbed, kinds: Sequence[str]) -> None:
    await testbed.feed.declare([PAYMENTS])
    payloads = [{"row": row, "kind": kind} for row, kind in enumerate(kinds)]
    await testbed.feed.put([Message(queue=PAYMENTS.queue, payload=payload) for payload in payloads])


async def states(testbed: ProcessTestbed) -> dict[str, list[str]]:
    rows = await testbed.database.work.fetch(
        "select kind, array_agg(state order by generation) as states from payonce.effects group by kind"
    )
    return {row["kind"].partition(".")[2]: row["states"] for row in rows}


async def others_finished(testbed: ProcessTestbed, kinds: Sequence[str]) -> None:
    """Everything that can be finished is; the rest lies before a person."""

    async def at_rest() -> bool:
        found = await states(testbed)
        return len(found) == len(kinds) and all(each[-1] in ("performed", "review") for each in found.values())

    await eventually(at_rest, FINISH_LIMIT_S, "another process finishes")


async def stop_one_and_let_another_finish(
    testbed: ProcessTestbed, bank: Bank, where: str, kinds: Sequence[str] = KINDS
) -> tuple[Child, Child]:
    stopped = await start_payer(testbed, bank, where, len(kinds))
    await put_one_of_each(testbed, kinds)
    for row in range(len(kinds)):
        await testbed.noted(where, row)
    stopped.stop()
    successor = await start_payer(testbed, bank)
    await others_finished(testbed, kinds)
    return stopped, successor


async def wake(testbed: ProcessTestbed, stopped: Child) -> None:
    """Returns when it has woken up, sent what it still sends, and serves again."""
    await testbed.feed.put([Message(queue=PAYMENTS.queue, payload={"row": 100, "kind": "keyed"})])
    stopped.resume()

    async def served() -> bool:
        return bool(
            await testbed.ask("select exists (select from payonce.effects where key = 'p-100' and outcome is not null)")
        )

    await eventually(served, FINISH_LIMIT_S, "the woken process serves")


async def test_a_process_stopped_between_intent_and_send_sends_nothing_when_it_wakes(testbed: ProcessTestbed) -> None:
    """Guards the monotonic deadline and the lease: an old intent is no longer sent."""
    async with open_bank(Bank()) as bank:
        stopped, successor = await stop_one_and_let_another_finish(testbed, bank, "intended")
        before = list(bank.booked)
        assert bank.times() == {"keyed": 1, "findable": 1, "rebroadcast": 1, "harmless": 1}
        successor.kill()
        await wake(testbed, stopped)
        assert [order for order in bank.booked if order.reference != "p-100:1"] == before
        found = await states(testbed)
        assert found["unfenced"] == found["blind"] == ["review"]


@pytest.mark.full
async def test_a_process_that_wakes_up_at_the_vendors_door_changes_nothing_where_that_is_promised(
    testbed: ProcessTestbed,
) -> None:
    """The remaining window: it had looked at its deadline, and then stood still. What is sent then, only a vendor's
    key, its fence or its memory can stop; what none of them stops is not sent a second time by anybody else."""
    async with open_bank(Bank()) as bank:
        stopped, successor = await stop_one_and_let_another_finish(testbed, bank, "at the door")
        successor.kill()
        await wake(testbed, stopped)
        once = bank.times()
        assert (once["keyed"] - 1, once["rebroadcast"], once["blind"], once["unfenced"]) == (1, 1, 1, 1)
        # The fence made the bank refuse the late one; it knows the first send by nothing but its reference.
        assert once["findable"] == 1
        # A duplicate of a harmless one moves no money: both stand in the bank's books, and ours say which counts.
        assert once["harmless"] == 2
        assert (await states(testbed))["harmless"] == ["abandoned", "performed"]


@pytest.mark.full
async def test_a_persons_send_again_without_a_fence_is_the_window_that_remains(testbed: ProcessTestbed) -> None:
    """Documented, and noticed: the second outcome contradicts the first and opens a review."""
    async with open_bank(Bank()) as bank:
        stopped, successor = await stop_one_and_let_another_finish(testbed, bank, "at the door", ["unfenced"])
        [review] = await reviews(Reader(testbed.database))
        async with begin(testbed.database, testbed.feed) as tx:
            await answer_review(
                tx, review.effect.id, Answer.SEND_AGAIN, "ada", "not in their list", revision=review.effect.revision
            )

        async def sent_again() -> bool:
            return (await states(testbed))["unfenced"] == ["performed"]

        await testbed.ask("update payonce.messages set ready_at = payonce.due_now() where state = 'ready'")
        await eventually(sent_again, FINISH_LIMIT_S, "it is sent again")
        successor.kill()
        await wake(testbed, stopped)
        assert bank.times()["unfenced"] == 2

        async def noticed() -> bool:
            cause = await testbed.ask("select review_cause from payonce.effects where kind = 'bank.unfenced'")
            return bool(cause == "contradiction")

        await eventually(noticed, FINISH_LIMIT_S, "the contradiction is before a person")
