"""The anchor: a file outside the database to which the leader appends each head of the chain.

Whoever owns the database can write a new chain; they cannot make it end in a hash that is already somewhere else.
"""

import asyncio
import os
import re
from datetime import datetime
from pathlib import Path
from typing import Final

from payonce.engine.audit.seals import Head, head
from payonce.engine.ledger.model import Reads
from payonce.kit.outcomes import Invalid, Unavailable

TAIL_BYTES: Final = 4_096
"""Enough for the last line, however it was cut."""
HEADS_MAX_BYTES: Final = 256 * 1024 * 1024
"""Of a file of heads that is read whole: two million seals."""

_HEAD: Final = re.compile(r"(\d{1,18}):([0-9a-fA-F]{64})")


def parsed_head(text: str) -> Head:
    found = _HEAD.fullmatch(text.strip())
    if found is None:
        raise Invalid(
            f"{text[:80]!r} is no head of the audit log; write NUMBER:HASH as `payonce audit head` prints it, "
            "or name a file with such lines"
        )
    return Head(int(found[1]), bytes.fromhex(found[2]))


def heads_in(path: Path) -> list[Head]:
    """Every head in a file, one to a line, what follows it on the line ignored. A line cut off by a crash is passed
    over: the head that it should have held was written again below it."""
    try:
        if path.stat().st_size > HEADS_MAX_BYTES:
            raise Invalid(f"{path} has more than {HEADS_MAX_BYTES:,} bytes; give its last lines in a file of their own")
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise Invalid(f"{path} cannot be read: {error.strerror}; name a file with heads, or a head itself") from error
    heads = _heads(text)
    if not heads:
        raise Invalid(f"{path} holds no head; its lines begin with NUMBER:HASH")
    return heads


async def anchor_head(read: Reads, path: Path) -> Head | None:
    """Appends the head unless the file has it; answers with what was appended. Raises Unavailable, and appends nothing,
    when the file knows a head that the chain does not: then history was rewritten, or an old backup was restored."""
    known = await asyncio.to_thread(_last_head, path)
    now = await head(read)
    if known is not None:
        await _check_chain_has(read, known, path)
        if known.number >= now.number:
            return None
    elif now.number == 0:
        return None
    at = await read.fetchval("select payonce.due_now()")
    await asyncio.to_thread(_append, path, now, at)
    return now


async def _check_chain_has(read: Reads, known: Head, path: Path) -> None:
    found = await read.fetchval("select hash from payonce.audit_seals where number = $1", known.number)
    if known.number and (found is None or bytes(found) != known.hash):
        raise Unavailable(
            f"the anchor {path} knows seal {known.number} as {known.hash.hex()[:16]}…, and the database "
            f"{'has no such seal' if found is None else 'has another one'}: the audit log was rewritten, or an older "
            f"backup was restored; look with `payonce audit verify --head {path}`, and if that is explained put the "
            "file away"
        )


def _last_head(path: Path) -> Head | None:
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - TAIL_BYTES))
            heads = _heads(file.read().decode(errors="replace"))
    except FileNotFoundError:
        return None
    return heads[-1] if heads else None


def _append(path: Path, now: Head, at: datetime) -> None:
    """On disk when it returns."""
    is_new = not path.exists()
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o640)
    try:
        size = os.fstat(descriptor).st_size
        # A line that a crash cut off must not swallow this one.
        cut_off = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
        os.write(descriptor, f"{chr(10) if cut_off else ''}{now} {at.isoformat()}\n".encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    if is_new:
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _heads(text: str) -> list[Head]:
    whole = [line.split(maxsplit=1)[0] for line in text.splitlines() if line.strip()]
    return [Head(int(found[1]), bytes.fromhex(found[2])) for word in whole if (found := _HEAD.fullmatch(word))]
