"""A database each: messages to payments leave by the outbox, and each process looks after its own service alone."""

import base64
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import pytest

from payonce.app.process import App
from payonce.app.registry import role_names
from payonce.engine.audit import Severity, notes
from payonce.engine.database.sessions import connect
from payonce.engine.ledger import Posting, Reference, moved
from payonce.engine.messages.model import Message
from payonce.engine.messages.transaction import Tx
from payonce.engine.outbox import Entry, relay_step
from payonce.http.server import listening
from payonce.kit.outcomes import Invalid
from payonce.services.billing import subscriptions
from payonce.services.billing.payments import APART_INVARIANTS, ledger
from payonce.services.billing.payments.api import inbound_messages
from payonce.services.billing.policies import CHARGE_INITIATION, PAYMENTS_CLOCK, PAYMENTS_QUEUES, SUBSCRIPTIONS_QUEUES
from payonce.services.billing.settings import PAYMENTS, SUBSCRIPTIONS
from payonce.services.billing.subscriptions import schedules
from payonce.services.billing.subscriptions.handlers import new_subscriptions, renewals
from payonce.services.billing.subscriptions.handlers.payments_relay import RELAY, PaymentsRelay
from payonce.services.billing.subscriptions.store import subscriptions as store
from payonce.services.billing.wire import Action
from payonce.settings import load_settings
from payonce.testing import ScratchDatabase, ScratchServer, Servers
from tests.ablations import Ablations, cases, given, missed, patched
from tests.services.billing.billing_stage import aed

SHARED: Final = "a-secret-that-both-services-of-billing-have"
OTHER: Final = "a-secret-that-only-one-of-the-services-has"
CHARGE: Final = {"transaction_id": "t-1"}


@dataclass
class Two:
    subscriptions: App
    payments: App
    listener: AsyncExitStack
    """Closed, payments no longer answers."""

    @property
    def relay(self) -> PaymentsRelay:
        [found] = [each for each in self.subscriptions.backend.relays if isinstance(each, PaymentsRelay)]
        return found

    async def send(self, policy: Any = CHARGE_INITIATION, key: str | None = None) -> UUID:
        async with self.subscriptions.begin() as tx:
            return await tx.send(policy, CHARGE, action="renewal", key=key, correlation_id="s-1")

    async def charged(self) -> UUID:
        """The message of a first invoice, which payments has."""
        async with self.subscriptions.begin() as tx:
            await tx.execute("insert into subscriptions.accounts (id, email) values ('acc-1', 'ada@example.com')")
            made = await new_subscriptions.start(tx, "acc-1", "basic")
            await renewals.bill_first(tx, await store.locked(tx, made.id), Action.INITIAL)
        return await self._forwarded()

    async def asked_again(self) -> UUID:
        """What the schedule puts that looks for charges without an answer."""
        async with self.subscriptions.begin() as tx:
            await tx.execute("update subscriptions.invoices set updated_at = updated_at - interval '1 hour'")
            await schedules._put_back_charges(tx)
        return await self._forwarded()

    async def _forwarded(self) -> UUID:
        [row] = await self.subscriptions.read.fetch("select id from payonce.outbox where relay = $1", RELAY)
        assert await self.relayed() == []
        found: UUID = row["id"]
        return found

    async def relayed(self) -> list[tuple[str, str | None]]:
        """What is left in the outbox after one step: state and reason."""
        await relay_step(self.subscriptions.database, self.relay)
        rows = await self.subscriptions.read.fetch(
            "select state, last_error from payonce.outbox where relay = $1 order by id", RELAY
        )
        return [(row["state"], row["last_error"]) for row in rows]

    async def arrived(self) -> list[UUID]:
        rows = await self.payments.read.fetch(
            "select id from payonce.messages where queue = $1 order by id", CHARGE_INITIATION.queue
        )
        return [row["id"] for row in rows]


OpenTwo = Callable[[], AbstractAsyncContextManager[Two]]


@pytest.fixture(scope="session")
def servers(shared_servers: Servers) -> Servers:
    return shared_servers


