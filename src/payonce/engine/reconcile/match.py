"""Matches one statement line with our effects: known, found, adopted, or unmatched."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from payonce.engine.audit import Severity, note
from payonce.engine.effects.adopt import adopt, contradict, find_on_statement
from payonce.engine.effects.declaration import encode, encode_stated
from payonce.engine.effects.model import Cause, EffectRecord, State
from payonce.engine.effects.store import as_stored
from payonce.engine.messages.transaction import Reader, Tx
from payonce.engine.reconcile.source import Entry, Flow, StatementSource, split_reference
from payonce.engine.reconcile.suspense import Direction, Item, ItemState, Subject, hold_in_suspense, settle_missing
from payonce.kit.money import Amount, Asset
from payonce.kit.outcomes import Invalid, Stale


@dataclass(frozen=True)
class Line:
    """A recorded statement line."""

    entry: Entry
    outcome: str | None
    news: bool
    """Not seen before."""


@dataclass(frozen=True)
class Candidate:
    """An effect that a line may refer to."""

    stored: EffectRecord
    amount: Amount | None


async def match_entry(tx: Tx, source: StatementSource, entry: Entry, run_id: UUID, by: str) -> Counter[str]:
    """Records a line, applies it to our effects and ledger, and counts the changes."""
    line = await _store_line(tx, source.vendor, entry, run_id, by)
    return await _match(tx, source, line, run_id, by)


async def match_again(tx: Tx, source: StatementSource, item: Item, run_id: UUID, by: str) -> Counter[str]:
    """Matches a line again that nothing explained before; a matching object may exist by now."""
    subject = item.subject
    row = await tx.fetchrow(
        "select * from payonce.statement_lines where vendor = $1 and kind = $2 and vendor_ref = $3 for update",
        subject.vendor,
        subject.kind,
        subject.vendor_ref,
    )
    return await _match(tx, source, _line(row), run_id, by)


async def assign(tx: Tx, source: StatementSource, item_id: UUID, reference: str, outcome: object, by: str) -> None:
    """Assigns a line to an effect, `key:generation`, by a person's decision. An effect that is not on record is
    adopted, with the outcome for its handler."""
    if split_reference(reference) is None:
        raise Invalid(f"{reference[:80]!r} is not a reference of an effect: write key:generation, such as order-17:1")
    row = await tx.fetchrow(
        """
        select l.*, u.direction as item_direction, u.state as item_state
        from payonce.unmatched u join payonce.statement_lines l using (vendor, kind, vendor_ref)
        where u.id = $1 for update
        """,
        item_id,
    )
    if row is None or row["vendor"] != source.vendor or row["item_direction"] != Direction.THEIRS:
        raise Invalid(f"{item_id} is not an unmatched line of {source.vendor}; see: payonce reconcile list")
    if row["item_state"] != ItemState.OPEN:
        raise Stale(f"unmatched item {item_id} is now {row['item_state']}; nothing was changed")
    what = f"the outcome of {reference}"
    document = row["outcome"] if outcome is None else encode_stated(outcome, row["kind"], what)
    await tx.execute(
        """
        update payonce.statement_lines set reference = $4, outcome = $5::text::json
        where vendor = $1 and kind = $2 and vendor_ref = $3
        """,
        row["vendor"],
        row["kind"],
        row["vendor_ref"],
        reference,
        document,
    )
    entry = _entry({**row, "reference": reference})
    await note(tx.connection, "reconcile.assign", str(item_id), f"{entry.vendor_ref} is {reference}", actor=by)
    changed = await _match(tx, source, Line(entry, document, news=False), item_id, by, expected=True)
    if not changed["explained"] and not changed["adopted"]:
        raise Invalid(
            f"line {entry.vendor_ref} cannot be {reference}: that effect goes in the other direction, is in "
            "another asset, ended otherwise or has a line of its own"
        )


async def matched_lines(read: Reader, vendor: str, entries: Sequence[Entry]) -> set[tuple[str, str]]:
    """Lines, by kind and vendor reference, that are recorded unchanged and matched, so that nothing is to be done."""
    rows = await read.fetch(
        """
        select l.kind, l.vendor_ref
        from unnest($2::text[], $3::text[], $4::text[], $5::text[], $6::smallint[], $7::numeric[])
            as told (kind, vendor_ref, reference, asset, exponent, amount_minor)
        join payonce.statement_lines l on l.vendor = $1 and l.kind = told.kind and l.vendor_ref = told.vendor_ref
        join payonce.effects e on e.id = l.effect_id and e.state = 'performed'
        where l.reference is not distinct from told.reference and l.amount_minor = told.amount_minor
          and l.asset = told.asset and l.exponent = told.exponent
        """,
        vendor,
        [entry.kind for entry in entries],
        [entry.vendor_ref for entry in entries],
        [entry.reference for entry in entries],
        [entry.amount.asset.code for entry in entries],
        [entry.amount.asset.exponent for entry in entries],
        [entry.amount.minor for entry in entries],
    )
    return {(row["kind"], row["vendor_ref"]) for row in rows}


async def _match(
    tx: Tx, source: StatementSource, line: Line, run_id: UUID, by: str, *, expected: bool = False
) -> Counter[str]:
    entry, changed = line.entry, Counter[str]()
    flow = source.kinds.get(entry.kind)
    explained: Candidate | None = None
    if flow is not None and flow.fits(entry.amount):
        candidates = await _candidates(tx, entry)
        if candidates:
            explained = await _match_effect(tx, line, candidates, by, changed)
        elif entry.key_and_generation is not None and (expected or await source.expects(tx, entry)):
            explained = await _adopt(tx, line, run_id, by, changed)
    changed["explained"] += explained is not None
    await tx.execute(
        "update payonce.statement_lines set effect_id = $4 where vendor = $1 and kind = $2 and vendor_ref = $3",
        source.vendor,
        entry.kind,
        entry.vendor_ref,
        None if explained is None else explained.stored.id,
    )
    await _update_suspense(tx, source, line, flow, explained, by, changed)
    return changed


async def _update_suspense(
    tx: Tx,
    source: StatementSource,
    line: Line,
    flow: Flow | None,
    explained: Candidate | None,
    by: str,
    changed: Counter[str],
) -> None:
    """Puts into suspense what the effect does not explain of the line, and releases what it does."""
    entry, effect_id = line.entry, None if explained is None else explained.stored.id
    subject = Subject(source.vendor, source.mirror, entry.kind, entry.vendor_ref, entry.reference, effect_id, entry.at)
    if explained is None:
        if await hold_in_suspense(tx, subject, Direction.THEIRS, entry.amount, by):
            changed["unmatched"] += 1
        return
    assert flow is not None
    ours = entry.amount if explained.amount is None else flow.signed(explained.amount)
    difference = entry.amount - ours
    if await hold_in_suspense(tx, subject, Direction.DIFFERENCE, difference, by):
        changed["unmatched" if difference else "settled"] += 1
    if await settle_missing(tx, explained.stored.id, by, "the statement shows it after all"):
        changed["settled"] += 1


async def _match_effect(
    tx: Tx, line: Line, candidates: Sequence[Candidate], by: str, changed: Counter[str]
) -> Candidate | None:
    """Applies the line to an effect on record. None when the effect does not explain the line."""
    entry = line.entry
    named = [each for each in candidates if each.stored.vendor_ref == entry.vendor_ref]
    chosen, *others = [*named, *(each for each in candidates if each not in named)]
    stored = chosen.stored
    for other in others if line.news else ():
        await _open_contradiction(
            tx,
            other.stored,
            f"the vendor gave it the reference {entry.vendor_ref}, which another effect has too",
            by,
            Cause.SAME_REFERENCE,
        )
    if await _is_taken(tx, line, stored) or stored.vendor_ref not in (None, entry.vendor_ref):
        if line.news:
            await _open_contradiction(tx, stored, f"the vendor shows it twice, also as {entry.vendor_ref}", by)
        return None
    if chosen.amount is not None and chosen.amount.asset != entry.amount.asset:
        return None
    if stored.state is State.PERFORMED:
        return chosen
    after = await find_on_statement(tx.connection, stored, entry.vendor_ref, line.outcome, news=line.news)
    if after.state is not stored.state:
        text = f"{after.label} was {stored.state} and is {after.state}: line {entry.vendor_ref} shows it"
        await note(tx.connection, "reconcile.found", str(after.id), text, actor=by)
    if after.state is not State.PERFORMED:
        return None
    changed["found"] += 1
    return Candidate(after, chosen.amount)


async def _open_contradiction(
    tx: Tx, stored: EffectRecord, why: str, by: str, cause: Cause = Cause.CONTRADICTION
) -> None:
    await contradict(tx.connection, stored, why, cause)
    text = f"{stored.label}: {why}"
    await note(tx.connection, "reconcile.contradiction", str(stored.id), text, actor=by, severity=Severity.ERROR)


async def _adopt(tx: Tx, line: Line, run_id: UUID, by: str, changed: Counter[str]) -> Candidate | None:
    entry = line.entry
    assert entry.key_and_generation is not None
    key, generation = entry.key_and_generation
    adopted = await adopt(
        tx.connection,
        kind=entry.kind,
        key=key,
        generation=generation,
        amount=entry.amount,
        at=entry.at,
        vendor_ref=entry.vendor_ref,
        outcome=line.outcome,
        run_id=run_id,
    )
    if adopted is None:
        # A run began it at this very moment; the next match finds it on record.
        return None
    changed["adopted"] += 1
    text = f"{adopted.label}, {entry.amount} on {entry.at.isoformat()}, happened but was not on record"
    await note(tx.connection, "reconcile.adopt", str(adopted.id), text, actor=by, severity=Severity.WARNING)
    return Candidate(adopted, abs(entry.amount)) if adopted.state is State.PERFORMED else None


async def _candidates(tx: Tx, entry: Entry) -> list[Candidate]:
    key, generation = entry.key_and_generation or (None, None)
    rows = await tx.fetch(
        """
        select *, payonce.due_now() as now from payonce.effects
        where kind = $1 and (vendor_ref = $2 or (key = $3 and generation = $4)) order by id for update
        """,
        entry.kind,
        entry.vendor_ref,
        key,
        generation,
    )
    return [Candidate(as_stored(row), _amount_of(row)) for row in rows]


async def _is_taken(tx: Tx, line: Line, stored: EffectRecord) -> bool:
    """Whether another line is already explained by this effect: then the vendor did it twice."""
    return bool(
        await tx.fetchval(
            """
            select exists (
                select from payonce.statement_lines where effect_id = $1 and (kind, vendor_ref) <> ($2, $3))
            """,
            stored.id,
            line.entry.kind,
            line.entry.vendor_ref,
        )
    )


async def _store_line(tx: Tx, vendor: str, entry: Entry, run_id: UUID, by: str) -> Line:
    """Records the line, or the vendor's changes to it. A person's assignment stays, even if the vendor repeats the line
    without a reference."""
    outcome = None if entry.outcome is None else encode(entry.outcome, Any, f"the outcome of line {entry.vendor_ref}")
    columns = (
        vendor,
        entry.kind,
        entry.vendor_ref,
        entry.reference,
        entry.amount.asset.code,
        entry.amount.asset.exponent,
        entry.amount.minor,
        entry.at,
        outcome,
    )
    known = await tx.fetchrow(
        "select * from payonce.statement_lines where vendor = $1 and kind = $2 and vendor_ref = $3 for update",
        *columns[:3],
    )
    if known is None:
        row = await tx.fetchrow(
            """
            insert into payonce.statement_lines (
                vendor, kind, vendor_ref, reference, asset, exponent, amount_minor, at, outcome, run_id)
            values ($1, $2, $3, $4, $5, $6, $7, $8, $9::text::json, $10) returning *
            """,
            *columns,
            run_id,
        )
        return _line(row, news=True)
    row = await tx.fetchrow(
        """
        update payonce.statement_lines
        set reference = coalesce($4, reference), asset = $5, exponent = $6, amount_minor = $7, at = $8,
            outcome = coalesce($9::text::json, outcome)
        where vendor = $1 and kind = $2 and vendor_ref = $3 returning *
        """,
        *columns,
    )
    if (before := _amount_of(known)) != entry.amount:
        text = f"the vendor changed it from {before} to {entry.amount}"
        await note(
            tx.connection,
            "reconcile.amended",
            f"{entry.kind} {entry.vendor_ref}",
            text,
            actor=by,
            severity=Severity.WARNING,
        )
    return _line(row)


def _line(row: Any, *, news: bool = False) -> Line:
    return Line(_entry(row), row["outcome"], news)


def _entry(row: Any) -> Entry:
    amount, at = _amount_of(row), row["at"]
    assert amount is not None and isinstance(at, datetime)
    return Entry(row["vendor_ref"], row["reference"], row["kind"], amount, at)


def _amount_of(row: Any) -> Amount | None:
    if row["amount_minor"] is None:
        return None
    return Amount(int(row["amount_minor"]), Asset(row["asset"], row["exponent"]))
