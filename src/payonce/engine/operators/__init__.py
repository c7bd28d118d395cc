"""Who may use the console: people with a role and a password, their sessions, and the bound on guessing."""

from payonce.engine.operators.model import LOCAL_OPERATOR, Person, Role
from payonce.engine.operators.sessions import NotAdmitted, Session, Standing, log_in, log_out, standing
from payonce.engine.operators.store import Listed, add_person, people, remove_person, set_password, set_role

__all__ = [
    "LOCAL_OPERATOR",
    "Listed",
    "NotAdmitted",
    "Person",
    "Role",
    "Session",
    "Standing",
    "add_person",
    "log_in",
    "log_out",
    "people",
    "remove_person",
    "set_password",
    "set_role",
    "standing",
]
