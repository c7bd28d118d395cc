"""The states of an effect, and the pure decisions: what to do with a recorded effect, and which state an outcome leads
to."""

import hashlib
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

import msgspec

from payonce.engine.effects.declaration import Blind, Findable, Harmless, Keyed, Rebroadcast, Safety
from payonce.engine.messages.model import NAME_MAX_LENGTH
from payonce.kit.money import Amount, Asset

REVIEW_LOOK_S: Final = 300.0
"""How often a message checks whether a person has answered."""
VENDOR_REF_MAX_LENGTH: Final = NAME_MAX_LENGTH
"""The same limit as for a statement line. Together with the longest kind it fits into an index row."""


class State(StrEnum):
    INTENDED = "intended"
    """On record and being sent, or provably not sent and free to be sent."""
    PERFORMED = "performed"
    REFUSED = "refused"
    UNKNOWN = "unknown"
    REVIEW = "review"
    """A person decides."""
    ABANDONED = "abandoned"
    """It did not happen or does not matter, and is not sent again."""


TRANSITIONS: Final[dict[State, frozenset[State]]] = {
    State.INTENDED: frozenset({State.PERFORMED, State.REFUSED, State.UNKNOWN, State.REVIEW, State.ABANDONED}),
    State.UNKNOWN: frozenset({State.PERFORMED, State.REFUSED, State.REVIEW, State.ABANDONED, State.INTENDED}),
    State.REVIEW: frozenset({State.PERFORMED, State.ABANDONED, State.UNKNOWN, State.INTENDED}),
    State.PERFORMED: frozenset({State.REVIEW}),
    State.REFUSED: frozenset({State.REVIEW}),
    State.ABANDONED: frozenset({State.REVIEW}),
}
"""Back to INTENDED only after the vendor's fence and DidNot, or by a person. A contradiction reopens an ended effect.
"""

OPEN: Final = frozenset({State.INTENDED, State.UNKNOWN, State.REVIEW})
UNDONE: Final = frozenset({State.REFUSED, State.ABANDONED})
"""It ended without happening: the next generation may go out."""


class Event(StrEnum):
    """One row of effect_attempts."""

    STARTED = "started"
    PERFORMED = "performed"
    REFUSED = "refused"
    NOT_SENT = "not_sent"
    UNKNOWN = "unknown"
    FOUND = "found"
    DID_NOT = "did_not"
    CANNOT_TELL = "cannot_tell"
    FENCED = "fenced"
    ABANDONED = "abandoned"
    GAVE_UP = "gave_up"
    ANSWERED = "answered"


class Cause(StrEnum):
    """Why a person must decide."""

    BLIND = "blind"
    KEY_EXPIRED = "key_expired"
    NO_FENCE = "no_fence"
    GAVE_UP = "gave_up"
    CONTRADICTION = "contradiction"
    SAME_REFERENCE = "same_reference"
    ON_STATEMENT = "on_statement"
    """The vendor's statement shows it but does not contain the outcome."""
    NOT_ON_STATEMENT = "not_on_statement"
    """It was performed, but the vendor's statement does not show it."""
    OUTCOME_NOT_KEPT = "outcome_not_kept"
    """It happened, but the store refused the vendor's answer."""


class EffectRecord(msgspec.Struct, frozen=True):
    """One row of payonce.effects, with the store's time of reading."""

    id: UUID
    kind: str
    key: str
    generation: int
    version: int
    safety: str
    state: State
    request: str
    message_id: UUID
    trace_id: str
    revision: int
    attempt: int
    first_attempt_at: datetime
    now: datetime
    scope: str | None = None
    outcome: str | None = None
    vendor_ref: str | None = None
    reason: str | None = None
    review_cause: Cause | None = None
    sent_until: datetime | None = None
    busy_until: datetime | None = None
    key_valid_until: datetime | None = None
    superseded: bool = False
    horizon_s: float | None = None
    ruled_out: bool = False
    burnt: bool = False
    intent_due: bool = False
    identity: str | None = None
    service: str | None = None
    asset: str | None = None
    exponent: int | None = None
    amount_minor: Decimal | None = None

    @property
    def amount(self) -> Amount | None:
        if self.asset is None or self.exponent is None or self.amount_minor is None:
            return None
        return Amount(int(self.amount_minor), Asset(self.asset, self.exponent))

    @property
    def label(self) -> str:
        return f"{self.kind} {self.key}:{self.generation}"


class Step(StrEnum):
    RETURN = "return"
    REFUSE = "refuse"
    WAIT = "wait"
    SEND = "send"
    """It was never sent: the stored request goes out."""
    REPLAY = "replay"
    """It may have been sent: the same request goes out again, which is safe for this kind."""
    RESOLVE = "resolve"
    REGENERATE = "regenerate"
    REVIEW = "review"


@dataclass(frozen=True)
class NextAction:
    step: Step
    reason: str = ""
    after_s: float | None = None
    cause: Cause | None = None
    burnt: bool = False
    """Set when a generation ends because the vendor no longer accepts its reference."""


