"""Parsers of form fields and query parameters. Invalid names the value and the remedy."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

from payonce.engine.messages.model import NAME_MAX_LENGTH
from payonce.kit.outcomes import Invalid

REASON_MAX_LENGTH: Final = 1_000
PAGE_ROWS: Final = 50
"""Rows per page of a list."""


def text_of(given: Mapping[str, Any], name: str) -> str:
    """The field as text; empty if it is missing or a file."""
    value = given.get(name, "")
    return value.strip() if isinstance(value, str) else ""


def name_of(given: Mapping[str, Any], name: str) -> str | None:
    """A name or id to filter by; None if the field is empty."""
    text = text_of(given, name)
    if "\x00" in text or len(text) > NAME_MAX_LENGTH:
        raise Invalid(f"{name} is {text[:40]!r}; it must have at most {NAME_MAX_LENGTH} characters, without NUL")
    return text or None


def reason_of(given: Mapping[str, Any], name: str = "why") -> str:
    text = text_of(given, name)
    if not text or len(text) > REASON_MAX_LENGTH:
        raise Invalid(f"the reason has {len(text)} characters; give one of 1 to {REASON_MAX_LENGTH:,} characters")
    return text


def choice_of(given: Mapping[str, Any], name: str, known: tuple[str, ...], unset: str) -> str:
    text = text_of(given, name) or unset
    if text not in known:
        raise Invalid(f"{name} is {text[:40]!r}; it is one of: {', '.join(known)}")
    return text


def id_of(given: Mapping[str, Any], name: str) -> UUID | None:
    text = text_of(given, name)
    if not text:
        return None
    try:
        return UUID(text)
    except ValueError:
        raise Invalid(f"{name} is {text[:60]!r}, which is not an id; copy one from a list") from None


def number_of(given: Mapping[str, Any], name: str) -> int | None:
    text = text_of(given, name)
    if not text:
        return None
    if not re.fullmatch(r"[0-9]{1,18}", text, re.ASCII):
        raise Invalid(f"{name} is {text[:40]!r}; it must be a whole number")
    return int(text)


def moment_of(given: Mapping[str, Any], name: str) -> datetime | None:
    """A time as browsers send it; without an offset it is UTC, like all times on the pages."""
    text = text_of(given, name)
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        raise Invalid(f"{name} is {text[:60]!r}; write a time such as 2026-01-31T12:00") from None
