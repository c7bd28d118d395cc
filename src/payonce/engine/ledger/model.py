"""Accounts, lines and postings, validated before they are sent."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, NewType, Protocol

from payonce.kit.money import Amount, Asset
from payonce.kit.outcomes import Invalid

LINES_MAX: Final = 1_000
PATH_MAX_LENGTH: Final = 200
KEY_MAX_LENGTH: Final = 200
KIND_MAX_LENGTH: Final = 100
TEXT_MAX_LENGTH: Final = 1_000

PostingId = NewType("PostingId", int)


class Reads(Protocol):
    """Read access: a Reader, or a Tx, which also sees its own postings."""

    async def fetch(self, sql: str, /, *arguments: Any) -> list[Any]: ...

    async def fetchrow(self, sql: str, /, *arguments: Any) -> Any: ...

    async def fetchval(self, sql: str, /, *arguments: Any) -> Any: ...


class Overdrawn(Invalid):
    """A guarded account would have left its limits. Nothing was written, and the transaction must be rolled back."""

    def __init__(self, account: "Account", balance: Amount, change: Amount, limit: Amount) -> None:
        direction = "below" if change.minor < 0 else "above"
        super().__init__(
            f"account {account.path} holds {balance} and cannot be changed by {change}: "
            f"its balance may not go {direction} {limit}"
        )
        self.account = account
        self.balance = balance
        self.change = change
        self.limit = limit


@dataclass(frozen=True, slots=True)
class Account:
    """A path, such as `transfers/at_bank`, in one asset."""

    path: str
    asset: Asset

    def __post_init__(self) -> None:
        if not isinstance(self.path, str) or len(self.path) > PATH_MAX_LENGTH or not _PATH.fullmatch(self.path):
            raise Invalid(
                f"{str(self.path)[:80]!r} is not an account path: names of letters, digits and _ . : @ -, joined "
                f"by /, at most {PATH_MAX_LENGTH} characters, such as transfers/at_bank"
            )

    def __str__(self) -> str:
        return f"{self.path} {self.asset}"


@dataclass(frozen=True, slots=True)
class Line:
    """Adds to the account when positive, takes from it when negative. The amount determines the asset of the
    account."""

    path: str
    amount: Amount

    def __post_init__(self) -> None:
        Account(self.path, self.amount.asset)
        if not self.amount:
            raise Invalid(f"the line for {self.path} moves nothing: leave it out")


@dataclass(frozen=True, slots=True)
class Reference:
    """The business object that a posting belongs to."""

    kind: str
    id: str

    def __post_init__(self) -> None:
        _check_text("kind of a reference", self.kind, KIND_MAX_LENGTH)
        _check_text("id of a reference", self.id, KEY_MAX_LENGTH)


@dataclass(frozen=True, slots=True)
class Posting:
    """Lines that add up to zero in every asset, written once per key."""

    key: str
    reference: Reference
    lines: tuple[Line, ...]
    text: str = ""
    trace_id: str | None = None
    """Defaults to the trace of the current message or request."""

    def __post_init__(self) -> None:
        _check_text("key of a posting", self.key, KEY_MAX_LENGTH)
        if len(self.text) > TEXT_MAX_LENGTH or "\x00" in self.text:
            raise Invalid(f"the text of posting {self.key} must have at most {TEXT_MAX_LENGTH} characters and no NUL")
        if not 2 <= len(self.lines) <= LINES_MAX:
            raise Invalid(
                f"posting {self.key} has {len(self.lines)} lines; money comes from one account and goes to "
                f"another, so it needs 2 to {LINES_MAX}"
            )
        if excess := [str(total) for total in _totals(self.lines) if total]:
            raise Invalid(
                f"posting {self.key} does not add up to zero: it has {' and '.join(excess)} too much; add the "
                "missing line"
            )


def moved(amount: Amount, source: str, target: str) -> tuple[Line, Line]:
    """The lines of the simplest posting, from one account to another."""
    return Line(source, -amount), Line(target, amount)


def _totals(lines: Iterable[Line]) -> list[Amount]:
    totals: dict[Asset, Amount] = {}
    for line in lines:
        asset = line.amount.asset
        totals[asset] = totals[asset] + line.amount if asset in totals else line.amount
    return list(totals.values())


def _check_text(what: str, text: str, length_max: int) -> None:
    if not isinstance(text, str) or not 1 <= len(text) <= length_max or "\x00" in text:
        raise Invalid(f"{str(text)[:40]!r} is not a {what}: it must have 1 to {length_max} characters and no NUL")


_PATH: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@-]*(/[A-Za-z0-9_][A-Za-z0-9_.:@-]*)*")
