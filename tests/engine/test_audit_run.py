"""The full audit: silent on sound data; every check can find something, and none stops the others."""

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import asyncpg
import pytest

from payonce.engine.audit import references
from payonce.engine.audit.invariants import INVARIANTS
from payonce.engine.audit.run import Check, Report, checks_of, open_reader, run_audit
from payonce.engine.janitors.orphans import review_orphans
from payonce.engine.ledger import Finding, Posting, Reference, moved
from payonce.engine.ledger.audit import CHECKS
from payonce.engine.messages.transaction import Reader
from payonce.kit.outcomes import Invalid
from payonce.testing import OpenStage, Stage
from tests.engine.effects_stage import open_context
from tests.engine.ledger_books import eth, posted, transfer, unprotected
from tests.engine.test_orphans import KEYED, left_unknown, park


@dataclass(frozen=True)
class Shop:
    """A service as far as its audit goes."""

    name: str = "shop"
    invariants: Mapping[str, str] = field(default_factory=dict)
    references: Mapping[str, str] = field(default_factory=dict)


PAYOUTS = Shop(references={"payout": "select id from payouts where id = any($1::text[])"})

DAMAGE: dict[str, tuple[str, str]] = {
    "performed effect without an outcome": (
        """
        alter table payonce.effects drop constraint performed_effects_have_an_outcome;
        update payonce.effects set state = 'performed'
        """,
        r"test.pay p-1:1 \(.*\) is performed, and its outcome is not on record",
    ),
    "performed effect without evidence": (
        "update payonce.effects set state = 'performed', outcome = '{}'",
        "no try, question or person",
    ),
    "orphaned effect": (
        "delete from payonce.messages",
        "is unknown, and its message .* is parked or gone",
    ),
    "two open generations": (
        """
        insert into payonce.effects (id, kind, key, generation, version, safety, state, request, message_id, trace_id,
            first_attempt_at)
        select gen_random_uuid(), kind, key, 2, version, safety, state, request, message_id, trace_id, first_attempt_at
        from payonce.effects
        """,
        "test.pay p-1 has 2 open generations: 1 is unknown, 2 is unknown",
    ),
    "generation begun before the last one ended": (
        """
        insert into payonce.effects (id, kind, key, generation, version, safety, state, request, outcome, message_id,
            trace_id, first_attempt_at)
        select gen_random_uuid(), kind, key, 2, version, safety, 'performed', request, '{}', message_id, trace_id,
            first_attempt_at from payonce.effects
        """,
        "p-1:1 .* is unknown, and generation 2 was begun",
    ),
    "effect without its first attempt": ("delete from payonce.effect_attempts", "has no line that says it was started"),
    "overlooked outcome": (
        """
        insert into payonce.effect_attempts (effect_id, attempt, event) select id, 1, 'found' from payonce.effects
        """,
        "the vendor said that test.pay p-1:1 .* happened, and it is unknown",
    ),
}


async def audited(s: Stage, *services: Shop) -> Report:
    return await run_audit(s.database, checks_of(services))


async def with_payouts(s: Stage, *ids: str) -> None:
    await s.owner.execute("create table payouts (id text primary key); grant select on payouts to payonce_service")
    await s.owner.executemany("insert into payouts values ($1)", [(each,) for each in ids])


async def test_a_sound_database_has_no_findings(stage: OpenStage) -> None:
    async with open_context(stage, KEYED) as context:
        work = await context.claim()
        await context.pay(work)
        await with_payouts(context.s, "17")
        async with work.commit() as tx:
            await tx.post(transfer("p-1", 5))
        report = await audited(context.s, PAYOUTS)
        assert report.ok, report
        assert report.checks == len(CHECKS) + len(INVARIANTS) + 1


@pytest.mark.parametrize("name", DAMAGE)
async def test_damage_to_the_engines_rows_is_found_and_named(stage: OpenStage, name: str) -> None:
    damage, sentence = DAMAGE[name]
    async with open_context(stage, KEYED, "lost after") as context:
        await left_unknown(context)
        assert (await audited(context.s)).ok
        async with unprotected(context.s.scratch) as superuser:
            await superuser.execute(damage)
        findings = (await audited(context.s)).findings
        [found] = [finding for finding in findings if finding.check == f"engine: {name}"]
        assert re.search(sentence, found.text), found
        assert found.way_out


def test_every_invariant_is_proven_able_to_find_something() -> None:
    assert set(DAMAGE) == set(INVARIANTS)


async def test_an_orphan_is_a_finding_until_it_is_reviewed(stage: OpenStage) -> None:
    async with open_context(stage, KEYED, "lost after") as context:
        await left_unknown(context)
        await park(context)
        assert not (await audited(context.s)).ok
        await review_orphans(context.s.database)
        assert (await audited(context.s)).ok


