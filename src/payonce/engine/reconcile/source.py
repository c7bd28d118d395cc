"""Statement sources: the lines of a vendor's statement and where they come from."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from payonce.engine.effects.model import stored_reference
from payonce.engine.ledger.model import Account, Reads
from payonce.engine.messages.model import NAME_MAX_LENGTH
from payonce.kit.money import Amount, Asset
from payonce.kit.outcomes import Invalid

SLICE_DEFAULT_S = 86_400.0


class Flow(StrEnum):
    """The direction in which an effect of a kind moves our money at the vendor."""

    OUT = "out"
    IN = "in"

    def signed(self, amount: Amount) -> Amount:
        return -amount if self is Flow.OUT else amount

    def fits(self, amount: Amount) -> bool:
        """A line in the other direction is not of this kind, whatever its reference: others may write
        references too."""
        return amount.minor < 0 if self is Flow.OUT else amount.minor > 0


@dataclass(frozen=True)
class Entry:
    """One line of a vendor's statement."""

    vendor_ref: str
    """The vendor's own reference: the same as the effect's vendor_ref(), and unique among lines of this kind. An
    overlong one is shortened like the effect's."""
    reference: str | None
    """Our `key:generation`, where the vendor repeats it."""
    kind: str
    """The effect's kind, or any other word if it is no effect of ours."""
    amount: Amount
    """From our point of view: money that left us is negative."""
    at: datetime
    outcome: object | None = None
    """The result of perform(), if the statement contains it."""

    def __post_init__(self) -> None:
        # Stored like the effect's: a vendor's reference may be longer than the column and must still be found.
        object.__setattr__(self, "vendor_ref", stored_reference(self.vendor_ref))
        for what, text in (("vendor_ref", self.vendor_ref), ("kind", self.kind), ("reference", self.reference)):
            if text is not None and (not 1 <= len(text) <= NAME_MAX_LENGTH or "\x00" in text):
                raise Invalid(
                    f"{what} {text[:40]!r} of a statement line must have 1 to {NAME_MAX_LENGTH} characters and no NUL"
                )
        if self.at.tzinfo is None:
            raise Invalid(f"line {self.vendor_ref} of a statement is at {self.at}, which has no time zone")

    @property
    def key_and_generation(self) -> tuple[str, int] | None:
        return None if self.reference is None else split_reference(self.reference)


class StatementSource(Protocol):
    """A vendor's statement as read by the service that uses the vendor. Subclass it and implement `entries` and
    `expects`."""

    vendor: str
    kinds: Mapping[str, Flow]
    """The kinds of effects that must be on the statement. Effects without an amount are not looked for."""
    mirror: str
    """The account that mirrors our money at the vendor; its balance must equal the vendor's."""
    lag_s: float
    """How late the vendor may show an event."""
    every_s: float | None = None
    """The interval of automatic runs; None: only on request."""
    slice_s: float = SLICE_DEFAULT_S
    """The statement is requested in slices of this length, and an interrupted run continues with its slice. Automatic
    runs are cancelled after two minutes, so a slice must take less."""

    def entries(self, since: datetime, until: datetime) -> AsyncIterator[Entry]:
        """All lines from `since` to before `until`, in any order; read page by page from the vendor."""
        raise NotImplementedError

    async def expects(self, read: Reads, entry: Entry) -> bool:
        """Whether one of our business objects has the line's reference and this amount."""
        raise NotImplementedError

    async def balance(self) -> Sequence[Amount] | None:
        """The balance that the vendor reports, by asset; None if it reports none."""
        return None


def suspense_account(vendor: str) -> str:
    return f"suspense/{vendor}"


def split_reference(reference: str) -> tuple[str, int] | None:
    """Parses `key:generation`; None if it is anything else."""
    key, colon, generation = reference.rpartition(":")
    if not colon or not key or not generation.isascii() or not generation.isdecimal() or len(generation) > 9:
        return None
    return (key, int(generation)) if int(generation) > 0 else None


def check_source(source: StatementSource) -> None:
    """Validates a source at start-up, instead of failing at the first mismatch."""
    probe = Asset("XTS", 2)
    Account(source.mirror, probe)
    Account(suspense_account(source.vendor), probe)
    if not source.kinds:
        raise Invalid(f"the statement of {source.vendor} covers no kind of effect; name the kinds that must be on it")
    if strangers := [kind for kind in source.kinds if kind.partition(".")[0] != source.vendor]:
        raise Invalid(
            f"{', '.join(strangers)} cannot be on the statement of {source.vendor}: a kind begins with its vendor"
        )
    if source.lag_s < 0 or source.slice_s <= 0 or (source.every_s is not None and source.every_s <= 0):
        raise Invalid(
            f"the statement of {source.vendor} has lag_s {source.lag_s}, slice_s {source.slice_s} and every_s "
            f"{source.every_s}; the first must not be negative and the others must be positive"
        )
