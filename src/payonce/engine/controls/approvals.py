"""Maker and checker: one person requests an action above a threshold, and a second person approves it.

An action is declared once (`Action`) and registered with one line in app/registry.py. Its argument is fixed with the
request. It is carried out in the transaction that approves it, or not at all.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, Generic, TypeVar

import msgspec

from payonce.engine.audit import Severity, note
from payonce.engine.controls import texts
from payonce.engine.controls.thresholds import above_threshold
from payonce.engine.effects.declaration import decode, encode
from payonce.engine.messages.transaction import Reader, Tx
from payonce.kit.money import Amount, Asset
from payonce.kit.outcomes import Invalid, Refused, Stale
from payonce.kit.redact import redact

LIFETIME_DEFAULT_S: Final = 86_400.0
LIFETIME_MAX_S: Final = 31 * 86_400.0
LISTED_MAX: Final = 500

_GRANTED_BY: Final = ", granted by "

Argument = TypeVar("Argument")


class ApprovalState(StrEnum):
    WAITING = "waiting"
    GRANTED = "granted"
    DENIED = "denied"
    """By a person, or because it could no longer be carried out as requested."""
    EXPIRED = "expired"
    """Nobody decided in time, or another request replaced it."""


@dataclass(frozen=True)
class Assessment:
    """What an action would do, for the person who decides."""

    subject: str
    """Identifies the object: per action, only one request per subject may wait."""
    text: str
    amounts: Sequence[Amount] = ()
    """One per asset, compared with the thresholds."""
    unknown: int = 0
    """The number of messages with unknown amounts."""
    because: str = ""
    """Why a second person is needed regardless of the thresholds; empty if only the thresholds decide."""


@dataclass(frozen=True)
class Link:
    """The console page of an approval's subject."""

    text: str
    path: str
    """Path of a console page below the console's root."""
    query: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Action(Generic[Argument]):
    name: str
    argument_type: type[Argument]
    assess: Callable[[Tx, Argument], Awaitable[Assessment]]
    execute: Callable[[Tx, Argument, str], Awaitable[Any]]
    """Carries it out in the name of the requester and the approver. The result is stored as JSON. Raises Stale or
    Invalid when the request no longer applies."""
    link: Callable[[str], Link] | None = None
    """The page of a subject of this action; None if it has none."""


def requester_of(by: str) -> str:
    """The requester, the first of the people in whose name an action was carried out."""
    return by.partition(_GRANTED_BY)[0]


Actions = Mapping[str, Action[Any]]


@dataclass(frozen=True)
class Approval:
    id: int
    action: str
    subject: str
    argument: str
    text: str
    amounts: Sequence[Amount]
    why: str
    asked_by: str
    asked_at: datetime
    expires_at: datetime
    state: ApprovalState
    decided_by: str | None
    decided_at: datetime | None
    decided_why: str | None
    result: Any


@dataclass(frozen=True)
class Executed:
    """The action was below the thresholds and has been carried out."""

    result: Any


@dataclass(frozen=True)
class Preview:
    """What a request would lead to."""

    assessment: Assessment
    because: str
    """Why a second person is needed; empty if it would be carried out at once."""


async def preview(tx: Tx, action: Action[Argument], argument: Argument, by: str) -> Preview:
    """Tries the action and rolls it back, so that the requester sees errors before submitting."""
    assessment = await action.assess(tx, argument)
    await _try_and_roll_back(tx, action, argument, texts.name(by, "by"))
    return Preview(assessment, await needs_second_person(tx, assessment))


async def needs_second_person(read: Reader | Tx, assessment: Assessment) -> str:
    """The reason, as the first half of a sentence; empty when nobody else is needed."""
    if assessment.because:
        return assessment.because
    too_much = await above_threshold(read, assessment.amounts)
    return "" if too_much is None else f"{too_much} is above the threshold"


async def submit(
    tx: Tx, action: Action[Argument], argument: Argument, by: str, why: str, *, lifetime_s: float = LIFETIME_DEFAULT_S
) -> Executed | Approval:
    """Carries the action out at once, or leaves it to a second person. Submitting the same request again returns the
    waiting one."""
    by, why = texts.name(by, "by"), texts.reason(why, "the note")
    assessment = await action.assess(tx, argument)
    if not (because := await needs_second_person(tx, assessment)):
        result = await action.execute(tx, argument, by)
        await note(tx.connection, f"brakes.{action.name}", assessment.subject, f"{assessment.text}: {why}", actor=by)
        return Executed(_plain(result))
    document = encode(argument, action.argument_type, f"the argument of {action.name}")
    await _try_and_roll_back(tx, action, argument, by)
    row = await _insert(tx, action.name, assessment, document, by, why, lifetime_s)
    if row is None:
        return await _existing_request(tx, action.name, assessment.subject, document)
    text = f"requested to {assessment.text}, which needs a second person ({because}): {why}"
    await note(tx.connection, f"brakes.{action.name}", assessment.subject, text, actor=by, severity=Severity.WARNING)
    return _as_approval(row)


