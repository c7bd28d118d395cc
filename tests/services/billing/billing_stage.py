"""All of billing on one database, worked through step by step: both services, the gateway in this process with its
books, the signed webhook between them, and clocks moved by hand."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec

from payonce.engine.audit import Severity, notes
from payonce.engine.ledger import Account, balance
from payonce.engine.messages.process import Worker
from payonce.engine.webhooks import Received, Receiver
from payonce.kit.http import HttpClient
from payonce.kit.money import Amount, Asset, well_known
from payonce.kit.outcomes import Retry
from payonce.kit.webhooks import Scheme, Secret
from payonce.services.billing import INVARIANTS, QUEUES, ROLES
from payonce.services.billing.payments.handlers.notifications import NotificationSender, open_notification_sender
from payonce.services.billing.payments.store import payment_methods
from payonce.services.billing.policies import BILLING_CLOCK
from payonce.services.billing.subscriptions import schedules
from payonce.services.billing.subscriptions.handlers import new_subscriptions, payment_events, plan_changes, test_clocks
from payonce.services.billing.subscriptions.handlers.plan_changes import ChangeTiming
from payonce.services.billing.subscriptions.model import Invoice, State, Subscription
from payonce.services.billing.subscriptions.store import invoices as invoice_store
from payonce.services.billing.subscriptions.store import subscriptions
from payonce.services.billing.wire import Notification
from payonce.testing import OpenStage, Stage
from payonce.testing.faults import Script
from payonce.testing.faulty import Draws, Faulty
from payonce.vendors.gateway.client import GatewayClient
from payonce.vendors.gateway.simulator import GatewaySimulator

BEGIN: Final = datetime(2026, 1, 31, 9, 0, tzinfo=UTC)
"""The last of a month, which February does not have."""
SECRET: Final = Secret("a-secret-that-two-services-share")
PAYS: Final = "4242424242424242"
DECLINES: Final = "4000000000000002"
EXPIRED: Final = "4000000000000069"
AED: Final = well_known("AED")
PATIENCE_S: Final = 600.0
"""Longer than a notification waits for its second attempt, shorter than anything falls due."""
HOPS_MAX: Final = 5_000


@dataclass
class GatewaysClock:
    now: datetime

    def __call__(self) -> datetime:
        return self.now


@dataclass
class Door:
    """The route of the webhook from payments: verified over the raw bytes, applied in one transaction."""

    s: Stage
    answers: list[int] = field(default_factory=list)
    """With which status the next ones are turned away, before they are read."""
    given: list[Notification] = field(default_factory=list)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while True:
            event = await receive()
            body += event.get("body", b"")
            if not event.get("more_body"):
                break
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        status, answer = await self._take(headers, body)
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": json.dumps(answer).encode()})

    async def _take(self, headers: dict[str, str], body: bytes) -> tuple[int, Any]:
        if self.answers:
            return self.answers.pop(0), {"detail": "not now"}
        received = await Receiver("billing.subscriptions", (SECRET,), Scheme.OLDER).receive(self.s.read, headers, body)
        if not isinstance(received, Received):
            return received.status, {"detail": str(received.why)}
        notification = msgspec.json.decode(body, type=Notification)
        self.given.append(notification)
        try:
            async with self.s.begin() as tx:
                applied = await payment_events.apply(tx, notification)
        except Retry as not_yet:
            return 503, {"detail": not_yet.reason}
        return 200, {"status": applied.status}


@dataclass
class Customer:
    id: str
    card: str | None
    """The token of the last card."""


@dataclass
class House:
    s: Stage
    time: GatewaysClock
    gateway: GatewaySimulator
    gateway_door: Faulty
    client: GatewayClient
    door: Door
    notifier: NotificationSender
    worker: Worker
    customers: list[Customer] = field(default_factory=list)

    async def customer(
        self, card: str | None = PAYS, *, zone: str = "UTC", test_clock: test_clocks.TestClock | None = None
    ) -> Customer:
        """Registered, with a card."""
        customer = Customer(f"acc-{len(self.customers) + 1}", None)
        await self.s.owner.execute(
            """
            insert into subscriptions.accounts (id, email, password_hash, time_zone, test_clock_id)
            values ($1, $1 || '@example.com', 'none', $2, $3)
            """,
            customer.id,
            zone,
            None if test_clock is None else test_clock.id,
        )
        self.customers.append(customer)
        if card is not None:
            await self.give_card(customer, card)
        return customer

    async def give_card(self, customer: Customer, number: str = PAYS) -> None:
        """As a customer's browser and then the route of payments do it: from now on this one is charged."""
        customer.card = self.gateway.tokenise(number)
        details = await payment_methods.describe_token(self.client, customer.card)
        async with self.s.begin() as tx:
            attached = await payment_methods.attach(tx, customer.id, details)
        await self.notifier.at_once(attached.notice)
        if not attached.method.is_default:
            async with self.s.begin() as tx:
                chosen = await payment_methods.make_default(tx, customer.id, attached.method.id)
            await self.notifier.at_once(chosen.notice)

    def card_will(self, customer: Customer, *outcomes: str) -> None:
        """How its next charges end: `succeeds` or a code."""
        assert customer.card is not None
        self.gateway.script(customer.card, *outcomes)

    async def subscribe(self, customer: Customer, plan: str = "basic", *, run: bool = True) -> Subscription:
        async with self.s.begin() as tx:
            subscription = await new_subscriptions.start(tx, customer.id, plan)
        if run:
            await self.run()
        return await self.subscription(subscription)

    async def start_trial(self, customer: Customer, plan: str = "trial", *, run: bool = True) -> Subscription:
        async with self.s.begin() as tx:
            subscription = await new_subscriptions.start_trial(tx, customer.id, plan)
        if run:
            await self.run()
        return await self.subscription(subscription)

    async def change_plan(
        self, subscription: Subscription, plan: str, when: ChangeTiming | None = None
    ) -> Subscription:
        async with self.s.begin() as tx:
            await plan_changes.request_plan(tx, subscription.account_id, subscription.id, plan, when)
        await self.run()
        return await self.subscription(subscription)

    async def cancel(self, subscription: Subscription, when: ChangeTiming = ChangeTiming.NOW) -> Subscription:
        async with self.s.begin() as tx:
            await plan_changes.cancel(tx, subscription.account_id, subscription.id, when)
        await self.run()
        return await self.subscription(subscription)

    async def pause(self, subscription: Subscription) -> Subscription:
        async with self.s.begin() as tx:
            await plan_changes.pause(tx, subscription.account_id, subscription.id)
        return await self.subscription(subscription)

    async def resume(self, subscription: Subscription) -> Subscription:
        async with self.s.begin() as tx:
            await plan_changes.resume(tx, subscription.account_id, subscription.id)
        await self.run()
        return await self.subscription(subscription)

    async def run(self, patience_s: float = PATIENCE_S) -> None:
        """From one message to the next until nothing is left to do."""
        await self.s.clock.run_to(await self.s.clock.now() + timedelta(seconds=patience_s), self.drain)

    async def drain(self) -> None:
        self.time.now = await self.s.clock.now()
        await self.gateway_door.deliver()
        await self.s.drain(self.worker)

    async def go_to(self, moment: datetime) -> None:
        """The store's clock goes from one thing that falls due to the next, as the schedules would put them."""
        found: datetime | None = await self.s.clock.now()
        for _ in range(HOPS_MAX):
            await (self.look() if found is not None and found <= await self.s.clock.now() else self.drain())
            found = await self.s.owner.fetchval(_NEXT_DUE, moment)
            messages = await self.s.clock.next_due()
            following = min((at for at in (found, messages) if at is not None and at <= moment), default=None)
            if following is None:
                break
            await self.s.clock.freeze(following)
        else:
            raise AssertionError(f"after {HOPS_MAX} hops it is {await self.s.clock.now()} only")
        await self.s.clock.freeze(moment)
        await self.look()

    async def pass_days(self, days: float) -> None:
        await self.go_to(await self.s.clock.now() + timedelta(days=days))

    async def look(self) -> None:
        """What the schedules do at their times."""
        async with self.s.begin() as tx:
            await tx.send(BILLING_CLOCK, {}, action=schedules.RENEW)
            await tx.send(BILLING_CLOCK, {}, action=schedules.EARN)
        await self.drain()

    async def test_clock(self, at: datetime = BEGIN) -> test_clocks.TestClock:
        async with self.s.begin() as tx:
            return await test_clocks.create(tx, "a clock", "test", at)

    async def advance(self, clock: test_clocks.TestClock, to: datetime) -> test_clocks.TestClock:
        async with self.s.begin() as tx:
            await test_clocks.advance(tx, clock.id, to)
        await self.run()
        found = await test_clocks.find(self.s.read, clock.id)
        assert found is not None
        return found

    async def subscription(self, subscription: Subscription | str) -> Subscription:
        subscription_id = subscription if isinstance(subscription, str) else subscription.id
        found = await subscriptions.find(self.s.read, subscription_id)
        assert found is not None
        return found

    async def state(self, subscription: Subscription) -> State:
        return (await self.subscription(subscription)).state

    async def invoices(self, of: Subscription | Customer) -> list[Invoice]:
        """The oldest first."""
        account_id = of.account_id if isinstance(of, Subscription) else of.id
        return (await invoice_store.of_account(self.s.read, account_id))[::-1]

    async def timeline(self, subscription: Subscription) -> list[str]:
        return [event["kind"] for event in await subscriptions.events(self.s.read, subscription.id)]

    def captures(self, invoice: Invoice) -> int:
        """How often the gateway has captured money for the invoice, by its books."""
        return self.gateway.books.captures_per_invoice().get(invoice.id, 0)

    async def balance(self, path: str, asset: Asset = AED) -> int:
        return (await balance(self.s.read, Account(f"billing/{path}", asset))).minor

    async def credit(self, customer: Customer) -> Amount:
        minor = await self.s.owner.fetchval(
            "select coalesce(sum(minor), 0) from subscriptions.credits where account_id = $1", customer.id
        )
        return Amount(int(minor), AED)

    async def broken(self) -> dict[str, list[Any]]:
        """Every invariant that does not hold, with the rows that break it."""
        found = {name: await self.s.owner.fetch(query) for name, query in INVARIANTS.items()}
        return {name: [dict(row) for row in rows] for name, rows in found.items() if rows}

    async def told(self, action: str) -> Notification:
        """The last notification of this action, as payments keeps it, delivered or not."""
        body = await self.s.owner.fetchval(
            "select body from payments.notifications where action = $1 order by created_at desc, event_id desc limit 1",
            action,
        )
        return msgspec.json.decode(body, type=Notification)

    async def loud(self) -> list[str]:
        return [note.text for note in await notes(self.s.read, severity=Severity.ERROR)]

    async def parked(self) -> list[str]:
        rows = await self.s.owner.fetch("select queue, last_error from payonce.live_messages where state = 'parked'")
        return [f"{row['queue']}: {row['last_error']}" for row in rows]


