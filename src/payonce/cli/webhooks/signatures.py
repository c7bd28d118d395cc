"""`webhooks verify` and `webhooks secret`: check a signature, and generate a secret."""

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from payonce.cli.arguments import parsed_moment
from payonce.cli.errors import EXIT_FAILED
from payonce.cli.output import JsonOption, command_settings, note, show
from payonce.kit.outcomes import Invalid

if TYPE_CHECKING:
    from payonce.kit.webhooks import Secret

INPUT_MAX_BYTES: Final = 2 * 1024 * 1024

SecretFileOption = Annotated[Path | None, typer.Option(help="A file with the secret to use instead of a new one.")]


def verify(
    file: Annotated[str, typer.Argument(metavar="FILE", help="The raw body, byte for byte; - for stdin.")],
    headers: Annotated[Path | None, typer.Option("--headers", help="A file with lines `name: value`.")] = None,
    header: Annotated[list[str] | None, typer.Option(help="One header, `name: value`; repeatable.")] = None,
    secret_file: Annotated[
        Path | None, typer.Option(help="A file with secrets, instead of WEBHOOK_SIGNING_SECRET.")
    ] = None,
    at: Annotated[str | None, typer.Option(help="When it arrived, such as 2026-01-31T12:00:00Z; unset, now.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Verify the signature of a received webhook. Exits with 1, and the reason, if it is invalid.

    Example: payonce webhooks verify body.json --headers headers.txt --at 2026-01-31T12:00:00Z
    """
    from payonce.kit.webhooks import Refusal
    from payonce.kit.webhooks import verify as verified_by
    from payonce.kit.webhooks.secrets import secrets_of

    settings = command_settings()
    if secret_file is not None:
        secrets: Sequence[Secret] = read_secrets(secret_file)
    elif settings.webhook_signing_secret is not None:
        secrets = secrets_of(settings.webhook_signing_secret.get_secret_value())
    else:
        raise Invalid("WEBHOOK_SIGNING_SECRET is not set; set it, or name a file with --secret-file")
    lines = [*(_read(str(headers)).decode("latin-1").splitlines() if headers else []), *(header or [])]
    moment = datetime.now(UTC) if at is None else parsed_moment(at, "--at")
    answer = verified_by(
        [_pair(line) for line in lines if line.strip()],
        _read(file),
        secrets,
        moment,
        tolerance_s=settings.webhook_tolerance_s,
    )
    if isinstance(answer, Refusal):
        show({"verified": False, **answer.problem(), "why": answer.why}, as_json)
        if not as_json:
            note(f"not verified ({answer.status}): {answer.detail}")
        raise typer.Exit(EXIT_FAILED)
    result = {"verified": True, "scheme": answer.scheme, "id": answer.id, "at": answer.at}
    about = "" if answer.id is None else f" of event {answer.id}"
    show(result, as_json, f"verified: the {answer.scheme} signature{about}, made at {answer.at.isoformat()}")


def secret(as_json: JsonOption = False) -> None:
    """Print a new secret, for WEBHOOK_SIGNING_SECRET or for --secret-file."""
    from payonce.kit.webhooks import new_secret

    made = new_secret().reveal()
    show({"secret": made}, as_json, made)


def read_secrets(path: Path) -> "Sequence[Secret]":
    from payonce.kit.webhooks.secrets import secrets_of

    found = secrets_of(_read(str(path)).decode("ascii", "replace"))
    if not found:
        raise Invalid(f"{path} holds no secret; `payonce webhooks secret` makes one")
    return found


def _read(name: str) -> bytes:
    try:
        if name == "-":
            data = sys.stdin.buffer.read(INPUT_MAX_BYTES + 1)
        else:
            with Path(name).open("rb") as file:
                data = file.read(INPUT_MAX_BYTES + 1)
    except OSError as error:
        raise Invalid(f"cannot read {name}: {error.strerror}") from None
    if len(data) > INPUT_MAX_BYTES:
        raise Invalid(f"{name} has more than {INPUT_MAX_BYTES:,} bytes; no webhook is that long")
    return data


def _pair(line: str) -> tuple[str, str]:
    name, colon, value = line.partition(":")
    if not colon:
        raise Invalid(f"the header {name[:40]!r} is malformed; write `name: value`")
    return name.strip(), value.strip()
