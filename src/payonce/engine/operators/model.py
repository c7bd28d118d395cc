"""People and the roles that determine what they may do."""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from payonce.kit.outcomes import Invalid

NAME_MAX_LENGTH: Final = 100
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._@+-]*")


class Role(StrEnum):
    """Each role includes those before it."""

    VIEWER = "viewer"
    """Reads."""
    OPERATOR = "operator"
    """Makes changes: pauses, redrives, answers, freezes."""
    APPROVER = "approver"
    """Also approves requests of others, as the second person."""

    def may(self, needed: "Role") -> bool:
        order = list(Role)
        return order.index(self) >= order.index(needed)


@dataclass(frozen=True)
class Person:
    name: str
    role: Role


LOCAL_OPERATOR: Final = Person("operator@localhost", Role.APPROVER)
"""The local user of this machine, as long as nobody has a password."""


def checked_name(text: str) -> str:
    name = text.strip().lower()
    if not _NAME.fullmatch(name) or len(name) > NAME_MAX_LENGTH:
        raise Invalid(
            f"the name {text[:40]!r} must have 1 to {NAME_MAX_LENGTH} letters, digits, '.', '_', '@', '+' or '-', "
            "and begin with a letter or digit"
        )
    if name == LOCAL_OPERATOR.name:
        raise Invalid(f"{name} is reserved for the local user of this machine; choose another name")
    return name


def checked_role(text: str) -> Role:
    try:
        return Role(text.strip().lower())
    except ValueError:
        raise Invalid(f"there is no role {text[:40]!r}; the roles are {', '.join(Role)}") from None
