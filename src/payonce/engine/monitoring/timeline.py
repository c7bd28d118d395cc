"""The timeline of one payment: messages, runs, effects, postings, outbox entries and audit notes of one trace, in
order."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

from payonce.engine.ledger.model import Reads
from payonce.engine.messages import job_log
from payonce.kit.money import Amount, Asset

EFFECTS_MAX: Final = 200
TRIES_MAX: Final = 1_000
POSTINGS_MAX: Final = 500
ENTRIES_MAX: Final = 200
NOTES_MAX: Final = 500
REFERENCES_MAX: Final = 1_000
"""Ids for which notes are searched."""


class Kind(StrEnum):
    RUN = "run"
    MESSAGE = "message"
    EFFECT = "effect"
    POSTING = "posting"
    OUTBOX = "outbox"
    NOTE = "note"


@dataclass(frozen=True)
class TimelineEntry:
    """Something that happened, or the current state of something."""

    at: datetime
    """By the store's clock."""
    kind: str
    """A Kind, or a word of the service that contributes the entry."""
    title: str
    state: str
    detail: str | None = None
    amount: Amount | None = None
    message_id: UUID | None = None
    effect_id: UUID | None = None
    queue: str | None = None
    who: str | None = None
    lines: Sequence[tuple[str, Amount]] = ()
    """Of a posting: accounts and amounts."""


@dataclass(frozen=True)
class Timeline:
    trace_ids: Sequence[str]
    entries: Sequence[TimelineEntry]
    truncated: bool
    moved: Sequence[Amount] = field(default_factory=tuple)
    """Amounts performed by its effects, by asset."""
    correlation_ids: Sequence[str] = ()
    """Correlation ids of its messages, the most recent first."""


async def read_timeline(read: Reads, what: str) -> Timeline:
    """The timeline for a trace, message, effect or correlation id, or an idempotency key; empty when it is unknown."""
    found = await job_log.trace(read, what)
    trace_ids = list(found.trace_ids)
    if not trace_ids and (trace_ids := await _trace_of_effect(read, what)):
        found = await job_log.trace(read, trace_ids[0])
    effects = await _effects(read, trace_ids)
    effect_entries, tries_cut = await _effect_entries(read, effects)
    postings = await _postings(read, "trace_id = any($1::text[])", list(trace_ids))
    entries = await _outbox(read, trace_ids)
    references = {*trace_ids, *(str(entry.message_id) for entry in found.entries), *(str(row["id"]) for row in effects)}
    notes = await notes_about(read, sorted(references)[:REFERENCES_MAX])
    timeline_entries = [*map(_run_entry, found.entries), *effect_entries, *postings, *entries, *notes]
    cut = found.truncated or tries_cut or len(effects) == EFFECTS_MAX or len(postings) == POSTINGS_MAX
    cut = cut or len(entries) == ENTRIES_MAX or len(notes) == NOTES_MAX or len(references) > REFERENCES_MAX
    about = dict.fromkeys(entry.correlation_id for entry in reversed(found.entries) if entry.correlation_id)
    return Timeline(
        trace_ids,
        sorted(timeline_entries, key=lambda timeline_entry: timeline_entry.at),
        cut,
        _moved(effects),
        tuple(about),
    )


async def _trace_of_effect(read: Reads, what: str) -> list[str]:
    """Finds the trace of an effect, or a trace known only from effects or postings because its runs left the log."""
    rows = await read.fetch(
        """
        select trace_id from payonce.effects where id::text = $1 and id = $2
        union select trace_id from payonce.effects where trace_id = $1
        union select trace_id from payonce.postings where trace_id = $1
        """,
        what,
        _parsed(what),
    )
    return [row["trace_id"] for row in rows]


async def _effects(read: Reads, trace_ids: Sequence[str]) -> list[Any]:
    return await read.fetch(
        f"""
        select id, kind, key, generation, state, vendor, vendor_ref, reason, asset, exponent, amount_minor, message_id,
            created_at, updated_at
        from payonce.effects where trace_id = any($1::text[]) order by created_at desc, id desc limit {EFFECTS_MAX}
        """,
        list(trace_ids),
    )


async def _effect_entries(read: Reads, effects: Sequence[Any]) -> tuple[list[TimelineEntry], bool]:
    by_id = {row["id"]: row for row in effects}
    rows = await read.fetch(
        f"""
        select effect_id, attempt, event, detail, vendor_ref, created_at from payonce.effect_attempts
        where effect_id = any($1::uuid[]) order by id desc limit {TRIES_MAX}
        """,
        list(by_id),
    )
    return [_try_entry(by_id[row["effect_id"]], row) for row in rows], len(rows) == TRIES_MAX


