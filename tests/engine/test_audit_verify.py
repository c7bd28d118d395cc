"""Verification: silent while the log is as sealed; every rewrite that an owner can do is found."""

import re

import pytest

from payonce.engine.audit import Head, chain, verify, verify_log
from payonce.engine.messages.transaction import Reader
from payonce.testing import OpenStage, Stage, eventually
from tests.engine.audit_notes import all_final, head_of, kinds, leading, noted, sealed, verified
from tests.engine.ledger_books import unprotected

TAMPERING: dict[str, tuple[str, set[str], str]] = {
    "a text is changed": (
        "update payonce.audit_log set text = 'nothing happened' where text = 'b'",
        {"changed note"},
        r"note \d+, sealed by 1, was changed after it was sealed",
    ),
    "an actor is changed": ("update payonce.audit_log set actor = 'somebody' where text = 'b'", {"changed note"}, ""),
    "a severity is changed": ("update payonce.audit_log set severity = 'ERROR' where text = 'b'", {"changed note"}, ""),
    "a location is changed": ("update payonce.audit_log set location = 'x' where text = 'b'", {"changed note"}, ""),
    "a reference is changed": ("update payonce.audit_log set reference = 'x' where text = 'b'", {"changed note"}, ""),
    "a time is changed": (
        "update payonce.audit_log set created_at = created_at - interval '1 microsecond' where text = 'b'",
        {"changed note"},
        "",
    ),
    "a transaction is changed": ("update payonce.audit_log set xact = '3' where text = 'b'", {"changed note"}, ""),
    "text moves from one field into the next": (
        "update payonce.audit_log set location = 'testr', reference = 'eference' where text = 'b'",
        {"changed note"},
        "",
    ),
    "a note is deleted": (
        "delete from payonce.audit_log where text = 'b'",
        {"missing note"},
        r"note \d+, sealed by 1, is gone",
    ),
    "a note is deleted and struck off the list": (
        """
        delete from payonce.audit_sealed where note = (select id from payonce.audit_log where text = 'b');
        delete from payonce.audit_log where text = 'b'
        """,
        {"missing note", "changed seal"},
        "seal 1 covers 2 notes, but 1 are listed",
    ),
    "a note is inserted late": (
        """
        insert into payonce.audit_log (xact, severity, location, reference, text, actor)
        select xact, 'INFO', 'test', 'reference', 'as if it had been there', 'tester'
        from payonce.audit_log where text = 'b'
        """,
        {"note inserted late"},
        r"note \d+ has no seal and claims transaction \d+, which had ended when the log was sealed",
    ),
    "a note of a transaction to come is inserted": (
        """
        insert into payonce.audit_log (xact, severity, location, reference, text, actor)
        values ('9999999999', 'INFO', 'test', 'reference', 'from the future', 'tester')
        """,
        {"note inserted late"},
        "not yet reached by this server",
    ),
    "a note is added to a seal's list": (
        """
        insert into payonce.audit_log (xact, severity, location, reference, text, actor)
        values ('3', 'INFO', 'test', 'reference', 'as if it had been there', 'tester');
        insert into payonce.audit_sealed (seal, place, note, digest)
        select 1, 3, max(id), decode(repeat('00', 32), 'hex') from payonce.audit_log
        """,
        {"missing note", "changed note", "changed seal"},
        "seal 1 covers 2 notes, but 3 are listed",
    ),
    "two notes change places": (
        """
        update payonce.audit_sealed set place = place + 10 where seal = 1;
        update payonce.audit_sealed set place = 13 - place where seal = 1
        """,
        {"changed seal"},
        "the hash of seal 1 does not match its content",
    ),
    "two notes change their texts": (
        "update payonce.audit_log set text = case text when 'a' then 'b' else 'a' end where text in ('a', 'b')",
        {"changed note"},
        "",
    ),
    "a digest is changed": (
        "update payonce.audit_sealed set digest = decode(repeat('00', 32), 'hex') where place = 2 and seal = 1",
        {"changed note", "changed seal"},
        "",
    ),
    "a seal's hash is changed": (
        "update payonce.audit_seals set hash = decode(repeat('00', 32), 'hex') where number = 2",
        {"changed seal", "broken link"},
        "seal 3 follows another seal 2 than the one on record",
    ),
    "a seal's time is changed": (
        "update payonce.audit_seals set sealed_at = sealed_at - interval '1 day' where number = 2",
        {"changed seal"},
        "",
    ),
    "a seal's server is changed": (
        "update payonce.audit_seals set server = 'x' where number = 2",
        {"changed seal"},
        "",
    ),
    "a seal's horizon is changed": (
        "update payonce.audit_seals set horizon = '4' where number = 2",
        {"changed seal"},
        "",
    ),
    "a seal's count is changed": (
        "update payonce.audit_seals set notes = 7 where number = 2",
        {"changed seal", "missing note"},
        "",
    ),
    "a seal claims another format": (
        "update payonce.audit_seals set format = 9 where number = 2",
        {"unreadable seal"},
        "seal 2 has format 9, but this version reads 1",
    ),
    "a seal is removed": (
        "delete from payonce.audit_sealed where seal = 2; delete from payonce.audit_seals where number = 2",
        {"missing seal", "note inserted late"},
        "seals 2 to 2 are gone",
    ),
    "a seal is removed and its list forgotten": (
        "delete from payonce.audit_seals where number = 2",
        {"missing seal"},
        "seal 2 is gone, but the list of its 1 notes still exists",
    ),
    "a seal is removed and the next one renumbered": (
        """
        delete from payonce.audit_sealed where seal = 2; delete from payonce.audit_seals where number = 2;
        update payonce.audit_seals set number = 2 where number = 3; update payonce.audit_sealed set seal = 2
        where seal = 3
        """,
        {"changed seal", "broken link", "note inserted late"},
        "seal 2 follows another seal 1 than the one on record",
    ),
    "the first seal is removed": (
        "delete from payonce.audit_sealed where seal = 1; delete from payonce.audit_seals where number = 1",
        {"missing seal", "note inserted late"},
        "seals 1 to 1 are gone",
    ),
}


