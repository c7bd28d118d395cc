"""Names that a JSON object has twice: readers take different values, so nobody can know which one was meant."""

import json
from typing import Final

SHOWN_MAX_CHARS: Final = 80


class _Repeated(Exception):
    pass


def repeated_name(document: bytes | str) -> str | None:
    """The first name that some object in the document has more than once, as it may be shown. None also for a document
    that is no JSON."""
    try:
        if isinstance(document, bytes):
            document = document.decode(json.detect_encoding(document), "surrogatepass")
        _DECODER.decode(document)
    except _Repeated as found:
        return ascii(str(found))[:SHOWN_MAX_CHARS]
    except (ValueError, RecursionError):
        return None
    return None


def _seen(pairs: list[tuple[str, object]]) -> None:
    names = set()
    for name, _ in pairs:
        if name in names:
            raise _Repeated(name)
        names.add(name)


_DECODER: Final = json.JSONDecoder(object_pairs_hook=_seen, parse_int=str, parse_float=str)
