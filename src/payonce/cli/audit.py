"""`audit`: check all data, and verify that audit log and ledger were not altered."""

import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from payonce.cli.arguments import parsed_moment
from payonce.cli.errors import EXIT_FAILED
from payonce.cli.output import JsonOption, note, open_app, run_async, show, table
from payonce.kit.outcomes import Invalid

if TYPE_CHECKING:
    from payonce.engine.audit import Head, Heads, Severity, Verified, VerifiedLedger
    from payonce.engine.ledger import Finding

STATEMENT_LIMIT_DEFAULT_S: Final = 600.0
PAGE_DEFAULT: Final = 50

HELP: Final = """Check ledger, effects and invariants; verify that audit log and ledger were not altered.

\b
Examples:
  payonce audit run
  payonce audit verify --head 1042:9f2c…
  payonce audit head >> /mnt/elsewhere/heads
  payonce audit log --reference bank --since 2026-01-31T00:00:00Z
"""

StatementLimitOption = Annotated[float, typer.Option(min=0.001, help="Seconds after which a query is cancelled.")]

commands = typer.Typer(help=HELP, no_args_is_help=True, rich_markup_mode=None)


@commands.command("run")
def run(statement_limit: StatementLimitOption = STATEMENT_LIMIT_DEFAULT_S, as_json: JsonOption = False) -> None:
    """Check the ledger, the effects and the invariants of every service.

    Read-only, and safe to run while work goes on. Exits with 1 if there are findings.
    """

    async def act() -> None:
        async with open_app() as app:
            report = await app.audit(None if as_json else _note_check, statement_limit_s=statement_limit)
        findings = [asdict(finding) for finding in report.findings]
        rows = [(one["check"], one["text"], one["way_out"]) for one in findings]
        shown = table("Findings", ("check", "what", "what to do"), rows) if rows else "nothing found"
        said = [f"{report.checks} checks, {len(findings)} findings"]
        said += [f"accepted by PAYONCE_ACCEPT_DATA_LOSS: {text}" for text in report.accepted]
        result = {"checks": report.checks, "findings": findings, "accepted": report.accepted, "ok": report.ok}
        show(result, as_json, shown, *said)
        if not report.ok:
            raise typer.Exit(EXIT_FAILED)

    run_async(act())


@commands.command("verify")
def verify(
    head: Annotated[
        list[str] | None,
        typer.Option(help="A head printed by `payonce audit head`, or a file of them; repeatable."),
    ] = None,
    statement_limit: StatementLimitOption = STATEMENT_LIMIT_DEFAULT_S,
    as_json: JsonOption = False,
) -> None:
    """Verify that the audit log and the ledger are as they were sealed. Exits with 1 if one is not.

    Heads stored elsewhere prove that history up to them is unchanged. Without any, a chain that the database's owner
    truncated or rebuilt looks valid. The file of PAYONCE_AUDIT_ANCHOR is always used.
    """
    given = [_heads(text) for text in head or ()]

    async def act() -> None:
        from payonce.engine.audit import Heads, heads_in, verify_ledger, verify_log
        from payonce.engine.audit.run import open_reader

        async with open_app() as app:
            anchor = app.settings.audit_anchor
            # An operator may have created an empty file, to protect it.
            written = anchor is not None and anchor.exists() and anchor.stat().st_size > 0
            heads = sum([*given, *([heads_in(anchor)] if anchor is not None and written else [])], Heads())
            async with open_reader(app.database, statement_limit) as read:
                log = await verify_log(read, heads.log, None if as_json else _note_seals)
                ledger = await verify_ledger(read, heads.ledger, None if as_json else _note_ledger_seals)
        findings = [*log.findings, *ledger.findings]
        ok = log.ok and ledger.ok
        result = {
            **_verified(log),
            "notes": log.notes,
            "ledger": {**_verified(ledger), "postings": ledger.postings},
            "findings": [{"check": one.kind, "text": one.text, "way_out": one.way_out} for one in findings],
            "ok": ok,
        }
        show(
            result,
            as_json,
            _shown(findings),
            f"{log.head.number:,} seals over {log.notes:,} notes, {log.unsealed:,} not sealed yet",
            _proven(log.heads),
            f"{ledger.head.number:,} ledger seals over {ledger.postings:,} postings, "
            f"{ledger.unsealed:,} not sealed yet",
            _proven(ledger.heads),
        )
        if not ok:
            raise typer.Exit(EXIT_FAILED)

    run_async(act())