@pytest.fixture
def second(postgres: ScratchServer) -> Iterator[ScratchDatabase]:
    with postgres.lent() as database:
        yield database


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """Sets what a process of a role on a database is given."""

    def said(role: str, database: ScratchDatabase, **more: str) -> None:
        variables = {
            "DATABASE_URL": database.service_url,
            "BILLING_DATABASE": role.partition(".")[2],
            "PAYONCE_DATA_DIR": str(tmp_path / role),
            "JWT_SECRET_KEY": SHARED,
            "WEBHOOK_SIGNING_SECRET": SHARED,
            "PAYONCE_KEYS": f"k1:{base64.b64encode(bytes(32)).decode()}",
            **more,
        }
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return said


@pytest.fixture
def two(scratch: ScratchDatabase, second: ScratchDatabase, environment: Callable[..., None]) -> OpenTwo:
    return lambda: opened(scratch, second, environment)


@asynccontextmanager
async def opened(
    first: ScratchDatabase, second: ScratchDatabase, environment: Callable[..., None], **at_subscriptions: str
) -> AsyncIterator[Two]:
    async with AsyncExitStack() as stack:
        environment(PAYMENTS, second)
        payments = await stack.enter_async_context(App.open(load_settings(), [PAYMENTS]))
        listener = await stack.enter_async_context(AsyncExitStack())
        port = await listener.enter_async_context(listening(payments, "127.0.0.1", 0))
        environment(SUBSCRIPTIONS, first, PAYMENT_SERVICE_URL=f"http://127.0.0.1:{port}", **at_subscriptions)
        subscriptions = await stack.enter_async_context(App.open(load_settings(), [SUBSCRIPTIONS]))
        yield Two(subscriptions, payments, listener)


async def test_a_message_to_payments_arrives_once_however_often_it_is_sent(two: OpenTwo) -> None:
    async with two() as at:
        sent = await at.send(key="k")
        row = await at.subscriptions.read.fetchrow("select * from payonce.outbox where relay = $1", RELAY)
        entries = [Entry(_message(row, sent), row["ready_at"], 0)]
        assert await at.relayed() == []
        assert await at.arrived() == [sent]
        await at.relay.deliver(entries)
        assert await at.arrived() == [sent]
        # Its run has ended; only the inbox knows of it.
        async with at.payments.database.transaction() as connection:
            await connection.execute("delete from payonce.messages where id = $1", sent)
        await at.relay.deliver(entries)
        assert await at.arrived() == []


def _message(row: Any, sent: UUID) -> Message:
    assert row["id"] == sent
    return Message(id=sent, queue=row["queue"], action=row["action"], payload=CHARGE, correlation_id="s-1")


async def test_a_message_that_was_not_committed_is_not_sent(two: OpenTwo) -> None:
    async with two() as at:
        async with at.subscriptions.database.work.acquire() as connection:
            transaction = connection.transaction()
            await transaction.start()
            await Tx(connection, at.subscriptions.feed, None).send(CHARGE_INITIATION, CHARGE, action="renewal")
            await transaction.rollback()
        assert await at.relayed() == []
        assert await at.arrived() == []


async def test_messages_that_are_too_much_for_one_request_go_in_several(two: OpenTwo) -> None:
    """Else they would hold up all that follow."""
    async with two() as at:
        async with at.subscriptions.begin() as tx:
            # A JSON body has at most 5,000 values, counted by its commas.
            for _ in range(20):
                await tx.send(CHARGE_INITIATION, {**CHARGE, "note": "," * 300}, action="renewal")
        assert await at.relayed() == []
        assert len(await at.arrived()) == 20


async def test_while_payments_is_away_messages_wait_and_none_is_lost(two: OpenTwo) -> None:
    async with two() as at:
        await at.listener.aclose()
        await at.send()
        [(state, reason)] = await at.relayed()
        assert (state, reason is not None) == ("waiting", True)
        assert await at.arrived() == []


