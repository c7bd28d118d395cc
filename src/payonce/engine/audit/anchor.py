"""The anchor: a file outside the database to which the leader appends the heads of both chains whenever one has grown.

The owner of the database can write a new chain, but cannot make it end in a hash that is already stored elsewhere.
"""

import asyncio
import os
import re
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from payonce.engine.audit.ledger_seals import ledger_head
from payonce.engine.audit.seals import NO_HEAD, Head, head
from payonce.engine.ledger.model import Reads
from payonce.kit.outcomes import Invalid, Unavailable

TAIL_BYTES: Final = 4_096
"""Enough for the last line, even if it was cut off."""
HEADS_MAX_BYTES: Final = 32 * 1024 * 1024
"""Read from the end of a heads file. Each head proves everything before it, so older lines add nothing."""
LEDGER: Final = "ledger:"
"""Prefix of a head of the ledger's chain. A head without a prefix belongs to the audit log's chain."""

_HEAD: Final = re.compile(r"(\d{1,18}):([0-9a-fA-F]{64})")


@dataclass(frozen=True)
class Heads:
    """Heads of the audit log's chain and of the ledger's chain."""

    log: tuple[Head, ...] = ()
    ledger: tuple[Head, ...] = ()

    def __add__(self, other: "Heads") -> "Heads":
        return Heads(self.log + other.log, self.ledger + other.ledger)


async def heads_now(read: Reads) -> Heads:
    return Heads((await head(read),), (await ledger_head(read),))


def line_of(now: Heads) -> str:
    """The line as the anchor stores it and `parsed_heads` reads it. The ledger's head is left out while nothing is
    sealed."""
    return " ".join([*map(str, now.log), *(f"{LEDGER}{head}" for head in now.ledger if head.number)])


def parsed_heads(text: str) -> Heads:
    """Parses what `payonce audit head` printed: the head of the log, of the ledger, or both."""
    found = _heads(text)
    if len(found.log) + len(found.ledger) != len(text.split()) or not text.strip():
        raise Invalid(
            f"{text[:80]!r} is not a head; write NUMBER:HASH or ledger:NUMBER:HASH as printed by `payonce audit "
            "head`, or name a file with such lines"
        )
    return found


def heads_in(path: Path) -> Heads:
    """The heads in a file; other text on a line is ignored. A line cut off by a crash is skipped: its head was written
    again below it."""
    try:
        found = _heads(_end_of(path, HEADS_MAX_BYTES))
    except OSError as error:
        raise Invalid(f"{path} cannot be read: {error.strerror}; name a file with heads, or a head itself") from error
    if not found.log and not found.ledger:
        raise Invalid(f"{path} contains no head; its lines begin with NUMBER:HASH")
    return found


async def anchor_heads(read: Reads, path: Path) -> Heads | None:
    """Appends the heads unless the file already has them; returns what was appended. Raises Unavailable, and appends
    nothing, when the file has a head that the chain does not have: history was rewritten, or an older backup was
    restored."""
    known = await asyncio.to_thread(_last_heads, path)
    now = await heads_now(read)
    log_is_known = await _is_known(read, "audit", known.log, now.log[0], path)
    ledger_is_known = await _is_known(read, "ledger", known.ledger, now.ledger[0], path)
    if log_is_known and ledger_is_known:
        return None
    at = await read.fetchval("select payonce.due_now()")
    await asyncio.to_thread(_append, path, now, at)
    return now


async def _is_known(read: Reads, chain: str, known: tuple[Head, ...], now: Head, path: Path) -> bool:
    last = known[-1] if known else NO_HEAD
    if last.number:
        found = await read.fetchval(f"select hash from payonce.{chain}_seals where number = $1", last.number)
        if found is None or bytes(found) != last.hash:
            raise Unavailable(
                f"the anchor {path} has {chain} seal {last.number} as {last.hash.hex()[:16]}…, but the database "
                f"{'has no such seal' if found is None else 'has another one'}: the {_SEALED[chain]} was "
                f"rewritten, or an older backup was restored; check with `payonce audit verify --head {path}`, "
                "and move the file away once that is explained"
            )
    return now.number <= last.number


_SEALED: Final = {"audit": "audit log", "ledger": "ledger"}


def _last_heads(path: Path) -> Heads:
    try:
        return _heads(_end_of(path, TAIL_BYTES))
    except FileNotFoundError:
        return Heads()


def _end_of(path: Path, bytes_max: int) -> str:
    with path.open("rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - bytes_max))
        return file.read().decode(errors="replace")


def _append(path: Path, now: Heads, at: datetime) -> None:
    """Returns once the line is on disk."""
    is_new = not path.exists()
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o640)
    try:
        size = os.fstat(descriptor).st_size
        # This line must not be joined to one that a crash cut off.
        cut_off = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
        os.write(descriptor, f"{chr(10) if cut_off else ''}{line_of(now)} {at.isoformat()}\n".encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    if is_new:
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _heads(text: str) -> Heads:
    words = [word for line in text.splitlines() for word in line.split()]
    return Heads(
        tuple(found for word in words if (found := _head(word)) is not None),
        tuple(
            found
            for word in words
            if word.startswith(LEDGER) and (found := _head(word.removeprefix(LEDGER))) is not None
        ),
    )


def _head(word: str) -> Head | None:
    found = _HEAD.fullmatch(word)
    return None if found is None else Head(int(found[1]), bytes.fromhex(found[2]))
