"""The audit log: appending notes and reading them page by page."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

from payonce.engine.database.connections import Connection
from payonce.engine.ledger.model import Reads
from payonce.engine.messages.model import clean_text
from payonce.kit.outcomes import Invalid
from payonce.kit.redact import redact

PAGE_NOTES: Final = 50
PAGE_NOTES_MAX: Final = 1_000


class Severity(StrEnum):
    INFO = "INFO"
    WARNING = "WARNING"
    ERROR = "ERROR"


@dataclass(frozen=True)
class Note:
    id: int
    at: datetime
    severity: Severity
    location: str
    reference: str
    text: str
    actor: str
    seal: int | None
    """The seal that covers the note; None for the newest notes."""


async def note(
    connection: Connection, location: str, reference: str, text: str, *, actor: str, severity: Severity = Severity.INFO
) -> None:
    """Appends one note, which exists if and only if the transaction commits. `location` names the part of the system
    (`brakes.freeze`), `reference` its subject (an effect's id, a vendor, a queue)."""
    await connection.execute(
        "insert into payonce.audit_log (severity, location, reference, text, actor) values ($1, $2, $3, $4, $5)",
        severity,
        location,
        clean_text(reference),
        clean_text(redact(text)),
        clean_text(actor),
    )


async def notes(
    read: Reads,
    *,
    reference: str | None = None,
    severity: Severity | None = None,
    actor: str | None = None,
    location: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    before: int | None = None,
    limit: int = PAGE_NOTES,
) -> list[Note]:
    """Newest first, from `since` to before `until`; `before` is the last id of the previous page. A `location` includes
    its sublocations: `brakes` includes `brakes.freeze`."""
    if not 1 <= limit <= PAGE_NOTES_MAX:
        raise Invalid(f"limit is {limit}; a page has 1 to {PAGE_NOTES_MAX} notes")
    rows = await read.fetch(
        """
        select l.id, l.created_at, l.severity, l.location, l.reference, l.text, l.actor, s.seal
        from (
            select * from payonce.audit_log
            where ($1::text is null or reference = $1)
              and ($2::text is null or severity = $2)
              and ($3::text is null or actor = $3)
              and created_at >= coalesce($4::timestamptz, '-infinity')
              and created_at < coalesce($5::timestamptz, 'infinity')
              and ($6::bigint is null or (created_at, id) <
                  (select created_at, id from payonce.audit_log where id = $6))
              and ($8::text is null or location = $8 or starts_with(location, $8 || '.'))
            order by created_at desc, id desc limit $7
        ) l left join payonce.audit_sealed s on s.note = l.id
        order by l.created_at desc, l.id desc
        """,
        reference,
        severity,
        actor,
        since,
        until,
        before,
        limit,
        location,
    )
    return [
        Note(
            row["id"],
            row["created_at"],
            Severity(row["severity"]),
            row["location"],
            row["reference"],
            row["text"],
            row["actor"],
            row["seal"],
        )
        for row in rows
    ]
