"""Fingerprints of sets of ids, to verify that a change affects exactly what a person was shown."""

import hashlib
from collections.abc import Iterable
from uuid import UUID


def fingerprint(ids: Iterable[UUID]) -> str:
    """The same for the same ids in any order."""
    return hashlib.sha256(b"".join(sorted(each.bytes for each in ids))).hexdigest()
