"""Python in the documents: every block compiles and imports existing names, and fragments run in a context for them."""

import ast
import importlib
import inspect
import textwrap
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from payonce.engine import outbox, reconcile
from payonce.engine.database.rate_limits import SharedBudget
from payonce.engine.janitors import Daily, Every, Schedule
from payonce.engine.messages import inbox
from payonce.engine.messages.model import Message
from payonce.engine.messages.policy import Policy
from payonce.engine.messages.process import Worker
from payonce.engine.messages.transaction import Tx, begin
from payonce.engine.outbox import EVENTS, Delivered, LogRelay, Refusal, declare_relays
from payonce.engine.reconcile import Flow, StatementSource
from payonce.kit.money import Amount, well_known
from payonce.testing import OpenStage
from tests.docs.documents import DOCUMENTS, ROOT, blocks, name_of

NOW = datetime(2026, 1, 31, tzinfo=UTC)


def program(block: str) -> str:
    """The fragment wrapped in a function."""
    return f"async def fragment():\n{textwrap.indent(block, '    ')}"


def fragments(page: str) -> list[str]:
    return list(blocks((ROOT / page).read_text(encoding="utf-8"), "python"))


def executed(block: str, **names: Any) -> dict[str, Any]:
    exec(compile(block, "document", "exec"), names)  # noqa: S102 - it is our own document
    return names


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_every_block_compiles_and_imports_what_there_is(path: Path) -> None:
    for block in blocks(path.read_text(encoding="utf-8"), "python"):
        for node in ast.walk(ast.parse(program(block))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("payonce"):
                module = importlib.import_module(str(node.module))
                assert [name.name for name in node.names if not hasattr(module, name.name)] == [], node.module


def test_the_policies_and_schedules_of_the_page_are_declared() -> None:
    first, second = fragments("docs/policies.md")
    assert executed(first)["REFUND"].max_attempts == 6
    schedules = list[Schedule]()

    def schedule(*arguments: Any, **named: Any) -> None:
        schedules.append(Schedule(*arguments, **named))

    imports, _, calls = second.partition("\n\n")
    executed(imports)
    executed(calls, Schedule=schedule, Every=Every, Daily=Daily, RECONCILE=Policy("r"), RENEW=Policy("n"))
    assert [each.name for each in schedules] == ["reconcile", "renewals"]


async def test_the_handler_of_the_page_on_messages_is_given_its_payload(
    stage: OpenStage, capsys: pytest.CaptureFixture[str]
) -> None:
    [block] = fragments("docs/messages.md")
    greet = executed(block)["greet"]
    async with stage() as s:
        queue = await s.queue(greet.policy)
        worker = Worker([greet], s.database, s.feed, lambda policy: queue)
        await s.feed.put([Message(queue=greet.policy.queue, action="greet", payload={"name": "Ada"})])
        assert await worker.step()
    assert "Hello, Ada\n" in capsys.readouterr().out


async def test_an_event_leaves_with_its_transaction_and_comes_in_once(stage: OpenStage) -> None:
    leave, _, come, _ = fragments("docs/outbox.md")

    class Store:
        settled, paid = 0, 0

        async def settle(self, tx: Tx, _: object) -> None:
            self.settled += 1

        async def mark_paid(self, tx: Tx, _: object) -> None:
            self.paid += 1

    class Settled(msgspec.Struct):
        id: int = 7
        order_id: str = "order-7"

    async with stage() as s:
        await declare_relays(s.database, [LogRelay()])

        class Work:
            @asynccontextmanager
            async def commit(self) -> AsyncIterator[Tx]:
                async with begin(s.database, s.feed) as tx:
                    yield tx

        store = Store()
        names = {
            "work": Work(),
            "store": store,
            "escrow": Settled(),
            "database": s.database,
            "feed": s.feed,
            "event_id": "evt-1",
            "invoice": None,
            "begin": begin,
            "accept": inbox.accept,
        }
        await executed(program(leave), **names)["fragment"]()
        for _ in range(2):
            await executed(program(come), **names)["fragment"]()
        sent = await s.owner.fetchrow("select relay, queue, payload, correlation_id from payonce.outbox")
    assert sent is not None
    assert tuple(sent) == (EVENTS, "escrow.settled", '{"id":"7"}', "order-7")
    assert (store.settled, store.paid) == (1, 1)


async def test_a_relay_of_ones_own_answers_for_every_entry() -> None:
    relay_class = executed(fragments("docs/outbox.md")[1], **vars(outbox), Sequence=Sequence)["BrokerRelay"]

    class Broker:
        async def publish(self, entries: Sequence[object]) -> list[tuple[bool, str]]:
            return [(True, ""), (False, "too large")]

    relay: outbox.Relay = relay_class()
    relay.broker = Broker()  # type: ignore[attr-defined]
    assert await relay.deliver([]) == [Delivered(), Refusal("too large")]
    assert (relay.name, relay.config.refusals_max) == ("events", 5)


def test_the_budget_of_the_page_takes_what_it_is_given() -> None:
    nodes = ast.walk(ast.parse(fragments("docs/outbox.md")[3]))
    [call] = [node for node in nodes if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "SharedBudget"]
    named = {str(each.arg): ast.literal_eval(each.value) for each in call.keywords}
    inspect.signature(SharedBudget).bind("database", "changenow", **named)


async def test_the_statement_of_the_page_is_read_line_by_line() -> None:
    class Line(msgspec.Struct):
        number: str = "n-1"
        memo: str = "refund-7:1"
        amount: Amount = Amount(-500, well_known("EUR"))
        booked_at: datetime = NOW

    class Receipt(msgspec.Struct):
        number: str

    class Bank:
        async def statement(self, since: datetime, until: datetime) -> AsyncIterator[Line]:
            yield Line()

        async def balance(self) -> Amount:
            return Amount(1_000, well_known("EUR"))

    class Store:
        async def awaits(self, read: object, name: tuple[str, int] | None, amount: Amount) -> bool:
            return (name, amount) == (("refund-7", 1), Amount(500, well_known("EUR")))

    [block] = fragments("docs/reconcile.md")
    names = {**vars(reconcile), "Bank": Bank, "Receipt": Receipt, "store": Store(), "datetime": datetime}
    names |= {"AsyncIterator": AsyncIterator, "Sequence": Sequence, "Amount": Amount, "Reads": object}
    source: StatementSource = executed(block, **names)["BankStatement"](Bank())
    [entry] = [entry async for entry in source.entries(NOW, NOW)]
    assert (entry.vendor_ref, entry.reference, source.kinds[entry.kind]) == ("n-1", "refund-7:1", Flow.OUT)
    assert await source.expects(None, entry)  # type: ignore[arg-type]
    assert await source.balance() == [Amount(1_000, well_known("EUR"))]
