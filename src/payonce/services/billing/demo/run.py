"""The demo `billing`: two years of subscriptions on test clocks, an unreliable gateway, and both services killed
repeatedly."""

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from payonce.cli.demo.disruption import DisruptedRun, environment_of, log_file, scratch_app, too_few_kills
from payonce.cli.output import table

if TYPE_CHECKING:
    from payonce.app.process import App
    from payonce.engine.messages.transaction import Reader
    from payonce.services.billing.demo.customers import Customer
    from payonce.services.billing.demo.simulators import SimulatedGateway
    from payonce.services.billing.demo.verdict import Verdict
    from payonce.settings import Settings
    from payonce.vendors.gateway.outbox import Outbox, WebhookFaults

CUSTOMERS, MONTHS = 500, 24
FAULTS: Final = 0.15
SLOTS: Final = 24
NAMED_MAX: Final = 5
CONSUMER: Final = "billing.gateway"
WEBHOOKS: Final = "/v1/webhooks/gateway"
TWICE, LATE, LATE_S = 0.1, 0.1, 15.0
"""Shares of the gateway's webhooks, and the delay, in which the customer's clock advances by months."""
SCOPES: Final = ("billing:read", "billing:operate", "billing:charge")


@dataclass(frozen=True)
class WebhookStats:
    """The gateway's webhooks and their outcomes."""

    arrived: int = 0
    twice: int = 0
    late: int = 0
    again: int = 0
    """Sent again because they were not accepted."""
    heeded: int = 0
    """By our database: each event once, however often it arrived."""
    events: int = 0
    """By the gateway: events that it knows to have arrived. A process may die between its commit and its response."""
    disagreed: int = 0
    """Reported to operators because they contradict our database."""


@dataclass(frozen=True)
class Report:
    seed: int
    months: int
    verdict: "Verdict"
    faults: Mapping[str, int]
    repeated: int
    wrong: Sequence[str]
    disrupted: DisruptedRun
    webhooks: WebhookStats = WebhookStats()

    @property
    def log_path(self) -> Path:
        return self.disrupted.log_path

    def figures(self) -> dict[str, Any]:
        verdict = self.verdict
        return {
            "customers": verdict.customers,
            "months": self.months,
            "periods_invoiced": verdict.periods_invoiced,
            "missed_periods": len(verdict.missed_periods),
            "double_invoiced": len(verdict.double_invoiced),
            "double_charged": len(verdict.double_charged),
            "not_charged": len(verdict.unpaid),
            "trial_refunds_missing": len(verdict.trial_refunds_missing),
            "misplaced": len(verdict.misplaced),
            "unexplained": {code: f"{amount.normalize():f}" for code, amount in verdict.unexplained.items()},
            "endings": dict(sorted(verdict.endings.items())),
            "calls_repeated": self.repeated,
            "faults": dict(self.faults),
            "gateway_webhooks": asdict(self.webhooks),
            "kills": self.disrupted.kills,
            "restarts": self.disrupted.restarts,
            "seconds": round(self.disrupted.seconds, 1),
            "seed": self.seed,
        }

    def complaints(self) -> list[str]:
        verdict = self.verdict
        webhooks = {
            "missed periods": verdict.missed_periods,
            "surplus invoices": verdict.double_invoiced,
            "customers charged too much, by the gateway's books": verdict.double_charged,
            "customers charged too little, by the gateway's books": verdict.unpaid,
            "trials not refunded exactly once": verdict.trial_refunds_missing,
            "subscriptions in an unexpected state": verdict.misplaced,
            "unexpected responses": self.wrong,
        }
        found = [f"{len(cases)} {what}: {_named(cases)}" for what, cases in webhooks.items() if cases]
        found += [
            f"{amount:f} {code} are unexplained: our books and the gateway's differ"
            for code, amount in verdict.unexplained.items()
            if amount
        ]
        found += [f"broken: {words}" for words in verdict.broken]
        if self.webhooks.disagreed:
            found.append(f"{self.webhooks.disagreed} gateway webhooks contradict our database")
        if self.webhooks.heeded < self.webhooks.events:
            found.append(f"of {self.webhooks.events} gateway events, {self.webhooks.heeded} were processed")
        if not self.faults:
            found.append("no call failed, so the run proves nothing")
        return found + too_few_kills(self.disrupted.kills)

    def rendered(self) -> Any:
        figures = self.figures()
        figures["faults"] = sum(self.faults.values())
        figures["gateway_webhooks"] = ", ".join(f"{count} {what}" for what, count in asdict(self.webhooks).items())
        figures["unexplained"] = ", ".join(f"{amount} {code}" for code, amount in figures["unexplained"].items())
        figures["endings"] = ", ".join(f"{count} {state}" for state, count in figures["endings"].items())
        rows = [(name, figure, MEANINGS[name]) for name, figure in figures.items()]
        return table("Every period accounted for", ("figure", "", "meaning"), rows, right=("",))


def _named(cases: Sequence[str]) -> str:
    return "; ".join(cases[:NAMED_MAX]) + ("; …" if len(cases) > NAMED_MAX else "")


