"""Addresses within the console."""

from typing import Any, Final
from urllib.parse import quote, urlencode

ROOT: Final = "/console"
"""Where the site is mounted."""


def link(path: str, **query: Any) -> str:
    """An address of this site; values that are None or empty are left out."""
    said = {name: value for name, value in query.items() if value not in (None, "")}
    return ROOT + quote(path or "/", safe="/:@") + (f"?{urlencode(said)}" if said else "")