async def test_with_another_secret_messages_wait_for_a_person(
    scratch: ScratchDatabase, second: ScratchDatabase, environment: Callable[..., None]
) -> None:
    async with opened(scratch, second, environment, WEBHOOK_SIGNING_SECRET=OTHER) as at:
        await at.send()
        [(state, reason)] = await at.relayed()
        assert (state, "payments answered 401" in (reason or "")) == ("waiting", True)
        assert await at.arrived() == []


async def test_a_queue_of_paymentss_own_takes_nothing_from_subscriptions(two: OpenTwo) -> None:
    async with two() as at:
        refused, taken = await at.send(PAYMENTS_CLOCK), await at.send()
        left = [reason for _, reason in await at.relayed()]
        assert left == ["queue 'q:pay:clock' accepts nothing from subscriptions"]
        assert await at.arrived() == [taken]
        assert refused != taken


async def test_what_waits_at_payments_is_not_put_there_again(two: OpenTwo) -> None:
    """Subscriptions cannot look into its queues, and ask again every quarter of an hour for as long as there is no
    answer: a queue that is paused over night would have each charge dozens of times."""
    async with two() as at:
        sent = await at.charged()
        assert await at.arrived() == [sent]
        for _ in range(2):
            assert await at.asked_again() != sent
            assert await at.arrived() == [sent]
        async with at.payments.database.transaction() as connection:
            await connection.execute("delete from payonce.messages")
        again = await at.asked_again()
        assert await at.arrived() == [again]


async def test_what_payments_may_hold_is_asked_for_again_with_one_note_and_no_warning(two: OpenTwo) -> None:
    """Nothing says that its message was lost: it is not seen from here."""
    async with two() as at:
        await at.charged()
        for _ in range(3):
            await at.asked_again()
        [said] = await notes(at.subscriptions.read, location="billing.put_back")
        assert said.severity is Severity.INFO
        assert said.text == "invoice INV-2026-000001 was being charged and had no answer; requested again"


async def test_each_database_has_the_queues_schedules_and_checks_of_its_own_service(
    two: OpenTwo, scratch: ScratchDatabase, second: ScratchDatabase
) -> None:
    async with two() as at:
        for database, other in ((scratch, "payments"), (second, "subscriptions")):
            owner = await connect(database.owner_url)
            await owner.execute(f"drop schema {other} cascade")
            await owner.close()
        ours = {SUBSCRIPTIONS: SUBSCRIPTIONS_QUEUES, PAYMENTS: PAYMENTS_QUEUES}
        every = {policy.queue for policies in ours.values() for policy in policies}
        for role, app in ((SUBSCRIPTIONS, at.subscriptions), (PAYMENTS, at.payments)):
            mine = {policy.queue for policy in ours[role]}
            assert every.intersection(await app.admin.queues()) == mine
            put = {schedule.policy.queue for service in app.services for schedule in service.schedules}
            assert put & every <= mine
            report = await app.audit()
            assert report.findings == ()
            assert await app.known_as("nobody") == []
            assert [match for lookup in app.lookups for match in await lookup(app.read, "nobody")] == []
            for service in app.services:
                if service.observes is not None:
                    await service.observes(app.database)


async def test_the_audit_of_each_database_finds_money_between_the_services_that_nobody_told_of(two: OpenTwo) -> None:
    async with two() as at:
        for app, invariants in ((at.subscriptions, subscriptions.APART_INVARIANTS), (at.payments, APART_INVARIANTS)):
            stray = Posting("stray", Reference("test", "stray"), moved(aed("1.00"), ledger.CAPTURED, "test/stray"))
            async with app.begin() as tx:
                await tx.post(stray)
            [name] = invariants
            assert name in str((await app.audit()).findings)


@pytest.mark.parametrize(("held", "role"), [("subscriptions", PAYMENTS), ("payments", SUBSCRIPTIONS)])
async def test_a_role_is_refused_on_the_database_of_the_other(
    scratch: ScratchDatabase, environment: Callable[..., None], held: str, role: str
) -> None:
    environment(role, scratch, BILLING_DATABASE=held)
    settings = load_settings()
    with pytest.raises(Invalid, match=f"^BILLING_DATABASE is {held}, so {role} has its tables in another database"):
        async with App.open(settings, [role]):
            raise AssertionError
    assert role not in role_names(settings), "nor does `payonce up` run it"


