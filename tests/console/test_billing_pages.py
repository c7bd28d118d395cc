"""Billing in the console: what is found, shown and added up, and what is said where there is nothing."""

import html
import json
import re

import pytest

from payonce.services.billing.console import dunning
from payonce.services.billing.console.pages import PAGES
from payonce.testing import OpenStage, Servers
from tests.console.billing_samples import fill, notify, open_console, rows_of
from tests.console.visitor import visiting

LISTS = [page.path for page in PAGES]
ONE = (
    "/billing/customers/c-1",
    "/billing/subscriptions/s-1",
    "/billing/invoices/i-1-0",
    "/billing/deliveries/evt-1",
)


@pytest.fixture(scope="session")
def servers(shared_servers: Servers) -> Servers:
    return shared_servers


async def test_without_tables_the_pages_say_so(stage: OpenStage) -> None:
    async with open_console(stage) as (s, address), visiting(address) as visitor:
        await s.owner.execute("drop schema subscriptions cascade; drop schema payments cascade")
        for path in (*LISTS, *ONE):
            page = await visitor.get(path)
            assert (page.status, "This database has no billing tables." in page.words) == (200, True), path


@pytest.mark.parametrize("held", ["subscriptions", "payments"])
async def test_where_the_services_have_a_database_each_pages_show_what_is_here(stage: OpenStage, held: str) -> None:
    other = {"subscriptions": "payments", "payments": "subscriptions"}[held]
    async with open_console(stage, elsewhere=[f"billing.{other}"]) as (s, address), visiting(address) as visitor:
        await fill(s, 1)
        await notify(s, "evt-1", "t-1-0", delivered=True)
        await s.owner.execute(f"drop schema {other} cascade")
        for path in (*LISTS, *ONE):
            page = await visitor.get(path)
            mine = ("deliveries" in path) == (held == "payments")
            said = f"billing.{other} has a database of its own. Use the console" in page.words
            assert (page.status, said) == (200, not mine), path
        if held == "subscriptions":
            refused = await visitor.post(
                "/billing/invoices/i-1-0/refund", {"csrf": (await visitor.get(ONE[2])).field("csrf")}
            )
            assert (refused.status, "billing.payments has a database of its own" in refused.words) == (400, True)
            for path in (ONE[0], ONE[2], "/billing/figures"):
                assert "billing.payments has a database of its own" in (await visitor.get(path)).words, path
        else:
            assert "never arrived" not in (await visitor.get("/billing/deliveries")).words
            shown = await visitor.get("/billing/deliveries/evt-1")
            assert "use GET /v1/webhooks/status/{event_id} there" in shown.words


async def test_empty_lists_say_what_comes_first(stage: OpenStage) -> None:
    async with open_console(stage) as (_, address), visiting(address) as visitor:
        for path, said in (
            ("customers", "There are no customers yet."),
            ("invoices", "There are no invoices yet."),
            ("dunning", "No subscription is overdue."),
            ("deliveries", "There are no notifications yet."),
            ("figures", "No subscription was active within 12m."),
            ("customers?reference=nobody", "No customer matches."),
        ):
            page = await visitor.get(f"/billing/{path}")
            assert (page.status, said in page.words) == (200, True), path
        for path, what in zip(ONE, ("customer", "subscription", "invoice", "notification"), strict=True):
            page = await visitor.get(path)
            assert (page.status, f"there is no {what}" in page.words) == (404, True), path
            assert (await visitor.get(path.rpartition("/")[0] + "/" + "x" * 300)).status == 404


async def test_customers_are_found_by_email_state_plan_clock_and_ids(stage: OpenStage) -> None:
    async with open_console(stage) as (s, address), visiting(address) as visitor:
        await fill(s, 20)
        await fill(s, 2, clock="blue")
        for query, found in (
            ("reference=CUSTOMER12@", ["c-12"]),
            ("reference=c-7", ["c-7"]),
            ("reference=s-7", ["c-7"]),
            ("reference=inv-7-1", ["c-7"]),
            ("reference=i-7-1", ["c-7"]),
            ("state=past_due", ["c-10", "c-20"]),
            ("plan=pro", ["c-5", "c-10", "c-15", "c-20"]),
            ("plan=pro&state=active", ["c-5", "c-15"]),
            ("clock=blue", ["blue-c-1", "blue-c-2"]),
            ("state=active&clock=blue", ["blue-c-2"]),
            ("reference=%25", []),
        ):
            page = await visitor.get(f"/billing/customers?{query}")
            assert rows_of(page, "customers") == found, query
        page = await visitor.get("/billing/customers")
        assert "Active 17 Past due 2 Canceled 3" in page.words