async def sealed_log(s: Stage) -> list[Head]:
    """Three seals, over a and b, c, d; and a note that is not sealed. Answers with every head."""
    lease, heads = await leading(s), []
    for texts in (("a", "b"), ("c",), ("d",)):
        await noted(s, *texts)
        await eventually(lambda: all_final(s))
        await sealed(s, lease, len(texts))
        heads.append(await head_of(s))
    await noted(s, "e")
    assert [head.number for head in heads] == [1, 2, 3]
    return heads


async def tamper(s: Stage, damage: str) -> None:
    async with unprotected(s.scratch) as superuser:
        await superuser.execute(damage)


async def test_a_log_as_it_was_sealed_has_no_findings(stage: OpenStage) -> None:
    async with stage() as s:
        assert (await verified(s)).ok
        heads = await sealed_log(s)
        found = await verified(s, *heads)
        assert (found.ok, found.head, found.notes, found.unsealed, found.heads) == (True, heads[-1], 4, 1, 3)
        assert found.oldest_unsealed_at is not None


@pytest.mark.parametrize("name", TAMPERING)
async def test_tampering_is_found_and_named(stage: OpenStage, name: str) -> None:
    damage, wanted, sentence = TAMPERING[name]
    async with stage() as s:
        await sealed_log(s)
        await tamper(s, damage)
        found = (await verified(s)).findings
        assert {finding.kind for finding in found} == wanted, found
        assert any(re.search(sentence, finding.text) for finding in found), found
        assert all(finding.way_out for finding in found)


CUT = """
    delete from payonce.audit_sealed where seal = 3; delete from payonce.audit_seals where number = 3;
    delete from payonce.audit_log where text in ('d', 'e')
"""


async def test_a_chain_that_was_cut_is_found_by_a_head_kept_elsewhere(stage: OpenStage) -> None:
    async with stage() as s:
        heads = await sealed_log(s)
        await tamper(s, CUT)
        assert (await verified(s)).ok, "only somebody outside can know"
        assert (await verified(s, *heads[:2])).ok, "history up to there is as it was"
        assert await kinds(s, heads[2]) == {"cut chain"}


async def test_a_chain_made_anew_is_found_by_a_head_kept_elsewhere(stage: OpenStage) -> None:
    async with stage() as s:
        heads = await sealed_log(s)
        await tamper(
            s,
            """
            delete from payonce.audit_sealed; delete from payonce.audit_seals;
            update payonce.audit_log set text = 'nothing' where text = 'b'
            """,
        )
        await s.owner.execute("update payonce.leases set expires_at = '-infinity'")
        await sealed(s, await leading(s, "forger"), 5, batch_notes=1)
        assert (await verified(s)).ok, "only somebody outside can know"
        assert await kinds(s, heads[0]) == {"rewritten history"}


async def test_more_findings_than_anybody_reads_are_counted(stage: OpenStage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain, "FINDINGS_MAX", 1)
    async with stage() as s:
        await sealed_log(s)
        await tamper(s, "update payonce.audit_log set actor = 'somebody'")
        texts = [finding.text for finding in (await verified(s)).findings]
        assert len(texts) == 2
        assert texts[-1] == "and 3 more of these"


async def test_heads_that_contradict_each_other_are_found(stage: OpenStage) -> None:
    async with stage() as s:
        heads = await sealed_log(s)
        assert await kinds(s, heads[1], Head(2, heads[0].hash)) >= {"contradicting head"}


async def test_the_head_of_an_empty_chain_proves_nothing_and_harms_nothing(stage: OpenStage) -> None:
    async with stage() as s:
        empty = await head_of(s)
        await sealed_log(s)
        assert (await verified(s, empty)).ok


async def test_verification_reads_in_pages_and_tells_how_far_it_is(
    stage: OpenStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(verify, "PAGE_NOTES", 2)
    async with stage() as s:
        await sealed_log(s)
        found = await verify_log(Reader(s.database), progress=lambda done, total: told.append((done, total)))
    assert (found.ok, found.notes) == (True, 4)
    assert told == [(1, 3), (3, 3)]