async def test_messages_that_nobody_would_take_any_more_are_named_at_the_start(
    scratch: ScratchDatabase, environment: Callable[..., None]
) -> None:
    environment(SUBSCRIPTIONS, scratch, BILLING_DATABASE="both")
    async with App.open(load_settings(), [SUBSCRIPTIONS]) as app, app.begin() as tx:
        await tx.send(CHARGE_INITIATION, CHARGE, action="renewal")
    environment(SUBSCRIPTIONS, scratch)
    with pytest.raises(Invalid, match=r"^1 messages of queue q:pay:charge_initiation wait in this database"):
        async with App.open(load_settings(), [SUBSCRIPTIONS]):
            raise AssertionError


@pytest.mark.parametrize(
    ("held", "other", "row"),
    [
        (
            "payments",
            "subscriptions",
            "insert into subscriptions.accounts (id, email, password_hash) values ('a', 'ada@example.com', 'none')",
        ),
        (
            "subscriptions",
            "payments",
            """insert into payments.payment_methods
                (id, account_id, token, brand, last4, exp_month, exp_year, is_default)
            values ('m', 'a', 't', 'visa', '4242', 12, 2090, true)""",
        ),
    ],
)
async def test_a_shared_database_is_not_taken_for_one_of_a_single_service(
    scratch: ScratchDatabase, environment: Callable[..., None], held: str, other: str, row: str
) -> None:
    owner = await connect(scratch.owner_url)
    await owner.execute(row)
    await owner.close()
    environment(f"billing.{held}", scratch)
    with pytest.raises(Invalid, match=rf"^BILLING_DATABASE is {held}, but this .* data of billing\.{other}; .*=both"):
        async with App.open(load_settings(), [f"billing.{held}"]):
            raise AssertionError
    async with App.open(load_settings()) as app:
        assert not app.holds(f"billing.{other}"), "commands go on"


async def test_the_database_of_subscriptions_is_not_shared_while_messages_wait_for_payments(
    scratch: ScratchDatabase, environment: Callable[..., None]
) -> None:
    environment(SUBSCRIPTIONS, scratch)
    async with App.open(load_settings(), [SUBSCRIPTIONS]) as app, app.begin() as tx:
        await tx.send(CHARGE_INITIATION, CHARGE, action="renewal")
    environment(SUBSCRIPTIONS, scratch, BILLING_DATABASE="both")
    with pytest.raises(Invalid, match=r"^1 messages in this database wait for payments .* BILLING_DATABASE=subscript"):
        async with App.open(load_settings(), [SUBSCRIPTIONS]):
            raise AssertionError


async def test_a_command_needs_no_secret(
    scratch: ScratchDatabase, environment: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    environment(SUBSCRIPTIONS, scratch)
    monkeypatch.delenv("WEBHOOK_SIGNING_SECRET")
    async with App.open(load_settings()) as app, app.begin() as tx:
        await tx.send(CHARGE_INITIATION, CHARGE, action="renewal")


async def always(*_: object) -> bool:
    return True


async def never(*_: object) -> bool:
    return False


ABLATIONS: Ablations = {
    "what waits at payments": (
        patched(inbound_messages, "_is_under_way", never),
        [given(test_what_waits_at_payments_is_not_put_there_again)],
    ),
    "the inbox of payments": (
        patched(inbound_messages, "accept", always),
        [given(test_a_message_to_payments_arrives_once_however_often_it_is_sent)],
    ),
    "the queues that are open": (
        patched(inbound_messages, "OPEN_QUEUES", frozenset(policy.queue for policy in PAYMENTS_QUEUES)),
        [given(test_a_queue_of_paymentss_own_takes_nothing_from_subscriptions)],
    ),
}


@pytest.mark.parametrize(("name", "number"), cases(ABLATIONS))
async def test_without_it_the_named_test_fails(two: OpenTwo, name: str, number: int) -> None:
    await missed(ABLATIONS, name, number, two)  # type: ignore[arg-type]
