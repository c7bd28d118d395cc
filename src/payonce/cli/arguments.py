"""Arguments of several commands, and their parsers."""

import getpass
import os
import re
from datetime import datetime
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import typer

from payonce.kit.outcomes import Invalid

if TYPE_CHECKING:
    from payonce.kit.money import Amount, Asset


def parsed_state(text: str) -> str:
    known = ("ready", "alone", "leased", "parked")
    if text not in known:
        raise Invalid(f"there is no state {text!r}; a message is {', '.join(known[:-1])} or {known[-1]}")
    return text


QueueArgument = Annotated[str, typer.Argument(metavar="QUEUE", help="Its name; `payonce queues list` shows them.")]
StateOption = Annotated[str, typer.Option(help="ready, alone, leased or parked.", callback=parsed_state)]
AssetArgument = Annotated[str, typer.Argument(metavar="ASSET", help="Its code, such as EUR or USDT.")]
AmountArgument = Annotated[str, typer.Argument(metavar="AMOUNT", help="In major units, such as 12.50.")]
ExponentOption = Annotated[
    int | None, typer.Option(help="Decimals of the asset, if it is not well known or uses others here.")
]
ByOption = Annotated[str | None, typer.Option(help="Your name for the audit log; unset, your login name.")]
LimitOption = Annotated[int, typer.Option(help="At most this many, up to 500.", min=1, max=500)]


def _load_services(names: list[str] | None) -> list[str] | None:
    from payonce.app.service_modules import name_modules

    name_modules(names or ())
    return names


ServiceOption = Annotated[
    list[str] | None,
    typer.Option(
        "--service",
        metavar="MODULE:NAME",
        help="Also load this service, such as hello:SERVICE of hello.py in the current folder; repeatable.",
        callback=_load_services,
        is_eager=True,
    ),
]


def parsed_id(text: str, see: str = "payonce queues peek") -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise Invalid(f"{text[:60]!r} is not a message id; copy one from `{see}`") from None


def parsed_effect_id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise Invalid(f"{text[:60]!r} is not the id of an effect; copy one from `payonce effects list`") from None


def parsed_moment(text: str, option: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise Invalid(f"{option} is {text[:60]!r}; write a time such as 2026-01-31T12:00:00Z") from None
    if moment.tzinfo is None:
        raise Invalid(f"{option} is {text!r}, which has no time zone; add one, such as {text}Z or {text}+02:00")
    return moment


def parsed_number(text: str, what: str, see: str) -> int:
    """Parses the number of a freeze, limit or approval."""
    if not re.fullmatch(r"[0-9]{1,18}", text, re.ASCII):
        raise Invalid(f"{text[:60]!r} is not the number of {what}; copy one from `{see}`")
    return int(text)


def parsed_asset(code: str, exponent: int | None) -> "Asset":
    from payonce.kit.money import Asset, well_known

    if exponent is not None:
        return Asset(code, exponent)
    try:
        return well_known(code)
    except Invalid:
        raise Invalid(f"{code[:40]!r} is not among the well-known assets; add --exponent, its decimals") from None


def parsed_amount(text: str, code: str, exponent: int | None) -> "Amount":
    from payonce.kit.money import Amount

    return Amount.from_decimal(text, parsed_asset(code, exponent))


def described_amount(amount: "Amount") -> dict[str, object]:
    """Amounts as strings, because JSON numbers may lose digits."""
    return {
        "asset": amount.asset.code,
        "exponent": amount.asset.exponent,
        "amount": amount.to_text(),
        "minor": amount.to_minor_text(),
    }


def operator_name(by: str | None) -> str:
    """The given name, or the login name."""
    if by is not None:
        return by
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        # Containers often run under an account without a name.
        return f"user {os.getuid()}"
