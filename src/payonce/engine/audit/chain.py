"""Shared verification of seal chains: links, heads stored elsewhere, and findings."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from payonce.engine.audit.seals import NO_HASH, NO_HEAD, Head
from payonce.engine.ledger import Finding

FINDINGS_MAX: Final = 100
"""Per kind; a hundred findings are enough to act on."""

WAY_OUT: Final = (
    "treat the database as tampered with: keep an unchanged copy, compare it with a backup and with heads stored "
    "elsewhere, and find out who could write as its owner"
)

Progress = Callable[[int, int], None]
"""Called with the number of seals verified so far and the total."""


@dataclass
class ChainWalk:
    """The state of a verification and its findings."""

    anchored: dict[int, bytes] = field(default_factory=dict)
    """Hashes of seals as stored elsewhere, by seal number."""
    seal_name: str = "seal"
    head: Head = NO_HEAD
    seals: int = 0
    findings: list[Finding] = field(default_factory=list)
    _counts: Counter[str] = field(default_factory=Counter)

    def anchor(self, heads: Iterable[Head]) -> int:
        """Adds heads stored elsewhere, to be compared with the chain; returns the number of distinct heads."""
        given = set(heads)
        for head in given:
            if head.number and self.anchored.setdefault(head.number, head.hash) != head.hash:
                self.find(
                    "contradicting head",
                    f"two of the given heads are of {self.seal_name} {head.number}, with different hashes",
                )
        return len(given)

    def find(self, kind: str, text: str) -> None:
        self._counts[kind] += 1
        if self._counts[kind] <= FINDINGS_MAX:
            self.findings.append(Finding(kind, text, WAY_OUT))

    def all_findings(self) -> tuple[Finding, ...]:
        more = {kind: count - FINDINGS_MAX for kind, count in self._counts.items() if count > FINDINGS_MAX}
        return (
            *self.findings,
            *(Finding(kind, f"and {count:,} more of these", WAY_OUT) for kind, count in more.items()),
        )

    def check_link(self, number: int, previous: bytes | None, seal_format: int, readable: int) -> None:
        """Checks that a seal follows its predecessor and has a format that this version reads."""
        if number != self.head.number + 1:
            self.find("missing seal", f"{self.seal_name}s {self.head.number + 1} to {number - 1} are gone")
        elif (previous or NO_HASH) != self.head.hash:
            self.find(
                "broken link",
                f"{self.seal_name} {number} follows another {self.seal_name} {self.head.number} than the one on record",
            )
        if seal_format != readable:
            self.find(
                "unreadable seal",
                f"{self.seal_name} {number} has format {seal_format}, but this version reads {readable}",
            )

    def pass_seal(self, number: int, hash_on_record: bytes) -> None:
        """Compares a seal with the head stored elsewhere, if there is one, and advances."""
        if self.anchored.get(number, hash_on_record) != hash_on_record:
            self.find(
                "rewritten history",
                f"{self.seal_name} {number} had the hash {self.anchored[number].hex()} when its head was stored "
                f"elsewhere, and has {hash_on_record.hex()} now",
            )
        self.head = Head(number, hash_on_record)
        self.seals += 1

    def check_end(self) -> None:
        for number in sorted(number for number in self.anchored if number > self.head.number):
            self.find(
                "cut chain",
                f"{self.seal_name} {number} existed when its head was stored elsewhere, but the chain now ends "
                f"with {self.seal_name} {self.head.number}",
            )
