"""Whether what a person was shown is still what would be changed: one short text for a set of ids."""

import hashlib
from collections.abc import Iterable
from uuid import UUID


def fingerprint(ids: Iterable[UUID]) -> str:
    """The same for the same ids in any order."""
    return hashlib.sha256(b"".join(sorted(each.bytes for each in ids))).hexdigest()
