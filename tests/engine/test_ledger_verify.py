"""Verification of the ledger: silent while it is as sealed; every rewrite is found and named, even if the ledger still
balances."""

import re

import pytest

from payonce.engine.audit import Head, chain, ledger_verify, verify_ledger
from payonce.engine.ledger import snapshot_balances
from payonce.engine.messages.transaction import Reader
from payonce.testing import OpenStage, eventually
from tests.engine.audit_notes import leading
from tests.engine.ledger_books import findings, posted, transfer
from tests.engine.ledger_chain import kinds_found, ledger_sealed, sealed_ledger, tamper, verified_ledger

OF_B = "posting_id = (select id from payonce.postings where key = 'b')"
OF_D = "posting_id = (select id from payonce.postings where key = 'd')"
INSERTED = """
    insert into payonce.postings (id, key, reference_kind, reference_id, description, posted_at)
    overriding system value select {id}, 'x', reference_kind, reference_id, '', posted_at
    from payonce.postings where key = 'b';
    insert into payonce.posting_lines (posting_id, account_id, xact, posted_at, number, minor)
    select {id}, account_id, xact, posted_at, number, minor from payonce.posting_lines where posting_id = 2
"""
CHANGED = r"posting 2 \(b\), sealed by ledger seal 1, was changed after it was sealed"

BALANCED: dict[str, tuple[str, str, str]] = {
    "both lines are changed": (
        f"update payonce.posting_lines set minor = minor * 3 where {OF_B}",
        "changed posting",
        CHANGED,
    ),
    "both lines and the guarded balance are changed": (
        f"""
        update payonce.posting_lines set minor = minor * 3 where {OF_D};
        update payonce.guarded_balances set balance = 30
        """,
        "changed posting",
        r"posting 4 \(d\), sealed by ledger seal 3, was changed",
    ),
    "both lines change accounts": (
        f"""
        update payonce.posting_lines l set account_id = (
            select o.account_id from payonce.posting_lines o where o.posting_id = l.posting_id and o.number <> l.number)
        where {OF_B}
        """,
        "changed posting",
        CHANGED,
    ),
    "two lines change places": (
        f"""
        update payonce.posting_lines set number = number + 10 where {OF_B};
        update payonce.posting_lines set number = 13 - number where {OF_B}
        """,
        "changed posting",
        CHANGED,
    ),
    "lines are numbered anew": (
        f"update payonce.posting_lines set number = number + 10 where {OF_B}",
        "changed posting",
        CHANGED,
    ),
    "two lines are added": (
        f"""
        insert into payonce.posting_lines (posting_id, account_id, xact, posted_at, number, minor)
        select posting_id, account_id, xact, posted_at, number + 2, minor from payonce.posting_lines where {OF_B}
        """,
        "changed posting",
        CHANGED,
    ),
    "the lines are removed": (f"delete from payonce.posting_lines where {OF_B}", "changed posting", CHANGED),
    "two postings change their lines": (
        """
        update payonce.posting_lines set posting_id = posting_id + 100 where posting_id in (2, 4);
        update payonce.posting_lines set posting_id = 106 - posting_id where posting_id in (102, 104)
        """,
        "changed posting",
        r"posting 4 \(d\)",
    ),
    "the times of lines are changed": (
        f"update payonce.posting_lines set posted_at = posted_at - interval '1 microsecond' where {OF_B}",
        "changed posting",
        CHANGED,
    ),
    "a key is changed": (
        "update payonce.postings set key = 'z' where key = 'b'",
        "changed posting",
        r"posting 2 \(z\), sealed",
    ),
    "a kind of reference is changed": (
        "update payonce.postings set reference_kind = 'order' where key = 'b'",
        "changed posting",
        CHANGED,
    ),
    "a reference is changed": (
        "update payonce.postings set reference_id = '18' where key = 'b'",
        "changed posting",
        CHANGED,
    ),
    "text moves from one field into the next": (
        "update payonce.postings set reference_kind = 'payout1', reference_id = '7' where key = 'b'",
        "changed posting",
        CHANGED,
    ),
    "a text is changed": (
        "update payonce.postings set description = 'gift' where key = 'b'",
        "changed posting",
        CHANGED,
    ),
    "a trace is added": ("update payonce.postings set trace_id = '' where key = 'b'", "changed posting", CHANGED),
    "a time is changed": (
        "update payonce.postings set posted_at = posted_at - interval '1 microsecond' where key = 'b'",
        "changed posting",
        CHANGED,
    ),
    "an account is renamed": (
        "update payonce.accounts set path = 'payouts/mine' where path = 'payouts/host_wallet'",
        "changed posting",
        CHANGED,
    ),
    "an asset is changed": ("update payonce.accounts set asset = 'DOGE'", "changed posting", CHANGED),
    "an exponent is changed": ("update payonce.accounts set exponent = 17", "changed posting", CHANGED),
    "a posting is deleted": (
        f"delete from payonce.posting_lines where {OF_B}; delete from payonce.postings where key = 'b'",
        "missing posting",
        "posting 2, sealed by ledger seal 1, is gone",
    ),
    "the first posting is deleted": (
        "delete from payonce.posting_lines where posting_id = 1; delete from payonce.postings where id = 1",
        "missing posting",
        "posting 1, sealed by ledger seal 1, is gone",
    ),
    "the last sealed posting is deleted": (
        """
        delete from payonce.posting_lines where posting_id = 4; delete from payonce.postings where id = 4;
        update payonce.guarded_balances set balance = 0
        """,
        "missing posting",
        "posting 4, sealed by ledger seal 3, is gone",
    ),
    "a posting takes the place of another": (
        "delete from payonce.posting_lines where posting_id = 3; delete from payonce.postings where id = 3;"
        + INSERTED.format(id=3),
        "changed posting",
        r"posting 3 \(x\), sealed by ledger seal 2, was changed",
    ),
    "a posting is inserted before all": (
        INSERTED.format(id=-5),
        "posting inserted late",
        r"posting -5 \(x\) has no seal",
    ),
}
"""A change by an owner after which everything still balances; its kind, and the sentence that names the posting."""