def next_action(stored: EffectRecord, safety: Safety, timeout_s: float, can_resolve: bool) -> NextAction:
    """What a run does with the effect on record under its key."""
    match stored.state:
        case State.PERFORMED:
            return NextAction(Step.RETURN)
        case State.REFUSED:
            return NextAction(Step.REFUSE, stored.reason or "refused")
        case State.ABANDONED:
            return NextAction(Step.REFUSE, f"abandoned: {stored.reason}")
        case State.REVIEW:
            waits = f"{stored.label} waits for a person: {stored.review_cause}"
            # The original reason comes first, since lists show nothing else.
            return NextAction(Step.WAIT, f"{stored.reason}; {waits}" if stored.reason else waits, REVIEW_LOOK_S)
    if stored.busy_until is not None and stored.now < stored.busy_until:
        rest_s = (stored.busy_until - stored.now).total_seconds()
        return NextAction(Step.WAIT, f"another run is performing {stored.label}", rest_s)
    if stored.state is State.INTENDED and stored.sent_until is None:
        return NextAction(Step.SEND)
    return _doubtful(stored, safety, timeout_s, can_resolve)


def _doubtful(stored: EffectRecord, safety: Safety, timeout_s: float, can_resolve: bool) -> NextAction:
    match safety:
        case Harmless():
            return NextAction(Step.REGENERATE, "its end is unknown, and a duplicate is harmless")
        case Rebroadcast():
            return NextAction(Step.REPLAY)
        case Findable():
            return NextAction(Step.RESOLVE)
        case Keyed(valid_for_s):
            # The replay must end before the vendor forgets the key.
            if stored.now + timedelta(seconds=timeout_s) < stored.first_attempt_at + timedelta(seconds=valid_for_s):
                return NextAction(Step.REPLAY)
            return NextAction(Step.RESOLVE) if can_resolve else NextAction(Step.REVIEW, cause=Cause.KEY_EXPIRED)
        case Blind():
            return NextAction(Step.REVIEW, cause=Cause.BLIND)


@dataclass(frozen=True)
class Result:
    """The result of one attempt, or of one query about it."""

    event: Event
    detail: str | None = None
    outcome: str | None = None
    vendor_ref: str | None = None

    @property
    def happened(self) -> bool:
        return self.event in (Event.PERFORMED, Event.FOUND)


def state_after(stored: EffectRecord, attempt: int, result: Result) -> State:
    """The state after a result. A result that contradicts the record opens a review."""
    match stored.state:
        case State.INTENDED | State.UNKNOWN:
            return _state_after_open(stored, attempt, result)
        case State.PERFORMED if result.happened:
            return stored.state if _same(stored, result) else State.REVIEW
        case State.PERFORMED if result.event is Event.REFUSED and not _answers_a_rebroadcast(stored):
            return State.REVIEW
        case State.REFUSED if result.happened:
            return State.REVIEW
        case State.ABANDONED if stored.safety != "harmless" and result.happened:
            return State.REVIEW
        case State.ABANDONED if result.event is Event.UNKNOWN and not (stored.burnt or stored.safety == "harmless"):
            # It was ruled out without knowledge of this attempt. Under a burnt reference no attempt can happen.
            return State.REVIEW
        case State.REVIEW if result.happened and stored.review_cause not in (Cause.CONTRADICTION, Cause.SAME_REFERENCE):
            return State.PERFORMED
    return stored.state


def _state_after_open(stored: EffectRecord, attempt: int, result: Result) -> State:
    if result.happened:
        return State.PERFORMED
    if attempt != stored.attempt or result.event is Event.NOT_SENT:
        # The refusal of an older attempt says nothing about the newer one.
        return stored.state
    if result.event is Event.REFUSED and not _answers_a_rebroadcast(stored):
        return State.REFUSED
    return State.UNKNOWN


def _answers_a_rebroadcast(stored: EffectRecord) -> bool:
    """Bytes accepted the first time are refused the second time, so that refusal is not definite."""
    return stored.safety == "rebroadcast" and stored.attempt > 1


def _same(stored: EffectRecord, result: Result) -> bool:
    if stored.vendor_ref is not None and result.vendor_ref is not None:
        return stored_reference(stored.vendor_ref) == stored_reference(result.vendor_ref)
    return bool(_document(stored.outcome) == _document(result.outcome))


def stored_reference(vendor_ref: str | None) -> str | None:
    """A vendor's reference in a form that the store can always keep and index. Overlong ones stay distinct by their
    hash."""
    if vendor_ref is None:
        return None
    text = str(vendor_ref).replace("\x00", "\N{SYMBOL FOR NULL}").encode("utf-8", "replace").decode()
    if len(text) <= VENDOR_REF_MAX_LENGTH:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()
    return f"{text[: VENDOR_REF_MAX_LENGTH - len(digest) - 1]}…{digest}"


def _document(text: str | None) -> Any:
    return None if text is None else msgspec.json.decode(text)
