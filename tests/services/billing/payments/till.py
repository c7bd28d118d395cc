"""The payment service on one database: the gateway in this process with its books, and a subscription service that
keeps what it is told and books it as the real one does."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from payonce.engine.audit import Severity, notes
from payonce.engine.ledger import Account, Posting, Reference, balance, moved
from payonce.engine.messages.process import Worker
from payonce.engine.webhooks import Received, Receiver
from payonce.kit.http import HttpClient
from payonce.kit.money import Amount, well_known
from payonce.kit.webhooks import Scheme, Secret
from payonce.services.billing.payments import HANDLERS, SHARED_INVARIANTS, ledger
from payonce.services.billing.payments.handlers.notifications import NotificationSender, open_notification_sender
from payonce.services.billing.payments.invariants import INVARIANTS as OWN_INVARIANTS
from payonce.services.billing.payments.model import PaymentMethod, Transaction
from payonce.services.billing.payments.store import payment_methods, transactions
from payonce.services.billing.policies import CHARGE_INITIATION, QUEUES
from payonce.services.billing.wire import Action, Charge
from payonce.testing import OpenStage, Stage
from payonce.testing.faults import Script
from payonce.testing.faulty import Draws, Faulty
from payonce.vendors.gateway.client import GatewayClient
from payonce.vendors.gateway.simulator import GatewaySimulator

SECRET: Final = Secret("a-secret-that-two-services-share")
PAYS: Final = "4242424242424242"
DECLINES: Final = "4000000000000002"
EXPIRED: Final = "4000000000000069"
AED: Final = well_known("AED")
PRICE: Final = Amount(2_900, AED)
PATIENCE_S: Final = 4 * 3_600.0
AT: Final = "https://subscriptions.example"
INVARIANTS: Final = {**OWN_INVARIANTS, **SHARED_INVARIANTS}
"""Of a ledger that both services write."""


@dataclass
class GatewaysClock:
    now: datetime

    def __call__(self) -> datetime:
        return self.now


@dataclass
class Subscriptions:
    """Takes a notification as the subscription service does: verified, once, with its posting in the same commit."""

    s: Stage
    secrets: Sequence[Secret] = (SECRET,)
    answers: list[int] = field(default_factory=list)
    """With which status the next ones are turned away, before they are read."""
    told: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    duplicates: int = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while True:
            event = await receive()
            body += event.get("body", b"")
            if not event.get("more_body"):
                break
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        status, answer = await self._take(scope["path"], headers, body)
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": json.dumps(answer).encode()})

    async def _take(self, path: str, headers: dict[str, str], body: bytes) -> tuple[int, Any]:
        assert path == "/v1/webhooks/payment"
        self.headers.append(headers)
        if self.answers:
            return self.answers.pop(0), {"detail": "not now; my token=very-secret-value"}
        receiver = Receiver("test.subscriptions", self.secrets, Scheme.OLDER)
        received = await receiver.receive(self.s.read, headers, body)
        if not isinstance(received, Received):
            return received.status, {"detail": received.detail}
        async with self.s.begin() as tx:
            if not await received.first_time(tx):
                self.duplicates += 1
                return 200, {"status": "duplicate"}
            if (posting := _applied(received.event)) is not None:
                await tx.post(posting)
        self.told.append(received.event)
        return 200, {"status": "processed"}


def _applied(event: dict[str, Any]) -> Posting | None:
    if event["status"] != "success" or event["action"] == "payment_method":
        return None
    amount = Amount.from_decimal(event["amount"], well_known(event["currency"]))
    lines = moved(amount, ledger.CAPTURED, "test/applied")
    if event["action"] != "refund":
        lines = moved(amount, "test/applied", ledger.CAPTURED)
    return Posting(f"test:{event['event_id']}", Reference("test", event["event_id"]), lines)


@dataclass
class Till:
    s: Stage
    clock: GatewaysClock
    gateway: GatewaySimulator
    door: Faulty
    client: GatewayClient
    subscriptions: Subscriptions
    notifier: NotificationSender
    worker: Worker

    async def card(self, number: str = PAYS, account_id: str = "acc-1") -> PaymentMethod:
        """As a customer's browser and then our route do it."""
        token = self.gateway.tokenise(number)
        details = await payment_methods.describe_token(self.client, token)
        async with self.s.begin() as tx:
            attached = await payment_methods.attach(tx, account_id, details)
        await self.notifier.at_once(attached.notice)
        return attached.method

    async def ask(self, invoice: str = "inv-1", generation: int = 1, **other: Any) -> Charge:
        charge = charge_of(invoice, generation, **other)
        async with self.s.begin() as tx:
            # No key: what the queue itself keeps apart is not what is tested here.
            payload = {name: getattr(charge, name) for name in charge.__struct_fields__}
            await tx.send(CHARGE_INITIATION, payload, action=charge.action, correlation_id=charge.subscription_id)
        return charge

    async def run(self, patience_s: float = PATIENCE_S) -> None:
        """From one due time to the next until nothing is left to do."""
        await self.s.clock.run_to(await self.s.clock.now() + timedelta(seconds=patience_s), self.drain)

    async def drain(self) -> None:
        self.clock.now = await self.s.clock.now()
        await self.door.deliver()
        await self.s.drain(self.worker)

    async def transaction(self, invoice: str = "inv-1", generation: int = 1) -> Transaction:
        found = await transactions.by_charge_key(self.s.read, f"{invoice}:{generation}")
        assert found is not None
        return found

    async def charged(self, invoice: str = "inv-1", **other: Any) -> Transaction:
        await self.ask(invoice, **other)
        await self.run()
        return await self.transaction(invoice)

    def captures(self, invoice: str = "inv-1") -> int:
        """How often the gateway has captured money for the invoice, by its books."""
        return self.gateway.books.captures_per_invoice()[invoice]

    async def balance(self, path: str) -> int:
        return (await balance(self.s.read, Account(path, AED))).minor

    async def broken(self) -> dict[str, list[Any]]:
        found = {name: await self.s.owner.fetch(query) for name, query in INVARIANTS.items()}
        return {name: [dict(row) for row in rows] for name, rows in found.items() if rows}

    async def loud(self) -> list[str]:
        return [note.text for note in await notes(self.s.read, severity=Severity.ERROR)]

    async def parked(self) -> list[str]:
        """The reasons of what is parked."""
        rows = await self.s.owner.fetch("select last_error from payonce.messages where state = 'parked' order by id")
        return [row["last_error"] for row in rows]

    async def queued(self, queue: str) -> int:
        count: int = await self.s.owner.fetchval("select count(*) from payonce.messages where queue = $1", queue)
        return count


