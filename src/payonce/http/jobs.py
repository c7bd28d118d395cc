"""The job log, traces and the audit log over HTTP."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Annotated, Final, Literal
from uuid import UUID

from fastapi import APIRouter, Depends, Path, Query
from pydantic import BaseModel, Field

from payonce.app.logging import without_secrets
from payonce.engine.audit import Severity, notes
from payonce.engine.messages import job_log
from payonce.http.kit.auth import Caller, require
from payonce.http.kit.context import AppContextDep
from payonce.http.kit.problems import not_found, responses
from payonce.http.kit.scopes import AUDIT_READ, JOBS_READ
from payonce.http.kit.values import PAGE_DEFAULT, Limit, Moment, Name, Number

READ: Final = responses(400, 401, 403, 422, 429, 503)
READ_ONE: Final = responses(400, 401, 403, 404, 422, 429, 503)

Ended = Literal["success", "retry", "failed", "parked"]
Reader = Annotated[Caller, require(JOBS_READ)]
Auditor = Annotated[Caller, require(AUDIT_READ)]


class Job(BaseModel):
    """One finished run, or, in a trace, the current state of a message."""

    id: int | None = Field(description="Position in the log; null for a live message.")
    at: datetime
    queue: str
    message_id: UUID
    trace_id: str
    status: job_log.Status
    attempts: int
    action: str
    correlation_id: str | None
    idempotency_key: str | None
    last_error: str | None
    info: str | None = Field(description="The run's result text, if it is not an error.")
    next_retry_at: datetime | None
    worker: str | None
    started_at: datetime | None
    created_at: datetime
    updated_at: datetime


class JobPage(BaseModel):
    jobs: list[Job]
    next_before: int | None = Field(description="Pass it as `before` to get the next page; null on the last page.")


@dataclass(frozen=True)
class JobQuery:
    """The query parameters of a list of ended runs: `query: Annotated[JobQuery, Depends()]`."""

    queue: Name | None = None
    status: Ended | None = None
    action: Name | None = None
    correlation_id: Name | None = None
    idempotency_key: Name | None = None
    since: Moment | None = None
    until: Moment | None = None
    limit: Limit = PAGE_DEFAULT
    before: Annotated[Number | None, Query(description="The last id of the previous page.")] = None

    async def page(self, read: job_log.Readable, queues: Sequence[str] | None = None) -> JobPage:
        """The matching runs; where the query names no queue, those of `queues`, or of all."""
        found = await job_log.recent(
            read,
            queue=self.queue,
            queues=queues if self.queue is None else None,
            status=self.status,
            action=self.action,
            correlation_id=self.correlation_id,
            idempotency_key=self.idempotency_key,
            since=self.since,
            until=self.until,
            limit=self.limit,
            before_id=self.before,
        )
        return JobPage(jobs=_documents(found), next_before=found[-1].id if len(found) == self.limit else None)


class TraceDocument(BaseModel):
    what: str
    trace_ids: list[str]
    entries: list[Job]
    truncated: bool = Field(description="Whether older entries or further traces were omitted.")


class AuditNote(BaseModel):
    id: int
    at: datetime
    severity: Severity
    location: str
    reference: str
    text: str
    actor: str
    seal: int | None = Field(description="The seal that covers the note; null until it is sealed.")


class AuditPage(BaseModel):
    notes: list[AuditNote]
    next_before: int | None


def job_routes() -> APIRouter:
    routes = APIRouter(tags=["logs"])

    @routes.get("/v1/jobs", summary="List finished jobs, newest first", responses=READ)
    async def list_jobs(context: AppContextDep, caller: Reader, query: Annotated[JobQuery, Depends()]) -> JobPage:
        return await query.page(context.read)

    @routes.get(
        "/v1/traces/{what}", summary="Show the runs and messages of one payment in time order", responses=READ_ONE
    )
    async def trace(
        what: Annotated[Name, Path(description="A trace, message or correlation id, or an idempotency key.")],
        context: AppContextDep,
        caller: Reader,
    ) -> TraceDocument:
        found = await job_log.trace(context.read, what)
        if not found.entries:
            raise not_found(f"trace of {what!r} in this database, or it is older than the job log")
        return TraceDocument(
            what=what, trace_ids=list(found.trace_ids), entries=_documents(found.entries), truncated=found.truncated
        )

    @routes.get("/v1/audit", summary="List audit notes, newest first", responses=READ)
    async def list_audit_notes(
        context: AppContextDep,
        caller: Auditor,
        reference: Name | None = None,
        severity: Severity | None = None,
        actor: Name | None = None,
        since: Moment | None = None,
        until: Moment | None = None,
        limit: Limit = PAGE_DEFAULT,
        before: Annotated[Number | None, Query(description="The last id of the previous page.")] = None,
    ) -> AuditPage:
        found = await notes(
            context.read,
            reference=reference,
            severity=severity,
            actor=actor,
            since=since,
            until=until,
            before=before,
            limit=limit,
        )
        shown = [AuditNote(**asdict(each)) for each in found]
        return AuditPage(notes=shown, next_before=found[-1].id if len(found) == limit else None)

    return routes


def _documents(entries: Iterable[job_log.Entry]) -> list[Job]:
    return [
        Job(**{**asdict(entry), "last_error": without_secrets(entry.last_error), "info": without_secrets(entry.info)})
        for entry in entries
    ]