async def test_a_customer_shows_the_merchants_own_id_and_whether_they_can_log_in(stage: OpenStage) -> None:
    async with open_console(stage) as (s, address), visiting(address) as visitor:
        await fill(s, 3)
        await s.owner.execute(
            "update subscriptions.accounts set external_id = '<b>crm-2</b>', password_hash = null where id = 'c-2'"
        )
        page = await visitor.get("/billing/customers/c-2")
        assert "External id <b>crm-2</b> Password none: nobody can log in yet" in page.words
        assert "<b>crm-2" not in page.text
        assert "External id – Password set" in (await visitor.get("/billing/customers/c-1")).words
        page = await visitor.get("/billing/customers?reference=%3Cb%3Ecrm-2%3C/b%3E")
        assert rows_of(page, "customers") == ["c-2"]
        assert "<b>crm-2</b>" in page.words
        assert "<b>crm-2" not in page.text


async def test_lists_are_paged_without_a_row_lost_or_doubled(stage: OpenStage) -> None:
    async with open_console(stage) as (s, address), visiting(address) as visitor:
        await fill(s, 120)
        for path, what, count in (
            ("customers", "customers", 120),
            ("customers?state=active", "customers", 96),
            ("invoices", "invoices", 456),
        ):
            seen: list[str] = []
            url = f"/billing/{path}"
            while url:
                page = await visitor.get(url)
                seen += rows_of(page, what)
                found = [part for part in page.text.split('href="') if 'rel="next"' in part.partition(">")[0]]
                url = found[0].partition('"')[0].replace("&amp;", "&") if found else ""
            assert (len(seen), len(set(seen))) == (count, count), path


async def test_a_customer_and_their_subscription_tell_the_whole_timeline(stage: OpenStage) -> None:
    async with open_console(stage) as (s, address), visiting(address) as visitor:
        await fill(s, 10)
        await notify(s, "evt-1", "t-10-3", delivered=True, error="the amount is another")
        await s.owner.execute(
            """
            insert into subscriptions.credits (account_id, currency, exponent, minor) values ('c-10', 'AED', 2, 1234);
            insert into subscriptions.usage_totals (subscription_id, feature, period_start, total, events)
            values ('s-10', 'api_calls', payonce.due_now(), 4321, 12);
            insert into payments.refunds
                (id, refund_key, transaction_id, amount_minor, reason, state, gateway_id, ended_at)
            values ('r-1', 'k-1', 't-10-2', 100, 'asked nicely', 'succeeded', 're-1', payonce.due_now());
            insert into subscriptions.credit_notes (id, number, invoice_id, refund_id, amount_minor, reason, issued_at)
            values ('n-1', 'CN-1', 'i-10-2', 'r-1', 100, 'asked nicely', payonce.due_now());
            """
        )
        page = await visitor.get("/billing/customers/customer10@example.com")
        for said in ("12.34 AED", "visa …9995, until 12/2030", "insufficient_funds", "INV-10-3", "past due"):
            assert said in page.words, said
        page = await visitor.get("/billing/subscriptions/s-10")
        for said in (
            "Pro past due",
            "charged again in 1 d",
            "from active to past_due",
            "decline code insufficient_funds",
            "invoice INV-10-3 for renewal",
            "charge t-10-3 failed: insufficient_funds",
            "charge t-10-2 succeeded as",
            "refund r-1 of charge t-10-2",
            "credit note CN-1",
            "notification evt-1",
            "payment event renewal: success",
            "the amount is another",
            "api_calls: 4,321 used",
            "12 events",
        ):
            assert said in page.words, said
        page = await visitor.get("/billing/invoices/inv-10-2")
        for said in ("INV-10-2 paid", "99.00 AED", "Basic or Pro, one month", "CN-1", "asked nicely", "ch-i-10-2"):
            assert said in page.words, said