@pytest.mark.parametrize("name", BALANCED)
async def test_tampering_that_keeps_the_books_balanced_is_found_and_named(stage: OpenStage, name: str) -> None:
    damage, kind, sentence = BALANCED[name]
    async with stage() as s:
        await sealed_ledger(s)
        await tamper(s, damage)
        audited = await findings(s)
        if name != "the lines are removed":
            assert audited == {}, "the sums alone show nothing"
        found = (await verified_ledger(s)).findings
        assert {finding.kind for finding in found} == {kind}, found
        assert any(re.search(sentence, finding.text) for finding in found), found
        assert all(finding.way_out for finding in found)


async def test_a_posting_inserted_where_an_id_was_never_used_is_found(stage: OpenStage) -> None:
    async with stage() as s:
        await posted(s, transfer("a", 10))
        await s.owner.execute("select nextval('payonce.postings_id_seq')")
        for key in ("b", "c"):
            await posted(s, transfer(key, 10))
        await ledger_sealed(s, await leading(s), 3)
        await tamper(s, INSERTED.replace("posting_id = 2", "posting_id = 1").format(id=2))
        assert await findings(s) == {}
        found = (await verified_ledger(s)).findings
        assert [finding.kind for finding in found] == ["posting inserted late"]
        assert "posting 2 (x) has no seal although postings with higher ids are sealed" in found[0].text


SEALS: dict[str, tuple[str, set[str]]] = {
    "a posting is deleted and struck off the list": (
        """
        delete from payonce.posting_lines where posting_id = 2; delete from payonce.postings where id = 2;
        update payonce.ledger_seals set postings = '{1}', digests = substring(digests for 32) where number = 1
        """,
        {"changed seal"},
    ),
    "a posting is changed with its digest": (
        """
        update payonce.posting_lines set minor = minor * 3 where posting_id = 3;
        update payonce.ledger_seals set digests = decode(repeat('00', 32), 'hex') where number = 2
        """,
        {"changed posting", "changed seal"},
    ),
    "a posting is added to a list": (
        "update payonce.ledger_seals set postings = '{1,3}' where number = 1",
        {"changed seal", "changed posting", "posting inserted late"},
    ),
    "a hash is changed": (
        "update payonce.ledger_seals set hash = decode(repeat('00', 32), 'hex') where number = 2",
        {"changed seal", "broken link"},
    ),
    "a time is changed": (
        "update payonce.ledger_seals set sealed_at = sealed_at - interval '1 day' where number = 2",
        {"changed seal"},
    ),
    "another format is claimed": (
        "update payonce.ledger_seals set format = 9 where number = 2",
        {"unreadable seal"},
    ),
    "a seal is removed": (
        "delete from payonce.ledger_seals where number = 2",
        {"missing seal", "posting inserted late"},
    ),
    "the first seal is removed": (
        "delete from payonce.ledger_seals where number = 1",
        {"missing seal", "posting inserted late"},
    ),
}


@pytest.mark.parametrize("name", SEALS)
async def test_tampering_with_seals_is_found(stage: OpenStage, name: str) -> None:
    damage, wanted = SEALS[name]
    async with stage() as s:
        await sealed_ledger(s)
        await tamper(s, damage)
        assert await kinds_found(s) == wanted


