"""The crash explorer's scenarios: one subscription in both services with the webhook between them, checked against the
gateway's books."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from fractions import Fraction
from typing import Any, Final

from payonce.engine.database.connections import Database
from payonce.engine.effects import Answer, EffectRecord, Review
from payonce.engine.janitors import Janitor
from payonce.engine.ledger import Account, balance
from payonce.engine.ledger.model import Reads
from payonce.engine.messages.transaction import NotifyingFeed, Tx
from payonce.engine.messages.work import Handler
from payonce.engine.outbox import Relay
from payonce.kit.http import HttpClient
from payonce.kit.http.transport import Transport
from payonce.kit.money import well_known
from payonce.services.billing import INVARIANTS, ROLES
from payonce.services.billing.crash.customers import CARRIED_OUT, PAY_OUT, PERSON
from payonce.services.billing.crash.notification_route import SECRET, notification_application
from payonce.services.billing.payments.handlers.notifications import NotificationSender
from payonce.services.billing.policies import BILLING_CLOCK, PAYMENT_INITIATION, PLAN_CHANGE
from payonce.services.billing.subscriptions import schedules
from payonce.services.billing.subscriptions.handlers import new_subscriptions
from payonce.services.billing.wire import Action
from payonce.testing.crash.scenario import ScenarioOptions
from payonce.vendors.gateway.client import GatewayClient
from payonce.vendors.gateway.simulator import GatewaySimulator

GATEWAY, SUBSCRIPTIONS = "gateway.test", "https://subscriptions.test"
AED: Final = well_known("AED")
BASIC, PRO, TRIAL = 2_900, 9_900, 100
"""Prices in minor units."""
PAYS: Final = "4242424242424242"
ACCOUNT, CHANGE = "acc-1", "change-1"
DAY_S: Final = 86_400.0
PERIOD_DAYS: Final = 31
"""All runs begin in January."""
RENEWED_AFTER_S: Final = PERIOD_DAYS * DAY_S + 600.0
"""After the end of the period, also if the first charge was retried and the period began minutes later."""
DUNNED_AFTER_S: Final = PERIOD_DAYS * DAY_S + 1.25 * DAY_S
"""After the first day of dunning, however long a crashed renewal took to be declined."""
CHANGED_AFTER: Final = timedelta(days=7)
"""The proration is the same for any start within the next four minutes: a first charge whose COMMIT was lost is retried
later, and its period begins later."""
LEFT: Final = Fraction(PERIOD_DAYS - CHANGED_AFTER.days, PERIOD_DAYS)
CREDIT: Final = round(PRO * LEFT) - round(BASIC * LEFT)
"""What an upgrade between the two costs, or a downgrade credits."""
PAID_OUT: Final = 4_400
"""Of the credit, in minor units."""
ASKED_AGAIN_AFTER_S: Final = (PERIOD_DAYS + 10) * DAY_S
# The clock stands still: due work runs at once. All results are logged, so that they can be counted.
HANDLERS: Final = tuple(
    replace(each, policy=replace(each.policy, rate=None, concurrency=None, log="all"))
    for each in (*ROLES["subscriptions"], *ROLES["payments"], *CARRIED_OUT)
)

BY_SCHEDULE: Final = "due work is enqueued within an hour"
KEPT_ON_REDIS: Final = {name: query for name, query in INVARIANTS.items() if name != BY_SCHEDULE}
"""No schedule runs here, and a stale copy in Redis may advance the clock past the next renewal before it is dropped."""

Simulators = Mapping[str, Any]


@dataclass(frozen=True)
class Ending:
    """The expected result of a scenario."""

    state: str
    plan: str
    paid: Sequence[tuple[str, int | None, int]]
    """Action, period and amount of every invoice, in the order of issue. Each is captured once."""
    given_back: int = 0
    declines: int = 0
    paid_out: Sequence[int] = ()
    """Credit paid out to the card."""


class BillingScenario(ABC):
    """One customer with one card, from the first message on."""

    components = (("billing", "payonce.services.billing"),)
    handlers: Sequence[Handler] = HANDLERS
    invariants: Mapping[str, str] = INVARIANTS
    options = ScenarioOptions(leases_pass=True)

    def __init__(self, name: str, *endings: Ending, cards_next: Sequence[str] = ()) -> None:
        """Several endings are possible where operations race; their order decides."""
        self.name = name
        self._endings = endings
        self._cards_next = cards_next

    def with_queues_in_redis(self) -> "BillingScenario":
        there = copy(self)
        there.invariants = KEPT_ON_REDIS
        return there

    def simulators(self, now: Callable[[], datetime]) -> Simulators:
        # The simulator's clock stands still: otherwise a request in flight for the length of a scenario would find its
        # key forgotten, and no connection lives for days.
        begun_at = now()
        gateway = GatewaySimulator(clock=lambda: begun_at, seed=1, limit_per_s=None)
        token = gateway.tokenise(PAYS)
        gateway.script(token, *self._cards_next)
        return {GATEWAY: gateway}

    def resources(self, reach: Callable[[str], Transport], database: Database, feed: NotifyingFeed) -> Sequence[object]:
        gateway = HttpClient("gateway", f"https://{GATEWAY}", transport=reach(GATEWAY))
        subscriptions = HttpClient("subscriptions", None, transport=notification_application(database, feed))
        return [
            GatewayClient(gateway, "key"),
            # Notifications are sent in the worker, so that every step of a run is deterministic.
            NotificationSender(subscriptions, SUBSCRIPTIONS, (SECRET,), database, aside=False),
        ]

    def relays(self, reach: Callable[[str], Transport]) -> Sequence[Relay]:
        return ()

    def janitors(self, database: Database, feed: NotifyingFeed) -> Sequence[Janitor]:
        return ()

    async def set_up(self, tx: Tx) -> None:
        now: datetime = await tx.fetchval("select payonce.due_now()")
        token = GatewaySimulator(clock=lambda: now, seed=1).tokenise(PAYS)
        await tx.execute(
            "insert into subscriptions.accounts (id, email, password_hash) values ($1, 'one@example.com', 'none')",
            ACCOUNT,
        )
        await tx.execute(
            """
            insert into payments.payment_methods
                (id, account_id, token, brand, last4, exp_month, exp_year, is_default)
            values ('card-1', $1, $2, 'visa', '4242', 12, 2099, true)
            """,
            ACCOUNT,
            token,
        )
        await self._begin(tx, now)

    @abstractmethod
    async def _begin(self, tx: Tx, now: datetime) -> None:
        """Crash points are named after the subscription: the same in every run."""

    def decide(self, review: Review, simulators: Simulators) -> tuple[Answer, Any, str | None]:
        """Decides by the gateway's books. A review is a failure in itself, which the check reports."""
        books, key = simulators[GATEWAY].books, review.effect.key
        found = [each.id for each in books.charges_of(key) if each.captured] + [
            each.id for each in books.refunds_of(key)
        ]
        return (Answer.HAPPENED, {"id": found[0]}, found[0]) if found else (Answer.DID_NOT, None, None)

    async def answered(self, tx: Tx, effect: EffectRecord, answer: Answer) -> None:
        return None

    def happened(self, simulators: Simulators) -> Counter[str]:
        """By the gateway: captures of each invoice over all attempts, and refunds of each charge."""
        books = simulators[GATEWAY].books
        found = Counter({f"the capture of {invoice}": n for invoice, n in books.captures_per_invoice().items()})
        found.update(f"the refund of {each.charge}" for each in books.refunds.values())
        return found

    def expected_parked(self) -> int:
        return 0

    async def check(self, read: Reads, simulators: Simulators) -> list[str]:
        by_ending = [await self._of_ending(read, simulators[GATEWAY], each) for each in self._endings]
        return [
            *min(by_ending, key=len),
            *await _of_invoices(read),
            *await _of_plan_changes(read),
            *await _of_books(read),
            *await _of_notifications(read),
            *await _of_people(read),
        ]

    async def _of_ending(self, read: Reads, gateway: GatewaySimulator, ending: Ending) -> list[str]:
        return [
            *await _of_subscription(read, ending),
            *await _of_issued(read, ending),
            *await _of_payouts(read, ending),
            *await _of_gateway(read, gateway, ending),
        ]