MEANINGS: Final = {
    "customers": "each with its own test clock and script",
    "months": "simulated for each customer",
    "periods_invoiced": "invoices of periods",
    "missed_periods": "expected by a script and plain calendar arithmetic, but not invoiced",
    "double_invoiced": "not expected by any script, or invoiced twice",
    "double_charged": "captured more than once, or more than the script costs, by the gateway's books",
    "not_charged": "charged less than the script costs, by the gateway's books",
    "trial_refunds_missing": "trials that the gateway did not refund exactly once",
    "misplaced": "subscriptions whose state differs from their script's",
    "unexplained": "difference between our books and the gateway's",
    "endings": "final states of the subscriptions",
    "calls_repeated": "repeated by callers that got no response",
    "faults": "injected into calls to the gateway",
    "gateway_webhooks": "sent by the gateway: some twice, some late and out of order, some to a dead process",
    "kills": "processes killed with SIGKILL while working",
    "restarts": "processes started again",
    "seconds": "from the first process to the last clock",
    "seed": "of the scripts, the faults and the kills",
}


async def demonstrate(
    settings: "Settings", seed: int, size: int | None, *, customers: int | None = None, months: int = MONTHS
) -> Report:
    from payonce.kit.http import HttpClient
    from payonce.services.billing.demo.customer_calls import CustomerClients
    from payonce.services.billing.demo.customers import seeded_customers
    from payonce.services.billing.demo.processes import PAYMENTS, open_fleet
    from payonce.services.billing.demo.simulators import open_simulated_gateway
    from payonce.services.billing.demo.verdict import judge
    from payonce.services.billing.demo.work import CustomerLives
    from payonce.testing import Clock
    from payonce.vendors.gateway.outbox import WebhookFaults

    post = WebhookFaults(seed, TWICE, LATE, LATE_S)
    subscribers = seeded_customers(customers or size or CUSTOMERS, months, seed)
    async with (
        scratch_app(settings) as (app, addresses),
        open_simulated_gateway(seed, FAULTS, post=post) as gateway,
        Clock.open(addresses.owner) as clock,
    ):
        key, tokens = await _set_up(app, gateway, subscribers)
        environment = {**environment_of(addresses), **gateway.environment, "PAYONCE_SLOTS": str(SLOTS)}
        started = time.monotonic()
        with log_file() as log_path, open_fleet(environment, log_path) as fleet:
            first, second = (HttpClient(role, url, allow_private=True) for role, url in fleet.urls.items())
            async with first, second, gateway.telling(f"{fleet.urls[PAYMENTS]}{WEBHOOKS}"):
                http_clients = dict(zip(fleet.urls, (first, second), strict=True))
                cards = {account: {token} for account, token in tokens.items()}
                clients = CustomerClients(http_clients, key, gateway.simulator, tokens, cards)
                await CustomerLives(app.read, clock, fleet, subscribers, clients, random.Random(seed)).through()
            seconds = time.monotonic() - started
        await gateway.deliver()
        verdict = await judge(app.read, gateway.simulator.books, cards, subscribers)
        webhooks = await _webhook_stats(app.read, gateway.simulator.outbox, post)
        disrupted = DisruptedRun(fleet.kills, 0, fleet.restarts, seconds, log_path)
        return Report(seed, months, verdict, gateway.faults(), clients.repeated, clients.wrong, disrupted, webhooks)


async def _webhook_stats(read: "Reader", outbox: "Outbox", post: "WebhookFaults") -> WebhookStats:
    """From the gateway's outbox and from our database."""
    arrived = [letter for letter in outbox.webhooks if letter.arrived]
    events = {letter.event_id for letter in arrived}
    heeded = await read.fetchval("select count(*) from payonce.inbox where consumer = $1", CONSUMER)
    disagreed = await read.fetchval("select count(*) from payonce.audit_log where location = $1", CONSUMER)
    late = sum(post.draw(letter.event_id, letter.due_at)[0] > letter.due_at for letter in arrived)
    again = sum(max(0, letter.tries - 1) for letter in outbox.webhooks)
    return WebhookStats(len(arrived), len(arrived) - len(events), late, again, heeded, len(events), disagreed)


async def _set_up(
    app: "App", gateway: "SimulatedGateway", customers: "Sequence[Customer]"
) -> tuple[str, dict[str, str]]:
    """Creates accounts with a test clock and a card each, and an API key to act for them."""
    from payonce.engine.operators.api_keys import make_key
    from payonce.services.billing.demo.customers import PAYS

    tokens = {customer.id: gateway.simulator.tokenise(PAYS) for customer in customers}
    ids = [customer.id for customer in customers]
    async with app.begin() as tx:
        made = await make_key(tx, "demo", SCOPES, "demo")
        await tx.execute(
            """
            insert into subscriptions.test_clocks (id, name, now_at, target_at, made_by)
            select id, 'demo', begins_at, begins_at, 'demo' from unnest($1::text[], $2::timestamptz[]) c(id, begins_at)
            """,
            ids,
            [customer.begins_at for customer in customers],
        )
        await tx.execute(
            """
            insert into subscriptions.accounts (id, email, password_hash, time_zone, test_clock_id)
            select id, id || '@example.com', 'none', zone, id from unnest($1::text[], $2::text[]) c(id, zone)
            """,
            ids,
            [customer.zone for customer in customers],
        )
        await tx.execute(
            """
            insert into payments.payment_methods
                (id, account_id, token, brand, last4, exp_month, exp_year, is_default)
            select 'card-of-' || id, id, token, 'visa', '4242', 12, 2099, true
            from unnest($1::text[], $2::text[]) c(id, token)
            """,
            ids,
            [tokens[each] for each in ids],
        )
    return made.secret, tokens