async def grant(tx: Tx, actions: Actions, approval_id: int, by: str, why: str = "agreed") -> Approval:
    """Approves the request and carries it out in this transaction. Granting twice carries it out once.

    A request that can no longer be carried out as submitted is denied with the reason as its result, and nothing is
    done.
    """
    by, why = texts.name(by, "by"), texts.reason(why, "the note")
    approval = await _locked(tx, approval_id)
    if approval.state is ApprovalState.GRANTED:
        return approval
    _check_decidable(approval, by)
    if (action := actions.get(approval.action)) is None:
        raise Invalid(f"this version has no action {approval.action!r}; known are: {', '.join(sorted(actions))}")
    try:
        async with tx.connection.transaction():
            argument = decode(approval.argument, action.argument_type, f"the argument of approval {approval.id}")
            result = await action.execute(tx, argument, f"{approval.asked_by}{_GRANTED_BY}{by}")
    except (Stale, Invalid, Refused) as error:
        return await _decide(tx, approval, ApprovalState.DENIED, by, why, f"not done: {redact(str(error))}")
    return await _decide(tx, approval, ApprovalState.GRANTED, by, why, _plain(result))


async def deny(tx: Tx, approval_id: int, by: str, why: str) -> Approval:
    """Denies the request for good; it may be submitted anew. Denying twice changes nothing."""
    by, why = texts.name(by, "by"), texts.reason(why)
    approval = await _locked(tx, approval_id)
    if approval.state is ApprovalState.DENIED:
        return approval
    _check_decidable(approval, by)
    return await _decide(tx, approval, ApprovalState.DENIED, by, why, None)


async def withdraw(tx: Tx, action: str, subjects: Sequence[str], by: str, why: str) -> None:
    """Ends the requests that wait about these subjects because another request replaces them. They can no longer be
    granted."""
    rows = await tx.fetch(
        """
        update payonce.approvals set state = 'expired', decided_why = $3
        where action = $1 and subject = any($2::text[]) and state = 'waiting' returning id, subject, text
        """,
        action,
        subjects,
        texts.reason(why),
    )
    for row in rows:
        text = f"withdrew approval {row['id']} to {row['text']}: {why}"
        await note(tx.connection, f"brakes.{action}", row["subject"], text, actor=by)


async def approvals(
    read: Reader | Tx,
    state: ApprovalState | None = ApprovalState.WAITING,
    *,
    limit: int = 100,
    before: int | None = None,
) -> list[Approval]:
    """Newest first; `before` is the last id of the previous page."""
    rows = await read.fetch(
        f"""
        select * from (select {_COLUMNS} from payonce.approvals) a
        where ($1::text is null or state = $1) and ($2::bigint is null or id < $2) order by id desc limit $3
        """,
        state,
        before,
        min(limit, LISTED_MAX),
    )
    return [_as_approval(row) for row in rows]


async def approval_of(read: Reader | Tx, approval_id: int) -> Approval:
    """The approval with this id, decided or not."""
    row = await read.fetchrow(f"select {_COLUMNS} from payonce.approvals where id = $1", approval_id)
    if row is None:
        raise _no_such_approval(approval_id)
    return _as_approval(row)


async def waiting_approval(read: Reader | Tx, action: str, subject: str) -> Approval | None:
    """The request about this subject that still waits for a second person."""
    row = await read.fetchrow(
        f"""
        select {_COLUMNS} from payonce.approvals
        where action = $1 and subject = $2 and state = 'waiting' and expires_at > payonce.due_now()
        """,
        action,
        subject,
    )
    return None if row is None else _as_approval(row)


# Requests that nobody decided in time read as expired, whether marked or not.
_COLUMNS: Final = """id, action, subject, argument, text, amounts, why, asked_by, asked_at, expires_at, decided_by,
    decided_at, decided_why, result,
    case when state = 'waiting' and expires_at <= payonce.due_now() then 'expired' else state end as state"""


class _TrialOver(Exception):
    """Ends the savepoint of a trial."""


async def _try_and_roll_back(tx: Tx, action: Action[Argument], argument: Argument, by: str) -> None:
    """Reports errors of the action to the requester at once."""
    try:
        async with tx.connection.transaction():
            await action.execute(tx, argument, by)
            raise _TrialOver
    except _TrialOver:
        pass