async def test_damaged_books_are_found_through_the_ledgers_own_checks(stage: OpenStage) -> None:
    async with stage() as s:
        await with_payouts(s, "17")
        await posted(s, transfer("p-1", 5))
        async with unprotected(s.scratch) as superuser:
            await superuser.execute("update payonce.posting_lines set minor = minor + 1 where minor > 0")
        report = await audited(s, PAYOUTS)
        assert {finding.check for finding in report.findings} >= {"ledger: unbalanced posting"}
        assert all(finding.way_out for finding in report.findings)


async def test_what_a_service_promises_is_checked_row_by_row(stage: OpenStage) -> None:
    shop = Shop(
        invariants={"nothing is owed": "select 'order 7' as name, 5 as owed;", "all is paid": "select 1 where false"}
    )
    async with stage() as s:
        report = await audited(s, shop)
        assert [(finding.check, finding.text) for finding in report.findings] == [
            ("shop: nothing is owed", "name order 7, owed 5")
        ]


async def test_more_findings_than_anybody_reads_are_bounded(stage: OpenStage) -> None:
    shop = Shop(invariants={"none": "select * from generate_series(1, 100000) n"})
    async with stage() as s:
        findings = (await audited(s, shop)).findings
    assert len(findings) == 101
    assert "more than these 100" in findings[-1].text


async def test_postings_without_a_business_row_are_found(stage: OpenStage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(references, "PAGE_REFERENCES", 2)
    async with stage() as s:
        await with_payouts(s, "a", "c", "d", "e")
        for number, order in enumerate(("a", "b", "b", "c", "d", "e", "f")):
            await posted(s, Posting(f"p-{number}", Reference("payout", order), moved(eth(1), "from", "to")))
        findings = (await audited(s, PAYOUTS)).findings
        assert [re.sub(r"posting \d+", "posting N", finding.text) for finding in findings] == [
            "payout b has posting N and 1 more, but does not exist",
            "payout f has posting N, but does not exist",
        ]


async def test_postings_of_a_kind_that_nobody_declared_are_one_finding(stage: OpenStage) -> None:
    async with stage() as s:
        for number in range(3):
            await posted(s, transfer(f"p-{number}", 1))
        [found] = (await audited(s)).findings
        assert found.text == "3 postings refer to a 'payout', a kind that no service declares"


def test_two_services_cannot_own_one_kind() -> None:
    with pytest.raises(Invalid, match="shop and stall both declare a query for references of the kind 'payout'"):
        checks_of([PAYOUTS, Shop("stall", references=PAYOUTS.references)])


async def fail(read: Reader) -> list[Finding]:
    raise ConnectionResetError("vendor gone, password=hunter22")


async def hang(read: Reader) -> list[Finding]:
    await asyncio.Event().wait()
    return []


async def dawdle(read: Reader) -> list[Finding]:
    await read.fetch("select count(*) from generate_series(1, 1000000000) n")
    return []


async def lose_the_connection(read: Reader) -> list[Finding]:
    with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
        await read.fetch("select pg_terminate_backend(pg_backend_pid())")
    raise OSError("connection lost")


async def write(read: Reader) -> list[Finding]:
    await read.fetch(
        "insert into payonce.audit_log (severity, location, reference, text, actor) values ('INFO', 'a', 'b', 'c', 'd')"
    )
    return []


async def find(read: Reader) -> list[Finding]:
    assert await read.fetchval("select 1") == 1
    return [Finding("kind", "found", "act")]


@pytest.mark.parametrize(
    ("check", "said"),
    [
        (fail, r"could not be checked: ConnectionResetError: vendor gone, password=\[redacted\]"),
        (hang, "could not be checked: TimeoutError"),
        (dawdle, "could not be checked: QueryCanceledError"),
        (lose_the_connection, "could not be checked: OSError"),
        (write, "could not be checked: ReadOnlySQLTransactionError"),
    ],
)
async def test_a_check_that_fails_is_a_finding_and_stops_no_other(stage: OpenStage, check: object, said: str) -> None:
    told: list[tuple[int, int, str]] = []
    async with stage() as s:
        report = await run_audit(
            s.database,
            [Check("bad", check), Check("good", find)],  # type: ignore[arg-type]
            lambda *told_now: told.append(told_now),
            statement_limit_s=0.3,
            check_limit_s=1.5,
        )
    bad, good = report.findings
    assert re.search(said, bad.text), bad
    assert bad.way_out
    assert (good.check, good.text, good.way_out) == ("good", "found", "act")
    assert told == [(0, 2, "bad"), (1, 2, "good")]


async def test_questions_asked_at_once_follow_each_other(stage: OpenStage) -> None:
    async with stage() as s, open_reader(s.database) as read:
        assert await asyncio.gather(*(read.fetchval("select $1::int", number) for number in range(5))) == [
            0,
            1,
            2,
            3,
            4,
        ]


async def test_a_reader_without_time_is_refused(stage: OpenStage) -> None:
    async with stage() as s:
        with pytest.raises(Invalid, match="statement_limit_s is 0"):
            await run_audit(s.database, [], statement_limit_s=0)