DERIVED: dict[str, tuple[str, set[str]]] = {
    "a guarded balance is changed": ("update payonce.guarded_balances set balance = 11", {"wrong guarded balance"}),
    "a snapshot is changed": (
        "update payonce.balance_snapshots set balance = balance + 1",
        {"wrong balance", "wrong snapshot"},
    ),
    "lines without a posting are added": (
        """
        insert into payonce.posting_lines (posting_id, account_id, xact, posted_at, number, minor)
        select 77, account_id, pg_current_xact_id(), posted_at, number, minor
        from payonce.posting_lines where posting_id = 5
        """,
        {"stray line"},
    ),
}


@pytest.mark.parametrize("name", DERIVED)
async def test_what_follows_from_the_lines_is_held_against_them(stage: OpenStage, name: str) -> None:
    damage, wanted = DERIVED[name]
    async with stage() as s:
        await sealed_ledger(s)

        async def covered() -> bool:
            await snapshot_balances(s.database, lines_wanted=1)
            return bool(await s.owner.fetchval("select count(*) >= 3 from payonce.balance_snapshots"))

        await eventually(covered)
        assert (await verified_ledger(s)).ok, "snapshots and guarded balances follow from the lines"
        await tamper(s, damage)
        assert await kinds_found(s) == wanted


async def test_a_ledger_as_it_was_sealed_has_no_findings(stage: OpenStage) -> None:
    async with stage() as s:
        assert (await verified_ledger(s)).ok
        heads = await sealed_ledger(s)
        found = await verified_ledger(s, *heads)
        assert (found.ok, found.head, found.postings, found.unsealed, found.heads) == (True, heads[-1], 4, 1, 3)
        assert found.oldest_unsealed_at is not None


async def test_a_posting_changed_before_it_is_sealed_is_sealed_as_it_is(stage: OpenStage) -> None:
    """The documented limit: a seal proves that nothing changed after it, not that it was right before."""
    async with stage() as s:
        lease = await leading(s)
        await posted(s, transfer("a", 10))
        await tamper(s, "update payonce.posting_lines set minor = minor * 3")
        await ledger_sealed(s, lease, 1)
        assert (await verified_ledger(s)).ok
        await tamper(s, "update payonce.posting_lines set minor = minor / 3")
        assert await kinds_found(s) == {"changed posting"}


CUT = """
    delete from payonce.ledger_seals where number = 3; delete from payonce.posting_lines where posting_id >= 4;
    delete from payonce.postings where id >= 4; update payonce.guarded_balances set balance = 0
"""


async def test_a_chain_that_was_cut_is_found_by_a_head_kept_elsewhere(stage: OpenStage) -> None:
    async with stage() as s:
        heads = await sealed_ledger(s)
        await tamper(s, CUT)
        assert (await verified_ledger(s)).ok, "only somebody outside can know"
        assert (await verified_ledger(s, *heads[:2])).ok, "history up to there is as it was"
        assert await kinds_found(s, heads[2]) == {"cut chain"}


async def test_a_chain_made_anew_is_found_by_a_head_kept_elsewhere(stage: OpenStage) -> None:
    async with stage() as s:
        heads = await sealed_ledger(s)
        await tamper(
            s,
            """
            delete from payonce.ledger_seals;
            update payonce.posting_lines set minor = minor * 3 where posting_id = 2
            """,
        )
        await s.owner.execute("update payonce.leases set expires_at = '-infinity'")
        await ledger_sealed(s, await leading(s, "forger"), 5, batch_lines=1)
        assert (await verified_ledger(s)).ok, "only somebody outside can know"
        assert await kinds_found(s, heads[0]) == {"rewritten history"}


async def test_heads_that_contradict_each_other_are_found(stage: OpenStage) -> None:
    async with stage() as s:
        heads = await sealed_ledger(s)
        assert await kinds_found(s, heads[1], Head(2, heads[0].hash)) >= {"contradicting head"}


async def test_more_findings_than_anybody_reads_are_counted(stage: OpenStage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain, "FINDINGS_MAX", 1)
    async with stage() as s:
        await sealed_ledger(s)
        await tamper(s, "update payonce.postings set description = 'gift'")
        texts = [finding.text for finding in (await verified_ledger(s)).findings]
        assert len(texts) == 2
        assert texts[-1] == "and 3 more of these"


async def test_verification_reads_in_pages_and_tells_how_far_it_is(
    stage: OpenStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(ledger_verify, "PAGE_POSTINGS", 2)
    async with stage() as s:
        await sealed_ledger(s)
        found = await verify_ledger(Reader(s.database), progress=lambda done, total: told.append((done, total)))
    assert (found.ok, found.postings) == (True, 4)
    assert told == [(1, 3), (3, 3)]
