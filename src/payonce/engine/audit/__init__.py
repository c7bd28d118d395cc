"""The audit log: who did what, written in the transaction that it tells of."""

from payonce.engine.audit.log import Severity, note

__all__ = ["Severity", "note"]