async def _of_subscription(read: Reads, ending: Ending) -> list[str]:
    found = await read.fetch("select state, plan_id from subscriptions.subscriptions")
    stands = [(row["state"], row["plan_id"]) for row in found]
    return [] if stands == [(ending.state, ending.plan)] else [f"the subscription is {stands}"]


async def _of_issued(read: Reads, ending: Ending) -> list[str]:
    rows = await read.fetch("select action, period, due_minor from subscriptions.invoices order by issued_at, number")
    issued = [(row["action"], row["period"], row["due_minor"]) for row in rows]
    return [] if issued == list(ending.paid) else [f"the invoices are {issued}"]


async def _of_invoices(read: Reads) -> list[str]:
    rows = await read.fetch("select due_minor, state from subscriptions.invoices where state <> 'paid'")
    return [f"an invoice of {row['due_minor']} is {row['state']}" for row in rows]


async def _of_payouts(read: Reads, ending: Ending) -> list[str]:
    rows = await read.fetch("select state, amount_minor from subscriptions.credit_payouts order by id")
    payouts = [(row["state"], row["amount_minor"]) for row in rows]
    wanted = [("succeeded", minor) for minor in ending.paid_out]
    return [] if payouts == wanted else [f"the payouts are {payouts}"]


async def _of_plan_changes(read: Reads) -> list[str]:
    """Each has ended, with exactly one event for its end."""
    rows = await read.fetch(
        """
        select c.id, c.state, count(e.id) as ends from subscriptions.plan_changes c
        left join subscriptions.subscription_events e on e.subscription_id = c.subscription_id
            and e.kind in ('plan_changed', 'plan_change_failed', 'plan_change_canceled')
            and c.id in (e.detail ->> 'change_id', e.detail ->> 'invoice_id')
        group by c.id having c.state = 'pending' or count(e.id) <> 1
        """
    )
    return [f"change {row['id']} is {row['state']}, with {row['ends']} events for its end" for row in rows]


