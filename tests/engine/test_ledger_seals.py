"""Sealing the ledger: each posting once, in the order of ids, whichever commits late, whoever is the leader."""

import asyncio
from pathlib import Path

import asyncpg
import pytest

from payonce.engine.audit import LedgerSealer, anchor, anchor_heads, heads_in, ledger_head
from payonce.engine.audit.ledger_seals import LINE_FIELDS, POSTING_FIELDS
from payonce.engine.database.leases import release
from payonce.engine.janitors.seal import LedgerSeals, Sealer
from payonce.engine.ledger import Line, Posting, post
from payonce.engine.messages.model import Lease
from payonce.engine.messages.transaction import Reader
from payonce.engine.monitoring.metrics import REGISTRY
from payonce.kit.outcomes import Invalid, Stale, Unavailable
from payonce.testing import OpenStage, Stage, eventually
from tests.conformance.wire import on_the_wire
from tests.engine import ledger_chain
from tests.engine.audit_notes import leading
from tests.engine.ledger_books import ORDER, eth, posted, transfer
from tests.engine.ledger_chain import kinds_found, ledger_sealed, named, sealed_ledger, tamper, verified_ledger
from tests.engine.test_audit_seals import waiting


async def test_postings_are_sealed_in_batches_from_the_first_one(stage: OpenStage) -> None:
    async with stage() as s:
        for key in "abcde":
            await posted(s, transfer(key, 10))
        await ledger_sealed(s, await leading(s), 5, batch_lines=5)
        assert await named(s) == [[1, 2], [3, 4], [5]]
        now = await verified_ledger(s)
        assert (now.ok, now.postings, now.unsealed, now.head.number) == (True, 5, 0, 3)


async def test_a_posting_of_more_lines_than_a_batch_is_sealed_whole(stage: OpenStage) -> None:
    async with stage() as s:
        lines = tuple(Line(f"clients/{number}", eth(-1)) for number in range(9))
        await posted(s, Posting("large", ORDER, (*lines, Line("wallet", eth(9)))))
        await posted(s, transfer("small", 1))
        await ledger_sealed(s, await leading(s), 2, batch_lines=3)
        assert await named(s) == [[1], [2]]
        assert (await verified_ledger(s)).ok
        await tamper(s, "update payonce.posting_lines set account_id = account_id + 1 where number = 8")
        assert await kinds_found(s) >= {"changed posting"}


async def test_a_call_has_its_bound_and_the_next_one_goes_on(stage: OpenStage) -> None:
    async with stage() as s:
        lease = await leading(s)
        for key in "abcde":
            await posted(s, transfer(key, 10))
        sealer = LedgerSealer(s.database, batch_lines=3, batches_max=2)

        async def begun() -> bool:
            return await sealer.seal(lease) == 2

        await eventually(begun)
        assert sealer.unsealed_ids == 3
        assert await sealer.seal(lease) == 2
        assert await sealer.seal(lease) == 1
        assert sealer.unsealed_ids == 0


async def test_sealing_nothing_writes_nothing(stage: OpenStage) -> None:
    async with stage() as s:
        lease = await leading(s)
        assert await LedgerSealer(s.database).seal(lease) == 0
        await posted(s, transfer("a", 10))
        await ledger_sealed(s, lease, 1)
        before = await ledger_head(Reader(s.database))
        assert await LedgerSealer(s.database).seal(lease) == 0
        assert await ledger_head(Reader(s.database)) == before


async def test_ids_that_were_never_used_hold_nothing_up(stage: OpenStage) -> None:
    async with stage() as s:
        lease = await leading(s)
        sealer = LedgerSealer(s.database)
        await posted(s, transfer("a", 10))
        await s.owner.execute("select nextval('payonce.postings_id_seq')")
        await ledger_sealed(s, lease, 1)
        assert await sealer.seal(lease) == 0
        await posted(s, transfer("b", 10))
        await ledger_sealed(s, lease, 1)
        assert await named(s) == [[1], [3]]
        assert (await verified_ledger(s)).ok


async def test_a_posting_that_is_committed_late_is_sealed_in_its_place(stage: OpenStage) -> None:
    async with stage() as s:
        lease, sealer = await leading(s), LedgerSealer(s.database)
        await posted(s, transfer("before", 10))
        await ledger_sealed(s, lease, 1)
        async with s.database.transaction() as late:
            await post(late, transfer("late", 10))
            # With a higher id than the late posting.
            await posted(s, transfer("after", 10))
            assert await sealer.seal(lease) == 0
            assert await sealer.seal(lease) == 0
            await posted(s, transfer("later still", 10))
        sealed = 0

        async def all_sealed() -> bool:
            nonlocal sealed
            sealed += await sealer.seal(lease)
            return sealed >= 3

        await eventually(all_sealed)
        assert [posting for seal in await named(s) for posting in seal] == [1, 2, 3, 4]
        assert (await verified_ledger(s)).ok


