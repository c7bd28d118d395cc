"""Detects duplicate names in JSON objects: readers disagree about which value counts."""

import json
from typing import Final

SHOWN_MAX_CHARS: Final = 80


class _DuplicateName(Exception):
    pass


def repeated_name(document: bytes | str) -> str | None:
    """The first duplicate name in a document, for display. None if there is none, or the document is not JSON."""
    try:
        if isinstance(document, bytes):
            document = document.decode(json.detect_encoding(document), "surrogatepass")
        _DECODER.decode(document)
    except _DuplicateName as found:
        return ascii(str(found))[:SHOWN_MAX_CHARS]
    except (ValueError, RecursionError):
        return None
    return None


def _check_names(pairs: list[tuple[str, object]]) -> None:
    names = set()
    for name, _ in pairs:
        if name in names:
            raise _DuplicateName(name)
        names.add(name)


_DECODER: Final = json.JSONDecoder(object_pairs_hook=_check_names, parse_int=str, parse_float=str)
