"""Console users with a role and a password, their sessions, API keys, and limits on password guessing."""

from payonce.engine.operators.model import LOCAL_OPERATOR, Person, Role
from payonce.engine.operators.sessions import LoginRefused, Session, SessionStatus, log_in, log_out, session_status
from payonce.engine.operators.store import PersonSummary, add_person, people, remove_person, set_password, set_role

__all__ = [
    "LOCAL_OPERATOR",
    "LoginRefused",
    "Person",
    "PersonSummary",
    "Role",
    "Session",
    "SessionStatus",
    "add_person",
    "log_in",
    "log_out",
    "people",
    "remove_person",
    "session_status",
    "set_password",
    "set_role",
]
