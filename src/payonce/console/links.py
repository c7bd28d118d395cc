"""URLs of the console."""

from typing import Any, Final
from urllib.parse import quote, urlencode

ROOT: Final = "/console"
"""Where the console is mounted."""


def link(path: str, **query: Any) -> str:
    """A URL of the console; parameters that are None or empty are omitted."""
    said = {name: value for name, value in query.items() if value not in (None, "")}
    return ROOT + quote(path or "/", safe="/:@") + (f"?{urlencode(said)}" if said else "")