async def _of_gateway(read: Reads, gateway: GatewaySimulator, ending: Ending) -> list[str]:
    books = gateway.books
    captured, given_back = books.captured_total("AED").minor, books.refunded_total("AED").minor
    clearing = (await balance(read, Account("billing/gateway_clearing", AED))).minor
    compared = {
        "captured by the gateway": (captured, sum(amount for _, _, amount in ending.paid)),
        "refunded by the gateway": (given_back, ending.given_back + sum(ending.paid_out)),
        "clearing by our books": (clearing, captured - given_back),
        "declines": (books.declines().total(), ending.declines),
    }
    return [f"{what}: {seen}, not {wanted}" for what, (seen, wanted) in compared.items() if seen != wanted]


async def _of_books(read: Reads) -> list[str]:
    return [
        f"{left} are left in billing/{path}"
        for path in ("captured", "receivable", "unapplied", "bad_debt", "credit", "credit_payout")
        if (left := await balance(read, Account(f"billing/{path}", AED)))
    ]


async def _of_notifications(read: Reads) -> list[str]:
    rows = await read.fetch(
        """
        select n.event_id, n.delivered_at is not null as delivered, r.processed, r.error_message
        from payments.notifications n
        full join subscriptions.payment_webhook_requests r on r.event_id = n.event_id
        """
    )
    found = []
    for row in rows:
        if not row["delivered"] or not row["processed"]:
            found.append(f"{row['event_id']} was not delivered or not applied")
        if row["error_message"]:
            found.append(f"{row['event_id']} did not match: {row['error_message']}")
    return found


async def _of_people(read: Reads) -> list[str]:
    rows = await read.fetch(
        """
        select e.kind, e.key from payonce.effects e join payonce.effect_attempts a on a.effect_id = e.id
        where a.event = 'answered'
        """
    )
    return [f"a review was opened for {row['kind']} {row['key']}" for row in rows]


