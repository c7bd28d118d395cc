"""Reading the audit log by subject, severity, actor and time, page by page."""

from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from payonce.engine.audit import Note, Severity, note, notes
from payonce.engine.messages.transaction import Reader
from payonce.kit.outcomes import Invalid
from payonce.testing import OpenStage, Stage
from tests.engine.audit_notes import leading, noted, sealed


async def texts(s: Stage, **which: Any) -> list[str]:
    return [found.text for found in await notes(Reader(s.database), **which)]


async def fail_after_a_note(s: Stage) -> None:
    async with s.database.transaction() as connection:
        await note(connection, "test", "bank", "never", actor="ann")
        await connection.execute("select 1 / 0")


async def test_a_note_is_there_if_and_only_if_its_transaction_commits(stage: OpenStage) -> None:
    async with stage() as s:
        with pytest.raises(asyncpg.DivisionByZeroError):
            await fail_after_a_note(s)
        async with s.database.transaction() as connection:
            await note(connection, "brakes.freeze", "bank", "frozen, password=hunter22", actor="ann")
        [found] = await notes(Reader(s.database))
        assert found == Note(
            found.id, found.at, Severity.INFO, "brakes.freeze", "bank", "frozen, password=[redacted]", "ann", None
        )


async def test_notes_are_chosen_by_what_is_asked(stage: OpenStage) -> None:
    async with stage() as s:
        begun_at = await s.clock.freeze()
        for reference, text, actor, severity in (
            ("bank", "a", "ann", Severity.INFO),
            ("card", "b", "ann", Severity.ERROR),
            ("bank", "c", "bob", Severity.WARNING),
        ):
            async with s.database.transaction() as connection:
                await note(connection, "test", reference, text, actor=actor, severity=severity)
            await s.clock.advance(60)
        assert await texts(s) == ["c", "b", "a"]
        assert await texts(s, reference="bank") == ["c", "a"]
        assert await texts(s, actor="ann") == ["b", "a"]
        assert await texts(s, severity=Severity.ERROR) == ["b"]
        assert await texts(s, since=begun_at + timedelta(seconds=60)) == ["c", "b"]
        assert await texts(s, until=begun_at + timedelta(seconds=60)) == ["a"]


async def test_pages_follow_each_other_also_within_one_moment(stage: OpenStage) -> None:
    async with stage() as s:
        await s.clock.freeze()
        await noted(s, "a", "b", "c", "d")
        first = await notes(Reader(s.database), limit=2)
        assert [each.text for each in first] == ["d", "c"]
        await noted(s, "e")
        assert await texts(s, limit=2, before=first[-1].id) == ["b", "a"]


async def test_a_sealed_note_says_which_seal_covers_it(stage: OpenStage) -> None:
    async with stage() as s:
        await noted(s, "a")
        await sealed(s, await leading(s), 1)
        await noted(s, "b")
        assert [(each.text, each.seal) for each in await notes(Reader(s.database))] == [("b", None), ("a", 1)]


@pytest.mark.parametrize("limit", [0, -1, 1_001])
async def test_a_page_has_a_bound(stage: OpenStage, limit: int) -> None:
    async with stage() as s:
        with pytest.raises(Invalid, match="a page has 1 to 1000 notes"):
            await notes(Reader(s.database), limit=limit)