def _try_entry(effect: Any, row: Any) -> TimelineEntry:
    detail = ", ".join(part for part in (row["detail"], row["vendor_ref"] and f"reference {row['vendor_ref']}") if part)
    return TimelineEntry(
        row["created_at"],
        Kind.EFFECT,
        f"{effect['kind']} {effect['key']}:{effect['generation']}, attempt {row['attempt']}",
        row["event"],
        detail or None,
        _amount(effect),
        effect["message_id"],
        effect["id"],
    )


async def postings_about(read: Reads, references: Sequence[tuple[str, str]]) -> list[TimelineEntry]:
    """Postings by kind and id of their references, in any trace; the newest POSTINGS_MAX."""
    return await _postings(
        read,
        "(reference_kind, reference_id) in (select * from unnest($1::text[], $2::text[]))",
        [kind for kind, _ in references],
        [of for _, of in references],
    )


async def _postings(read: Reads, which: str, *arguments: Sequence[str]) -> list[TimelineEntry]:
    rows = await read.fetch(
        f"""
        select p.id, p.description, p.reference_kind, p.reference_id, p.posted_at,
            array_agg(a.path order by l.number) as paths, array_agg(a.asset order by l.number) as assets,
            array_agg(a.exponent order by l.number) as exponents, array_agg(l.minor::text order by l.number) as minors
        from (select * from payonce.postings where {which} order by id desc limit {POSTINGS_MAX}) p
        join payonce.posting_lines l on l.posting_id = p.id join payonce.accounts a on a.id = l.account_id
        group by p.id, p.description, p.reference_kind, p.reference_id, p.posted_at order by p.id
        """,
        *arguments,
    )
    return [_posting_entry(row) for row in rows]


def _posting_entry(row: Any) -> TimelineEntry:
    columns = zip(row["paths"], row["assets"], row["exponents"], row["minors"], strict=True)
    lines = [(path, Amount(int(minor), Asset(asset, exponent))) for path, asset, exponent, minor in columns]
    title = row["description"] or f"{row['reference_kind']} {row['reference_id']}"
    return TimelineEntry(row["posted_at"], Kind.POSTING, title, "posted", lines=lines)


async def _outbox(read: Reads, trace_ids: Sequence[str]) -> list[TimelineEntry]:
    """Entries that were delivered and have no durable copy left no row."""
    rows = await read.fetch(
        f"""
        select relay, id, queue, action, state, last_error, created_at from payonce.outbox
        where trace_id = any($1::text[]) order by created_at desc limit {ENTRIES_MAX}
        """,
        list(trace_ids),
    )
    return [
        TimelineEntry(
            row["created_at"],
            Kind.OUTBOX,
            f"{row['queue']} {row['action']} by {row['relay']}".replace("  ", " "),
            row["state"],
            row["last_error"],
            message_id=row["id"],
        )
        for row in rows
    ]


async def notes_about(read: Reads, references: Sequence[str]) -> list[TimelineEntry]:
    rows = await read.fetch(
        f"""
        select severity, location, text, actor, created_at from payonce.audit_log
        where reference = any($1::text[]) order by id desc limit {NOTES_MAX}
        """,
        list(references),
    )
    return [
        TimelineEntry(row["created_at"], Kind.NOTE, row["location"], row["severity"], row["text"], who=row["actor"])
        for row in rows
    ]


def _run_entry(entry: job_log.Entry) -> TimelineEntry:
    kind = Kind.MESSAGE if entry.live else Kind.RUN
    action = f"{entry.action} " if entry.action else ""
    title = f"{action}in {entry.queue}" + ("" if entry.live else f", run {entry.attempts}")
    return TimelineEntry(
        entry.at,
        kind,
        title,
        entry.status,
        entry.last_error or entry.info,
        message_id=entry.message_id,
        queue=entry.queue,
        who=entry.worker,
    )


def _moved(effects: Sequence[Any]) -> list[Amount]:
    totals: dict[Asset, Amount] = {}
    for row in effects:
        amount = _amount(row)
        if row["state"] == "performed" and amount is not None:
            totals[amount.asset] = totals.get(amount.asset, Amount.zero(amount.asset)) + amount
    return [totals[asset] for asset in sorted(totals, key=lambda asset: (asset.code, asset.exponent))]


def _amount(row: Any) -> Amount | None:
    if row["amount_minor"] is None:
        return None
    return Amount(int(row["amount_minor"]), Asset(row["asset"], row["exponent"]))


def _parsed(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None
