"""Checks that every posting belongs to a business row. For each kind of reference, services declare a query for
existing ids."""

from collections.abc import Mapping
from typing import Any, Final

from payonce.engine.ledger.audit import FINDINGS_MAX, Finding
from payonce.engine.ledger.model import Reads

PAGE_REFERENCES: Final = 2_000

_FIRST: Final = ""
"""Sorts before every kind and id, which are never empty."""


async def check_references(kinds: Mapping[str, str], read: Reads) -> list[Finding]:
    """Checks all references, page by page. `kinds` has a query for each kind: of the ids in `$1::text[]` it returns the
    existing ones as text in its first column."""
    findings: list[Finding] = []
    kind = _FIRST
    while (kind := await _next_kind(read, kind)) != _FIRST and len(findings) <= FINDINGS_MAX:
        if kind in kinds:
            findings += await _check_kind(read, kind, kinds[kind])
        else:
            findings.append(await _undeclared(read, kind))
    return findings


async def _next_kind(read: Reads, after: str) -> str:
    found: str | None = await read.fetchval(
        "select min(reference_kind) from payonce.postings where reference_kind > $1", after
    )
    return found or _FIRST


async def _check_kind(read: Reads, kind: str, query: str) -> list[Finding]:
    findings: list[Finding] = []
    last = _FIRST
    while page := await _page(read, kind, last):
        ids = [row["reference_id"] for row in page]
        existing = {row[0] for row in await read.fetch(query, ids)}
        findings += [_missing(kind, row) for row in page if row["reference_id"] not in existing]
        if len(findings) > FINDINGS_MAX:
            break
        last = ids[-1]
    return findings


async def _page(read: Reads, kind: str, after: str) -> list[Any]:
    return await read.fetch(
        """
        select reference_id, count(*) as postings, min(id) as first from payonce.postings
        where reference_kind = $1 and reference_id > $2 group by reference_id order by reference_id limit $3
        """,
        kind,
        after,
        PAGE_REFERENCES,
    )


def _missing(kind: str, row: Any) -> Finding:
    others = f" and {row['postings'] - 1} more" if row["postings"] > 1 else ""
    return Finding(
        "posting without a business row",
        f"{kind} {row['reference_id']} has posting {row['first']}{others}, but does not exist",
        "find out who removed the row, or reverse the posting with another one",
    )


async def _undeclared(read: Reads, kind: str) -> Finding:
    count = await read.fetchval("select count(*) from payonce.postings where reference_kind = $1", kind)
    return Finding(
        "posting of an unknown kind",
        f"{count} postings refer to a {kind!r}, a kind that no service declares",
        "declare the kind in the service's references, or find out who posts with it",
    )
