"""The anchor: each head is appended once and never overwritten, and an alarm is raised when the chain no longer has a
known head."""

import stat
from pathlib import Path

import pytest

from payonce.engine.audit import Head, Heads, anchor_heads, heads_in, parsed_heads
from payonce.engine.janitors.seal import Sealer
from payonce.engine.messages.model import Lease
from payonce.engine.monitoring.metrics import REGISTRY
from payonce.kit.outcomes import Invalid, Unavailable
from payonce.testing import OpenStage, Stage, eventually
from tests.engine.audit_notes import all_final, head_of, kinds, leading, noted, verified
from tests.engine.ledger_books import unprotected


async def ticked(s: Stage, sealer: Sealer, *texts: str) -> Head:
    await noted(s, *texts)
    await eventually(lambda: all_final(s))
    await sealer.tick(Lease("janitors", "leader", 1, 3_600.0))
    return await head_of(s)


async def test_the_leader_appends_each_head_once(stage: OpenStage, tmp_path: Path) -> None:
    path = tmp_path / "heads"
    async with stage() as s:
        await leading(s)
        sealer = Sealer(s.database, path)
        heads = [await ticked(s, sealer, text) for text in ("a", "b")]
        await ticked(s, sealer)
        assert heads_in(path).log == tuple(heads)
        assert await kinds(s, *heads_in(path).log) == set()
        assert REGISTRY.get_sample_value("payonce_audit_head") == heads[-1].number
    assert path.read_text().count("\n") == 2
    assert stat.S_IMODE(path.stat().st_mode) & stat.S_IWOTH == 0


async def test_nothing_is_written_before_the_first_seal(stage: OpenStage, tmp_path: Path) -> None:
    async with stage() as s:
        assert await anchor_heads(s.database.engine, tmp_path / "heads") is None
    assert not (tmp_path / "heads").exists()


async def test_a_head_missed_by_a_crash_is_made_up_for_behind_a_line_that_was_cut(
    stage: OpenStage, tmp_path: Path
) -> None:
    path = tmp_path / "heads"
    async with stage() as s:
        await leading(s)
        first = await ticked(s, Sealer(s.database, path), "a")
        with path.open("a") as file:
            file.write("2:abcd")
        second = await ticked(s, Sealer(s.database), "b")
        assert heads_in(path).log == (first,)
        await ticked(s, Sealer(s.database, path))
        assert heads_in(path).log == (first, second)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("delete from payonce.audit_sealed; delete from payonce.audit_seals", "has no such seal"),
        ("update payonce.audit_seals set hash = decode(repeat('00', 32), 'hex')", "has another one"),
    ],
)
async def test_a_chain_without_the_anchored_head_raises_the_alarm_and_appends_nothing(
    stage: OpenStage, tmp_path: Path, damage: str, said: str
) -> None:
    path = tmp_path / "heads"
    async with stage() as s:
        await leading(s)
        await ticked(s, Sealer(s.database, path), "a")
        before = path.read_text()
        async with unprotected(s.scratch) as superuser:
            await superuser.execute(damage)
        with pytest.raises(Unavailable, match=said):
            await anchor_heads(s.database.engine, path)
        with pytest.raises(Unavailable, match="has another one"):
            # Sealing continues, so that new notes are protected too.
            await ticked(s, Sealer(s.database, path), "b")
        assert (await verified(s)).unsealed == 0
    assert path.read_text() == before


@pytest.mark.parametrize(
    "text",
    ["", "17", "17:abc", "x:" + "0" * 64, "-1:" + "0" * 64, "1:" + "g" * 64, "ledger:1", "1:" + "0" * 64 + " 2"],
)
def test_what_is_no_head_is_refused_with_the_way_out(text: str) -> None:
    with pytest.raises(Invalid, match="NUMBER:HASH"):
        parsed_heads(text)


def test_a_head_reads_as_it_is_written() -> None:
    head = Head(17, bytes(range(32)))
    assert parsed_heads(str(head)) == Heads((head,))
    assert parsed_heads(f"{head} ledger:{head}") == Heads((head,), (head,))
    assert parsed_heads(f"ledger:{head}") == Heads((), (head,))


def test_a_file_without_heads_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("nothing\n")
    with pytest.raises(Invalid, match="contains no head"):
        heads_in(tmp_path / "empty")
    with pytest.raises(Invalid, match="cannot be read"):
        heads_in(tmp_path)