async def _insert(
    tx: Tx, action: str, assessment: Assessment, document: str, by: str, why: str, lifetime_s: float
) -> Any:
    """None when a request already waits about the subject."""
    if not 0 < lifetime_s <= LIFETIME_MAX_S:
        raise Invalid(
            f"lifetime_s of an approval is {lifetime_s:g}; it must be above 0 and at most {LIFETIME_MAX_S:,.0f}"
        )
    await tx.execute(
        """
        update payonce.approvals set state = 'expired'
        where action = $1 and subject = $2 and state = 'waiting' and expires_at <= payonce.due_now()
        """,
        action,
        assessment.subject,
    )
    return await tx.fetchrow(
        f"""
        insert into payonce.approvals (action, subject, argument, text, amounts, why, asked_by, expires_at)
        values ($1, $2, $3::text::json, $4, $5::text::json, $6, $7,
                payonce.due_now() + make_interval(secs => $8::float8))
        on conflict (action, subject) where state = 'waiting' do nothing
        returning {_COLUMNS}
        """,
        action,
        assessment.subject,
        document,
        assessment.text,
        _encoded_amounts(assessment.amounts),
        why,
        by,
        lifetime_s,
    )


async def _existing_request(tx: Tx, action: str, subject: str, document: str) -> Approval:
    row = await tx.fetchrow(
        f"select {_COLUMNS} from payonce.approvals where action = $1 and subject = $2 and state = 'waiting'",
        action,
        subject,
    )
    if row is None:
        raise Stale(f"the approval of {subject} has just been decided; look again")
    waiting = _as_approval(row)
    if waiting.argument != document:
        raise Invalid(
            f"approval {waiting.id} of {waiting.asked_by} about {subject} is already waiting with a different "
            "request; see: payonce approvals list"
        )
    return waiting


async def _locked(tx: Tx, approval_id: int) -> Approval:
    row = await tx.fetchrow(f"select {_COLUMNS} from payonce.approvals where id = $1 for update", approval_id)
    if row is None:
        raise _no_such_approval(approval_id)
    return _as_approval(row)


def _no_such_approval(approval_id: int) -> Invalid:
    return Invalid(f"there is no approval {approval_id}; see: payonce approvals list")


def _check_decidable(approval: Approval, by: str) -> None:
    if approval.state is ApprovalState.EXPIRED and approval.decided_why is not None:
        raise Invalid(f"approval {approval.id} was withdrawn: {approval.decided_why}; see: payonce approvals list")
    if approval.state is ApprovalState.EXPIRED:
        raise Invalid(f"approval {approval.id} expired at {approval.expires_at.isoformat()}; submit it again")
    if approval.state is not ApprovalState.WAITING:
        raise Invalid(f"approval {approval.id} was already {approval.state} by {approval.decided_by}")
    if texts.same_person(by, approval.asked_by):
        raise Invalid(f"approval {approval.id} was requested by {approval.asked_by}; a second person must decide")


async def _decide(tx: Tx, approval: Approval, verdict: ApprovalState, by: str, why: str, result: Any) -> Approval:
    row = await tx.fetchrow(
        f"""
        update payonce.approvals
        set state = $2, decided_by = $3, decided_at = payonce.due_now(), decided_why = $4, result = $5::text::json
        where id = $1
        returning {_COLUMNS}
        """,
        approval.id,
        verdict,
        by,
        why,
        None if result is None else msgspec.json.encode(result).decode(),
    )
    text = f"{verdict} approval {approval.id} of {approval.asked_by} to {approval.text}: {why}"
    text += f" ({result})" if verdict is ApprovalState.DENIED and result else ""
    await note(tx.connection, f"brakes.{approval.action}", approval.subject, text, actor=by, severity=Severity.WARNING)
    return _as_approval(row)


def _plain(result: Any) -> Any:
    return msgspec.to_builtins(result)


def _encoded_amounts(amounts: Sequence[Amount]) -> str:
    plain = [[amount.asset.code, amount.asset.exponent, amount.to_minor_text()] for amount in amounts]
    return msgspec.json.encode(plain).decode()


def _as_approval(row: Any) -> Approval:
    fields = {name: row[name] for name in Approval.__dataclass_fields__}
    fields["state"] = ApprovalState(row["state"])
    fields["result"] = None if row["result"] is None else msgspec.json.decode(row["result"])
    fields["amounts"] = tuple(
        Amount.from_minor(minor, Asset(code, exponent)) for code, exponent, minor in msgspec.json.decode(row["amounts"])
    )
    return Approval(**fields)