def aed(text: str) -> Amount:
    return Amount.from_decimal(text, AED)


_NEXT_DUE: Final = """
    select min(at) from (
        select due_at as at from subscriptions.subscriptions where test_clock_id is null
        union all
        select i.earn_at from subscriptions.invoices i join subscriptions.subscriptions s on s.id = i.subscription_id
        where s.test_clock_id is null
    ) due where at > payonce.due_now() and at <= $1
"""


@asynccontextmanager
async def open_house(
    stage: OpenStage,
    draws: Draws | None = None,
    *,
    at: datetime = BEGIN,
    roles: Sequence[str] = ("subscriptions", "payments"),
    **how: Any,
) -> AsyncIterator[House]:
    async with stage() as s:
        time = GatewaysClock(await s.clock.freeze(at))
        gateway = GatewaySimulator(clock=time, seed=1, limit_per_s=None, **how)
        gateway_door = Faulty(gateway, draws or Script([]))
        door = Door(s)
        async with (
            HttpClient("gateway", "https://gateway.example", transport=gateway_door) as http,
            open_notification_sender(
                "https://localhost", (SECRET,), s.database, transport=door, aside=False
            ) as notifier,
        ):
            client = GatewayClient(http, "key")
            await s.feed.declare(list(QUEUES))
            handlers = [handler for role in roles for handler in ROLES[role]]
            worker = await s.worker(*handlers, resources=[client, notifier])
            yield House(s, time, gateway, gateway_door, client, door, notifier, worker)
