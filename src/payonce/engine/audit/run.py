"""The full audit: the ledger, the engine's invariants, the services' invariants, and the business row of every posting.

Each check reads on a read-only connection with a statement time-out. A check that fails is itself a finding, and the
others continue.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

import asyncpg

from payonce.engine.audit.invariants import INVARIANTS, Invariant
from payonce.engine.audit.references import check_references
from payonce.engine.database.connections import Database
from payonce.engine.ledger.audit import CHECKS, FINDINGS_MAX, Finding, check_books
from payonce.engine.messages.transaction import Reader
from payonce.kit.outcomes import Invalid
from payonce.kit.redact import redact

STATEMENT_LIMIT_S: Final = 600.0
CHECK_LIMIT_S: Final = 3_600.0
"""Per check, which may run many statements or query a vendor."""
ANSWER_MARGIN_S: Final = 10.0
"""The server's own time-out comes first, so that its reason is known."""

INVARIANT_WAY_OUT: Final = (
    "the service's README describes this invariant; pause its queues until the finding is understood"
)

Audit = Callable[[Reader, Sequence[object]], Awaitable[list[Finding]]]
"""A check that a service declares beyond queries. It gets a reader and the service's resources, such as vendor clients.
"""
CheckProgress = Callable[[int, int, str], None]
"""Called with the number of finished checks, their total, and the name of the check that begins."""


@dataclass(frozen=True)
class Check:
    name: str
    run: Callable[[Reader], Awaitable[list[Finding]]]


@dataclass(frozen=True)
class AuditFinding:
    """A finding and the check that found it."""

    check: str
    text: str
    way_out: str


@dataclass(frozen=True)
class Report:
    checks: int
    findings: tuple[AuditFinding, ...]
    accepted: tuple[str, ...] = ()
    """Ways in which the database may lose commits that the operator has accepted."""

    @property
    def ok(self) -> bool:
        return not self.findings


REFERENCES: Final = {
    "unmatched": "select id::text from payonce.unmatched where id::text = any($1::text[])",
}
"""What the engine's own postings belong to."""


class Audited(Protocol):
    """What a service declares for its audit."""

    @property
    def name(self) -> str: ...
    @property
    def invariants(self) -> Mapping[str, str]: ...
    @property
    def references(self) -> Mapping[str, str]: ...


async def run_audit(
    database: Database,
    checks: Iterable[Check],
    tell: CheckProgress | None = None,
    *,
    statement_limit_s: float = STATEMENT_LIMIT_S,
    check_limit_s: float = CHECK_LIMIT_S,
) -> Report:
    """Runs all checks, one after the other, while the system keeps working."""
    todo, findings = list(checks), []
    async with open_reader(database, statement_limit_s) as read:
        for done, check in enumerate(todo):
            if tell is not None:
                tell(done, len(todo), check.name)
            findings += await _run_check(check, read, check_limit_s)
    return Report(len(todo), tuple(findings))


def checks_of(services: Sequence[Audited]) -> list[Check]:
    """Checks of the engine, the ledger and the services, ordered so that earlier findings explain later ones."""
    checks = [Check(f"ledger: {kind}", partial(check_books, kind=kind)) for kind in CHECKS]
    checks += [Check(f"engine: {name}", partial(_check_invariant, invariant)) for name, invariant in INVARIANTS.items()]
    for service in services:
        checks += [
            Check(f"{service.name}: {name}", partial(_check_service_invariant, query))
            for name, query in service.invariants.items()
        ]
    return [*checks, Check("ledger: postings belong to something", partial(check_references, _kinds(services)))]


@asynccontextmanager
async def open_reader(database: Database, statement_limit_s: float = STATEMENT_LIMIT_S) -> AsyncIterator[Reader]:
    """A reader for long reads, apart from the pools that handlers and the engine wait for."""
    reader = PatientReader(database, statement_limit_s)
    try:
        yield reader
    finally:
        await reader.close()


class PatientReader(Reader):
    """A read-only connection of its own, reopened when it is lost."""

    def __init__(self, database: Database, statement_limit_s: float) -> None:
        if not statement_limit_s > 0:
            raise Invalid(f"statement_limit_s is {statement_limit_s}; it must be positive")
        self._database = database
        self._limit_s = statement_limit_s
        self._one_at_a_time = asyncio.Lock()
        self._connection: asyncpg.Connection | None = None

    async def fetch(self, sql: str, *arguments: Any) -> list[Any]:
        rows: list[Any] = await self._ask("fetch", sql, *arguments)
        return rows

    async def fetchrow(self, sql: str, *arguments: Any) -> Any:
        return await self._ask("fetchrow", sql, *arguments)

    async def fetchval(self, sql: str, *arguments: Any) -> Any:
        return await self._ask("fetchval", sql, *arguments)

    async def close(self) -> None:
        if self._connection is not None and not self._connection.is_closed():
            await self._connection.close()

    async def _ask(self, how: str, sql: str, *arguments: Any) -> Any:
        async with self._one_at_a_time:
            if self._connection is None or self._connection.is_closed():
                self._connection = await self._database.connect(
                    statement_timeout=str(int(self._limit_s * 1000)), default_transaction_read_only="on"
                )
            ask = getattr(self._connection, how)
            return await ask(sql, *arguments, timeout=self._limit_s + ANSWER_MARGIN_S)


async def _run_check(check: Check, read: Reader, limit_s: float) -> list[AuditFinding]:
    try:
        async with asyncio.timeout(limit_s):
            findings = await check.run(read)
    except Exception as error:
        return [AuditFinding(check.name, f"could not be checked: {redact(_summary_of(error))}", _way_out_of(error))]
    found = [AuditFinding(check.name, redact(finding.text), finding.way_out) for finding in findings[:FINDINGS_MAX]]
    if len(findings) > FINDINGS_MAX:
        found.append(AuditFinding(check.name, f"and more than these {FINDINGS_MAX}", "begin with the findings above"))
    return found


async def _check_invariant(invariant: Invariant, read: Reader) -> list[Finding]:
    rows = await read.fetch(_bounded(invariant.query))
    return [Finding("engine", row["finding"], invariant.way_out) for row in rows]


async def _check_service_invariant(query: str, read: Reader) -> list[Finding]:
    rows = await read.fetch(_bounded(query))
    return [
        Finding("invariant", ", ".join(f"{name} {value}" for name, value in row.items()), INVARIANT_WAY_OUT)
        for row in rows
    ]


def _bounded(query: str) -> str:
    return f"select * from (\n{query.rstrip().removesuffix(';')}\n) broken limit {FINDINGS_MAX + 1}"


def _kinds(services: Sequence[Audited]) -> dict[str, str]:
    kinds = dict(REFERENCES)
    owners = dict.fromkeys(REFERENCES, "the engine")
    for service in services:
        for kind, query in service.references.items():
            if kind in kinds:
                raise Invalid(
                    f"{owners[kind]} and {service.name} both declare a query for references of the kind {kind!r}; "
                    "keep one"
                )
            kinds[kind], owners[kind] = query, service.name
    return kinds


def _summary_of(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no reason given'}"


def _way_out_of(error: Exception) -> str:
    if isinstance(error, (TimeoutError, asyncpg.QueryCanceledError)):
        return "it took too long: run it again at a quieter time, or with a larger --statement-limit"
    return "repair the cause and run the audit again; until then the check is inconclusive"
