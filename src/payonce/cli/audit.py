"""`audit`: check everything that can be checked, and verify that audit log and ledger were not rewritten."""

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

HELP: Final = """Check the books, the effects and every promise; verify that audit log and ledger were not rewritten.

\b
Examples:
  payonce audit run
  payonce audit verify --head 1042:9f2c…
  payonce audit head >> /mnt/elsewhere/heads
  payonce audit log --reference bank --since 2026-01-31T00:00:00Z
"""

StatementLimitOption = Annotated[
    float, typer.Option(min=0.001, help="Seconds that one query may take before it is broken off.")
]

commands = typer.Typer(help=HELP, no_args_is_help=True, rich_markup_mode=None)


@commands.command("run")
def run(statement_limit: StatementLimitOption = STATEMENT_LIMIT_DEFAULT_S, as_json: JsonOption = False) -> None:
    """Check that the books add up, effects are accounted for, and what each service promises holds.

    It only reads, and may run while work goes on. Ends with 1 when there are findings.
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
        typer.Option(help="What `payonce audit head` printed, or a file of such lines; may be repeated."),
    ] = None,
    statement_limit: StatementLimitOption = STATEMENT_LIMIT_DEFAULT_S,
    as_json: JsonOption = False,
) -> None:
    """Verify that the audit log and the ledger are as they were sealed. Ends with 1 when one is not.

    Heads kept elsewhere prove that history up to them is unchanged; without any, a chain that was cut at its end or
    made anew by the database's owner looks sound. The file of PAYONCE_AUDIT_ANCHOR is always used.
    """
    given = [_heads(text) for text in head or ()]

    async def act() -> None:
        from payonce.engine.audit import Heads, heads_in, verify_ledger, verify_log
        from payonce.engine.audit.run import open_reader

        async with open_app() as app:
            anchor = app.settings.audit_anchor
            # An operator may have made the file, to protect it, before there was anything to write to it.
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
    """Print the last seals of audit log and ledger, to be kept where the database's owner cannot write."""

    async def act() -> None:
        from payonce.engine.audit import heads_now, line_of

        async with open_app() as app:
            found = await heads_now(app.read)
        show({**_described(found.log[0]), "ledger": _described(found.ledger[0])}, as_json, line_of(found))

    run_async(act())


@commands.command("log")
def show_log(
    reference: Annotated[
        str | None, typer.Option(help="Only notes about this: an effect's id, a vendor, a queue.")
    ] = None,
    severity: Annotated[str | None, typer.Option(help="Only INFO, WARNING or ERROR.")] = None,
    actor: Annotated[str | None, typer.Option(help="Only what this one did.")] = None,
    since: Annotated[str | None, typer.Option(help="Only notes written at or after this time.")] = None,
    until: Annotated[str | None, typer.Option(help="Only notes written before this time.")] = None,
    limit: Annotated[int, typer.Option(help="At most this many, up to 1000.")] = PAGE_DEFAULT,
    before: Annotated[int | None, typer.Option(help="Continue behind this id, for the next page.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Who did what to the system, and what it noticed about itself; the newest first.

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
    """Heads as they are printed, or all heads in a file."""
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
        return "audit log and ledger are as they were sealed"
    return table("Findings", ("kind", "what", "what to do"), rows)


def _proven(heads: int) -> str:
    if heads:
        return f"held against {heads:,} heads from elsewhere"
    return "no head from elsewhere was given, so a chain that was cut or made anew would not be noticed"


def _note_check(done: int, total: int, name: str) -> None:
    note(f"{done + 1}/{total} {name}")


def _note_seals(done: int, total: int) -> None:
    if sys.stderr.isatty():
        note(f"{done:,} of {total:,} seals")


def _note_ledger_seals(done: int, total: int) -> None:
    if sys.stderr.isatty():
        note(f"{done:,} of {total:,} ledger seals")
