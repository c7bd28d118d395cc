"""Appending to the audit log."""

from enum import StrEnum

from payonce.engine.database import Connection
from payonce.engine.model import clean_text
from payonce.kit.redact import redact


class Severity(StrEnum):
    INFO = "INFO"
    WARNING = "WARNING"
    ERROR = "ERROR"


async def note(
    connection: Connection, location: str, reference: str, text: str, *, actor: str, severity: Severity = Severity.INFO
) -> None:
    """One line, which is there if and only if the transaction commits. `location` says what part of the system speaks
    (`brakes.freeze`), `reference` what it is about (an effect's id, a vendor, a queue)."""
    await connection.execute(
        "insert into payonce.audit_log (severity, location, reference, text, actor) values ($1, $2, $3, $4, $5)",
        severity, location, clean_text(reference), clean_text(redact(text)), clean_text(actor),
    )  # fmt: skip