async def test_invoices_are_filtered_and_summed(stage: OpenStage) -> None:
    async with open_console(stage) as (s, address), visiting(address) as visitor:
        await fill(s, 20)
        for query, count in (
            ("", 76 - 26),
            ("state=open", 2),
            ("failed=yes", 2),
            ("action=initial", 20),
            ("reference=customer10@", 4),
            ("reference=s-10", 4),
            ("reference=t-10-1", 1),
            ("since=2999-01-01T00:00", 0),
            ("until=2000-01-01", 0),
        ):
            page = await visitor.get(f"/billing/invoices?{query}")
            assert len(rows_of(page, "invoices")) == count, query
        page = await visitor.get("/billing/invoices?state=open")
        assert "Open 2" in page.words
        assert "198.00 AED open" in page.words


async def test_dunning_shows_who_owes_what_why_and_the_next_try(stage: OpenStage) -> None:
    async with open_console(stage) as (s, address), visiting(address) as visitor:
        await fill(s, 30)
        await s.owner.execute(
            "update subscriptions.subscriptions set state = 'unpaid', due_at = null, due_for = null where id = 's-30'"
        )
        await s.owner.execute("update subscriptions.invoices set charging = true where id = 'i-20-3'")
        page = await visitor.get("/billing/dunning")
        assert rows_of(page, "customers") == ["c-10", "c-20", "c-30"]
        assert "Past due 2 Unpaid 1" in page.words
        assert "Why: insufficient_funds 3" in page.words
        assert "in 1 d" in page.words
        assert "being charged" in page.words
        assert "none: needs a new card or a decision" in page.words
        assert rows_of(await visitor.get("/billing/dunning?state=unpaid"), "customers") == ["c-30"]


async def test_dunning_counts_and_explains_exactly_those_it_lists(stage: OpenStage) -> None:
    async with open_console(stage) as (s, address), visiting(address) as visitor:
        await fill(s, 60)
        await s.owner.execute(
            "update subscriptions.subscriptions set state = 'unpaid', due_at = null, due_for = null where id = 's-30'"
        )
        # Paid this moment, or forgiven: nothing is owed, although the subscription does not know it yet.
        await s.owner.execute("update subscriptions.invoices set state = 'void' where id in ('i-10-3', 'i-20-3')")
        # Owed by somebody whose subscription is neither past due nor unpaid.
        await s.owner.execute(
            "update subscriptions.invoices set state = 'open', failures = 1, decline_code = 'expired_card', "
            "paid_at = null where id = 'i-2-3'"
        )
        page = await visitor.get("/billing/dunning")
        assert rows_of(page, "customers") == ["c-40", "c-50", "c-60", "c-30"]
        assert "All 4 Past due 3 Unpaid 1" in page.words
        assert "Why: insufficient_funds 4 " in page.words
        page = await visitor.get("/billing/dunning?state=unpaid")
        assert rows_of(page, "customers") == ["c-30"]
        assert "Why: insufficient_funds 1 " in page.words


async def test_dunning_pages_do_not_end_before_the_last_who_owes(
    stage: OpenStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dunning, "PAGE_ROWS", 2)
    async with open_console(stage) as (s, address), visiting(address) as visitor:
        await fill(s, 60)
        await s.owner.execute("update subscriptions.invoices set state = 'void' where id in ('i-10-3', 'i-20-3')")
        seen, path = [], "/billing/dunning"
        while path:
            page = await visitor.get(path)
            seen += rows_of(page, "customers")
            following = re.search(r'<a href="([^"]+)" rel="next"', page.text)
            path = html.unescape(following[1]) if following else ""
        assert seen == ["c-30", "c-40", "c-50", "c-60"]