async def test_long_transactions_that_overlap_without_end_hold_sealing_up_no_longer_than_one_of_them(
    stage: OpenStage,
) -> None:
    """The mark is kept between calls: with a new one each time, a younger transaction would always be in the way."""
    async with stage() as s:
        lease, sealer = await leading(s), LedgerSealer(s.database)
        await posted(s, transfer("a", 10))
        async with s.database.transaction() as younger:
            async with s.database.transaction() as older:
                await older.execute("select pg_current_xact_id()")
                assert await sealer.seal(lease) == 0
                await younger.execute("select pg_current_xact_id()")
                assert await sealer.seal(lease) == 0

            async def sealed() -> bool:
                return await sealer.seal(lease) == 1

            await eventually(sealed, ledger_chain.SEALED_WITHIN_S)


async def test_a_mark_of_another_server_counts_for_nothing(stage: OpenStage) -> None:
    """A leader keeps running while an older backup is restored under it: ids covered by the mark are assigned again, to
    transactions that it does not know."""
    async with stage() as s:
        lease, sealer = await leading(s), LedgerSealer(s.database)
        await posted(s, transfer("a", 10))
        with on_the_wire(lambda statement: statement.replace("pg_postmaster_start_time()", "'epoch'::timestamptz")):
            async with s.database.transaction() as older:
                await older.execute("select pg_current_xact_id()")
                await s.owner.execute("select setval('payonce.postings_id_seq', 100)")
                assert await sealer.seal(lease) == 0
        await s.owner.execute("select setval('payonce.postings_id_seq', 1)")
        async with s.database.transaction() as late:
            await post(late, transfer("late", 10))
            await posted(s, transfer("after", 10))
            await sealer.seal(lease)
        await ledger_sealed(s, lease, 3 - sum(map(len, await named(s))))
        assert await kinds_found(s) == set()


async def test_a_posting_has_its_transaction_number_before_its_id(stage: OpenStage) -> None:
    """The premise of the mark, for each posting function."""
    async with stage() as s:
        await s.owner.execute(
            """
            create function payonce.number_comes_first() returns trigger language plpgsql as $$
            begin
                if pg_current_xact_id_if_assigned() is null then
                    raise exception 'posting % was given its id first', new.id;
                end if;
                return new;
            end $$;
            create trigger number_comes_first before insert on payonce.postings
                for each row execute function payonce.number_comes_first()
            """
        )
        for key in "abc":
            await posted(s, transfer(key, 10))
        posting = await s.owner.fetch(
            """
            select proname, prosrc from pg_proc
            where pronamespace = 'payonce'::regnamespace and prosrc like '%insert into payonce.postings %'
            """
        )
        assert "post" in {function for function, _ in posting}
        for function, source in posting:
            ids = min(source.find(words) for words in ("nextval", "insert into payonce.postings") if words in source)
            assert 0 <= source.find("pg_current_xact_id()") < ids, f"payonce.{function} takes an id first"


async def test_a_leader_whose_lease_passed_on_seals_nothing(stage: OpenStage) -> None:
    async with stage() as s:
        stale = await leading(s, "stale")
        await posted(s, transfer("a", 10))
        await release(s.database, stale)
        lease = await leading(s, "next")
        with pytest.raises(Stale):
            await LedgerSealer(s.database).seal(stale)
        assert await named(s) == []
        await ledger_sealed(s, lease, 1)


async def test_two_who_both_believe_to_lead_cannot_fork_the_chain(stage: OpenStage) -> None:
    async with stage() as s, stage() as other:
        lease = await leading(s)
        await posted(s, transfer("a", 10))
        await ledger_sealed(s, lease, 1)
        await posted(s, transfer("b", 10))
        sealers = [LedgerSealer(s.database), LedgerSealer(other.database)]
        async with s.database.transaction() as older:
            await older.execute("select pg_current_xact_id()")
            assert [await sealer.seal(lease) for sealer in sealers] == [0, 0], "both have their mark"
        async with s.owner.transaction():
            # No seal can be finished before both have read the same end of the chain.
            await s.owner.execute("lock table payonce.ledger_seals in share row exclusive mode")
            both = [asyncio.create_task(until_sealed(sealer, lease)) for sealer in sealers]
            await eventually(lambda: waiting(other, 2), what="both having looked")
        ended = await asyncio.gather(*both, return_exceptions=True)
        assert sorted(type(each).__name__ for each in ended) == ["NoneType", "Stale"], ended
        assert await named(s) == [[1], [2]]
        assert (await verified_ledger(s)).ok