def charge_of(invoice: str = "inv-1", generation: int = 1, **other: Any) -> Charge:
    fields: dict[str, Any] = {
        "invoice_id": invoice,
        "generation": generation,
        "account_id": "acc-1",
        "subscription_id": "sub-1",
        "action": Action.RENEWAL,
        "amount_minor": PRICE.minor,
        "currency": "AED",
        "exponent": 2,
        **other,
    }
    return Charge(**fields)


@asynccontextmanager
async def open_till(
    stage: OpenStage,
    draws: Draws | None = None,
    *,
    aside: bool = False,
    secrets: Sequence[Secret] = (SECRET,),
    **how: Any,
) -> AsyncIterator[Till]:
    async with stage() as s:
        clock = GatewaysClock(await s.clock.freeze())
        gateway = GatewaySimulator(clock=clock, seed=1, limit_per_s=None, **how)
        door = Faulty(gateway, draws or Script([]))
        subscriptions = Subscriptions(s)
        async with (
            HttpClient("gateway", "https://gateway.example", transport=door) as http,
            open_notification_sender(AT, secrets, s.database, transport=subscriptions, aside=aside) as notifier,
        ):
            client = GatewayClient(http, "key")
            await s.feed.declare(list(QUEUES))
            worker = await s.worker(*HANDLERS, resources=[client, notifier])
            yield Till(s, clock, gateway, door, client, subscriptions, notifier, worker)