async def test_figures_explain_exactly_the_failed_charges_they_draw(stage: OpenStage) -> None:
    async with open_console(stage) as (s, address), visiting(address) as visitor:
        await fill(s, 10)
        # On the day before the first one drawn, and in another currency.
        await s.owner.execute(
            """
            update payments.transactions
            set state = 'failed', decline_code = 'expired_card', gateway_id = null, reason = 'no',
                created_at = date_trunc('day', payonce.due_now(), 'UTC') - interval '29 days 1 second'
            where id = 't-2-0'
            """
        )
        await s.owner.execute(
            """
            update payments.transactions
            set state = 'failed', decline_code = 'lost_card', gateway_id = null, reason = 'no',
                currency = 'JPY', exponent = 0
            where id = 't-3-0'
            """
        )
        page = await visitor.get("/billing/figures")
        drawn = json.loads(html.unescape(re.findall(r'data-charts="([^"]+)"', page.text)[-1]))
        assert sum(drawn["failed"]) == 1
        assert "Why they failed: insufficient_funds 1 " in page.words + " "
        assert "expired_card" not in page.words
        assert "lost_card" not in page.words


async def test_deliveries_show_attempts_and_how_they_were_taken(stage: OpenStage) -> None:
    async with open_console(stage) as (s, address), visiting(address) as visitor:
        await fill(s, 3)
        await notify(s, "evt-1", "t-2-0", delivered=True)
        await notify(s, "evt-2", "t-2-1", delivered=True, error="no such invoice")
        await notify(s, "evt-3", "t-2-2", delivered=False)
        for query, found in (
            ("", ["evt-3", "evt-2", "evt-1"]),
            ("state=waiting", ["evt-3"]),
            ("state=delivered", ["evt-2", "evt-1"]),
            ("reference=t-2-1", ["evt-2"]),
            ("reference=evt-1", ["evt-1"]),
            ("reference=nothing", []),
        ):
            page = await visitor.get(f"/billing/deliveries?{query}")
            assert rows_of(page, "deliveries") == found, query
        page = await visitor.get("/billing/deliveries")
        for said in ("1 notification not delivered", "connection refused", "no such invoice", "never arrived"):
            assert said in page.words, said
        page = await visitor.get("/billing/deliveries/evt-3")
        for said in ("Subscriptions has not received it.", "immediate", "connection refused", "12 ms"):
            assert said in page.words, said


async def test_figures_count_months_of_real_customers_or_of_test_clocks(stage: OpenStage) -> None:
    async with open_console(stage) as (s, address), visiting(address) as visitor:
        await fill(s, 10)
        await fill(s, 2, clock="blue")
        page = await visitor.get("/billing/figures")
        # Eight active or past due: two with Pro, and seven with Basic.
        assert "Recurring 401.00 AED" in page.words
        assert "9 active or past due" in page.words
        assert "Why they failed: insufficient_funds 1" in page.words
        page = await visitor.get("/billing/figures?who=test+clocks&window=6m")
        assert "Recurring 29.00 AED" in page.words


async def test_what_a_customer_wrote_is_text_and_secrets_are_hidden(stage: OpenStage) -> None:
    async with open_console(stage) as (s, address), visiting(address) as visitor:
        await fill(s, 1)
        await notify(s, "evt-1", "t-1-0", delivered=True, error="<b>x</b> password=hunter22")
        await s.owner.execute(
            """
            update subscriptions.accounts set name = '<b>x</b>';
            update subscriptions.subscriptions set reason = '<b>x</b> password=hunter22';
            update payments.webhook_outbound_requests set response_body = '<b>x</b> password=hunter22';
            """
        )
        for path in (*LISTS, *ONE):
            page = await visitor.get(path)
            assert page.status == 200, path
            assert "<b>x</b>" not in page.text, path
            assert "hunter22" not in page.text, path


@pytest.mark.parametrize(
    "query",
    [
        "customers?state=dead",
        "invoices?since=tomorrow",
        "invoices?action=refund",
        "deliveries?state=lost",
        "figures?window=7y",
        "figures?currency=QQQ",
        "figures?who=me",
        "dunning?state=active",
        f"customers?reference={'x' * 300}",
    ],
)
async def test_a_filter_that_cannot_be_is_one_sentence(stage: OpenStage, query: str) -> None:
    async with open_console(stage) as (_, address), visiting(address) as visitor:
        page = await visitor.get(f"/billing/{query}")
        assert page.status == 400
        assert query.partition("?")[2].partition("=")[0] in page.words
