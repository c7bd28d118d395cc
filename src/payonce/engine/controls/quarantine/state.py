"""The recorded quarantine: begun by a restore, a change of server or a person, and widened by a person."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from payonce.engine.ledger.model import Reads
from payonce.engine.messages.model import clean_text
from payonce.engine.messages.transaction import Tx
from payonce.kit.outcomes import Invalid
from payonce.kit.redact import redact

EARLIEST: Final = datetime(2020, 1, 1, tzinfo=UTC)
"""No statement is requested from before this; an earlier time is a typo."""


@dataclass(frozen=True)
class Quarantine:
    id: int
    reason: str
    lost_since: datetime
    """Events from this time on may have been lost."""
    began_at: datetime
    revision: int


async def open_quarantine(read: Reads) -> Quarantine | None:
    row = await read.fetchrow("select * from payonce.quarantines where released_at is null")
    return None if row is None else as_quarantine(row)


async def begin_quarantine(tx: Tx, reason: str, by: str, lost_since: datetime) -> Quarantine:
    """For losses that no server reports: a disk reset to a snapshot, or a vendor's contradicting report. Returns when
    every intent that began before has ended. An open quarantine is begun anew."""
    if not by.strip() or not reason.strip():
        raise Invalid("a quarantine needs a name and a reason; give both")
    _check_plausible(lost_since)
    now = await tx.fetchval("select payonce.due_now()")
    if lost_since > now:
        raise Invalid(f"lost_since is {lost_since.isoformat()}, which is in the future")
    await tx.execute(
        "select payonce.begin_quarantine($1, $2, $3)", clean_text(redact(reason)), clean_text(by), lost_since
    )
    begun = await open_quarantine(tx)
    assert begun is not None
    return begun


async def widen(tx: Tx, lost_since: datetime, by: str) -> Quarantine:
    """Extends the quarantine to an earlier time because a person knows that more may be lost than the database can
    tell."""
    _check_plausible(lost_since)
    row = await tx.fetchrow("select * from payonce.widen_quarantine($1, $2)", lost_since, clean_text(by))
    if row is None:
        known = await open_quarantine(tx)
        if known is None:
            raise Invalid("the database is not in quarantine")
        raise Invalid(
            f"{lost_since.isoformat()} is not earlier than {known.lost_since.isoformat()}, from which on "
            "everything is already looked for"
        )
    return as_quarantine(row)


def _check_plausible(lost_since: datetime) -> None:
    if lost_since < EARLIEST:
        raise Invalid(f"lost_since is {lost_since.isoformat()}; it must not be before {EARLIEST.isoformat()}")


def as_quarantine(row: Any) -> Quarantine:
    return Quarantine(**{name: row[name] for name in Quarantine.__dataclass_fields__})