async def until_sealed(sealer: LedgerSealer, lease: Lease) -> None:
    async def sealed() -> bool:
        return await sealer.seal(lease) > 0

    await eventually(sealed)


async def test_services_may_append_seals_and_rewrite_none(stage: OpenStage) -> None:
    async with stage() as s:
        await sealed_ledger(s)
        for statement in (
            "update payonce.ledger_seals set format = format",
            "delete from payonce.ledger_seals",
            "truncate payonce.ledger_seals",
        ):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await s.database.work.execute(statement)
            with pytest.raises(asyncpg.InsufficientPrivilegeError, match="append-only"):
                await s.owner.execute(statement)


async def test_every_column_of_postings_and_lines_is_hashed(stage: OpenStage) -> None:
    """Except a line's transaction, which payonce.rebase_ledger changes."""
    async with stage() as s:
        columns = await s.owner.fetch(
            """
            select attrelid::regclass::text as relation, attname from pg_attribute
            where attrelid in ('payonce.postings'::regclass, 'payonce.posting_lines'::regclass)
              and attnum > 0 and not attisdropped
            """
        )
    found: dict[str, set[str]] = {}
    for row in columns:
        found.setdefault(row["relation"], set()).add(row["attname"])
    assert found["payonce.postings"] == {"id", *POSTING_FIELDS}
    named_otherwise = {"posting_id", "account_id", "xact", "posted_at"}
    assert found["payonce.posting_lines"] == {"number", "minor"} | named_otherwise
    assert set(LINE_FIELDS) == {"number", "minor", "path", "asset", "exponent", "line_posted_at"}


async def ticked(s: Stage, path: Path, lease: Lease, key: str) -> None:
    """As the two janitors do it."""
    await posted(s, transfer(key, 10))
    seals, number = LedgerSeals(LedgerSealer(s.database)), (await ledger_head(Reader(s.database))).number

    async def sealed() -> bool:
        await seals.tick(lease)
        return REGISTRY.get_sample_value("payonce_ledger_head") == number + 1

    await eventually(sealed)
    assert REGISTRY.get_sample_value("payonce_ledger_unsealed") == 0
    await Sealer(s.database, path).tick(lease)


async def test_the_leader_tells_how_far_it_is_and_anchors_each_head_once(stage: OpenStage, tmp_path: Path) -> None:
    path = tmp_path / "heads"
    async with stage() as s:
        lease = await leading(s)
        for key in "ab":
            await ticked(s, path, lease, key)
        await Sealer(s.database, path).tick(lease)
        anchored = heads_in(path).ledger
        assert [head.number for head in anchored] == [1, 2]
        assert (await verified_ledger(s, *anchored)).ok


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("delete from payonce.ledger_seals", "has no such seal: the ledger was rewritten"),
        ("update payonce.ledger_seals set hash = decode(repeat('00', 32), 'hex')", "has another one"),
    ],
)
async def test_a_chain_without_the_anchored_head_raises_the_alarm_and_appends_nothing(
    stage: OpenStage, tmp_path: Path, damage: str, said: str
) -> None:
    path = tmp_path / "heads"
    async with stage() as s:
        await ticked(s, path, await leading(s), "a")
        before = path.read_text()
        await tamper(s, damage)
        with pytest.raises(Unavailable, match=said):
            await anchor_heads(s.database.engine, path)
        assert await kinds_found(s, *heads_in(path).ledger) & {"cut chain", "rewritten history"}
    assert path.read_text() == before


def test_of_a_long_file_of_heads_the_newest_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each head proves everything before it."""
    lines = [f"{number}:{'0' * 64} ledger:{number}:{'1' * 64} 2026-01-31T12:00:00+00:00\n" for number in range(1, 9)]
    (tmp_path / "heads").write_text("".join(lines))
    monkeypatch.setattr(anchor, "HEADS_MAX_BYTES", len(lines[0]) * 2 + 5)
    found = heads_in(tmp_path / "heads")
    assert [head.number for head in found.log] == [head.number for head in found.ledger] == [7, 8]


@pytest.mark.parametrize("size", [{"batch_lines": 0}, {"batches_max": 0}])
async def test_a_batch_of_nothing_is_refused(stage: OpenStage, size: dict[str, int]) -> None:
    async with stage() as s:
        with pytest.raises(Invalid, match="0"):
            LedgerSealer(s.database, **size)