class Trial(BillingScenario):
    """The price is charged, the trial begins, and the price is refunded."""

    def __init__(self) -> None:
        super().__init__("billing-trial", Ending("trialing", "trial-v1", [("trial", 0, TRIAL)], given_back=TRIAL))

    async def _begin(self, tx: Tx, now: datetime) -> None:
        await new_subscriptions.start_trial(tx, ACCOUNT, "trial", self.name)


class Renewal(BillingScenario):
    """The first period is paid; the renewal is declined, then paid on the first day of dunning. Later the renewal
    message is sent once more manually, and the month's revenue is recognised."""

    def __init__(self) -> None:
        paid = [("initial", 0, BASIC), ("renewal", 1, BASIC)]
        super().__init__(
            "billing-renewal",
            Ending("active", "basic-v1", paid, declines=1),
            cards_next=["succeeds", "insufficient_funds", "succeeds"],
        )

    async def _begin(self, tx: Tx, now: datetime) -> None:
        await new_subscriptions.start(tx, ACCOUNT, "basic", self.name)
        for look, delay_s in (("due", RENEWED_AFTER_S), ("dunned", DUNNED_AFTER_S)):
            await tx.send(BILLING_CLOCK, {}, action=schedules.RENEW, correlation_id=look, delay_s=delay_s)
        await tx.send(
            PAYMENT_INITIATION,
            {"subscription_id": self.name, "period": 1},
            action=Action.RENEWAL,
            correlation_id="by-hand",
            delay_s=ASKED_AGAIN_AFTER_S,
        )
        await tx.send(
            BILLING_CLOCK, {}, action=schedules.EARN, correlation_id="revenue", delay_s=ASKED_AGAIN_AFTER_S + 1
        )


class ChangeOfPlan(BillingScenario):
    """Seven days into its period a subscription is upgraded and pays the difference to the second."""

    def __init__(self) -> None:
        paid = [("initial", 0, BASIC), ("upgrade", None, CREDIT)]
        super().__init__("billing-change", Ending("active", "pro-v1", paid))

    async def _begin(self, tx: Tx, now: datetime) -> None:
        await new_subscriptions.start(tx, ACCOUNT, "basic", self.name)
        await change_later(tx, self.name, "pro-v1", Action.UPGRADE, now, CHANGED_AFTER.total_seconds())


class Credit(BillingScenario):
    """Seven days into its period a subscription is downgraded and gets credit. An operator pays out most of it to the
    card; the renewal uses the rest."""

    def __init__(self) -> None:
        paid = [("initial", 0, PRO), ("downgrade", None, 0), ("renewal", 1, BASIC - CREDIT + PAID_OUT)]
        super().__init__("billing-credit", Ending("active", "basic-v1", paid, paid_out=[PAID_OUT]))

    async def _begin(self, tx: Tx, now: datetime) -> None:
        await begin_with_credit(tx, now, self.name)
        await tx.send(
            PERSON,
            {"account_id": ACCOUNT, "minor": PAID_OUT},
            action=PAY_OUT,
            correlation_id=self.name,
            delay_s=CHANGED_AFTER.total_seconds() + DAY_S,
        )
        await tx.send(BILLING_CLOCK, {}, action=schedules.RENEW, correlation_id="due", delay_s=RENEWED_AFTER_S)


async def begin_with_credit(tx: Tx, now: datetime, subscription_id: str) -> None:
    """A subscription that gets CREDIT, seven days into its period."""
    await new_subscriptions.start(tx, ACCOUNT, "pro", subscription_id)
    await change_later(tx, subscription_id, "basic-v1", Action.DOWNGRADE, now, CHANGED_AFTER.total_seconds())


async def change_later(
    tx: Tx, subscription_id: str, plan_id: str, action: Action, now: datetime, delay_s: float
) -> None:
    """Requested seven days into the period, and processed after `delay_s`."""
    asked = {
        "subscription_id": subscription_id,
        "change_id": CHANGE,
        "plan_id": plan_id,
        "at": (now + CHANGED_AFTER).isoformat(),
    }
    await tx.send(PLAN_CHANGE, asked, action=action, correlation_id=subscription_id, delay_s=delay_s)


SEQUENTIAL: Final = (Trial(), Renewal(), ChangeOfPlan(), Credit())
"""Scenarios without races; races.py has the others."""