@commands.command("head")
def show_head(as_json: JsonOption = False) -> None:
    """Print the last seals of audit log and ledger, to be stored where the database's owner cannot write."""

    async def act() -> None:
        from payonce.engine.audit import heads_now, line_of

        async with open_app() as app:
            found = await heads_now(app.read)
        show({**_described(found.log[0]), "ledger": _described(found.ledger[0])}, as_json, line_of(found))

    run_async(act())


@commands.command("log")
def show_log(
    reference: Annotated[str | None, typer.Option(help="Only notes about this effect id, vendor, queue, …")] = None,
    severity: Annotated[str | None, typer.Option(help="Only INFO, WARNING or ERROR.")] = None,
    actor: Annotated[str | None, typer.Option(help="Only notes of this actor.")] = None,
    since: Annotated[str | None, typer.Option(help="Only notes written at or after this time.")] = None,
    until: Annotated[str | None, typer.Option(help="Only notes written before this time.")] = None,
    limit: Annotated[int, typer.Option(help="At most this many, up to 1000.")] = PAGE_DEFAULT,
    before: Annotated[int | None, typer.Option(help="Continue after this id, for the next page.")] = None,
    as_json: JsonOption = False,
) -> None:
    """List the audit log, newest first: changes by people and observations of the system.

    Example: payonce audit log --severity WARNING --since 2026-01-31T00:00:00Z --limit 20
    """
    earliest = None if since is None else parsed_moment(since, "--since")
    latest = None if until is None else parsed_moment(until, "--until")
    wanted = None if severity is None else _severity(severity)

    async def act() -> None:
        from payonce.app.logging import without_secrets
        from payonce.engine.audit import notes

        async with open_app() as app:
            found = await notes(
                app.read,
                reference=reference,
                severity=wanted,
                actor=actor,
                since=earliest,
                until=latest,
                before=before,
                limit=limit,
            )
        following = found[-1].id if len(found) == limit else None
        lines = [{**asdict(one), "text": without_secrets(one.text)} for one in found]
        rows = [
            (
                str(one["id"]),
                *(one[name] for name in ("at", "severity", "location", "reference", "text", "actor", "seal")),
            )
            for one in lines
        ]
        columns = ("id", "time", "severity", "where", "about", "what", "who", "seal")
        show(
            {"notes": lines, "next_before": following}, as_json, table("Audit log", columns, rows, right=("id", "seal"))
        )
        if following is not None and not as_json:
            note(f"more: --before {following}")

    run_async(act())


def _heads(text: str) -> "Heads":
    """Parses a printed head, or all heads in a file."""
    from payonce.engine.audit import heads_in, parsed_heads

    return heads_in(Path(text)) if os.path.exists(text) else parsed_heads(text)


def _severity(text: str) -> "Severity":
    from payonce.engine.audit import Severity

    try:
        return Severity(text.upper())
    except ValueError:
        raise Invalid(f"--severity is {text[:40]!r}; it is INFO, WARNING or ERROR") from None


def _described(head: "Head") -> dict[str, Any]:
    return {"number": head.number, "hash": head.hash.hex()}


def _verified(found: "Verified | VerifiedLedger") -> dict[str, Any]:
    return {
        **_described(found.head),
        "unsealed": found.unsealed,
        "oldest_unsealed_at": found.oldest_unsealed_at,
        "heads": found.heads,
    }


def _shown(findings: "list[Finding]") -> Any:
    rows = [(one.kind, one.text, one.way_out) for one in findings]
    if not rows:
        return "audit log and ledger are unaltered"
    return table("Findings", ("kind", "what", "what to do"), rows)


def _proven(heads: int) -> str:
    if heads:
        return f"compared with {heads:,} external heads"
    return "no external head was given, so a truncated or rebuilt chain would not be detected"


def _note_check(done: int, total: int, name: str) -> None:
    note(f"{done + 1}/{total} {name}")


def _note_seals(done: int, total: int) -> None:
    if sys.stderr.isatty():
        note(f"{done:,} of {total:,} seals")


def _note_ledger_seals(done: int, total: int) -> None:
    if sys.stderr.isatty():
        note(f"{done:,} of {total:,} ledger seals")
