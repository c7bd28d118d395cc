"""Arguments that several commands take, and how they are read."""

from datetime import datetime
from typing import Annotated
from uuid import UUID

import typer

from payonce.kit.outcomes import Invalid


def parsed_state(text: str) -> str:
    known = ("ready", "alone", "leased", "parked")
    if text not in known:
        raise Invalid(f"there is no state {text!r}; a message is {', '.join(known[:-1])} or {known[-1]}")
    return text


QueueArgument = Annotated[str, typer.Argument(metavar="QUEUE", help="Its name; `payonce queues list` shows them.")]
StateOption = Annotated[str, typer.Option(help="ready, alone, leased or parked.", callback=parsed_state)]


def parsed_id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise Invalid(f"{text[:60]!r} is not a message id; copy one from `payonce queues peek`") from None


def parsed_moment(text: str, option: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise Invalid(f"{option} is {text[:60]!r}; write a time such as 2026-01-31T12:00:00Z") from None
    if moment.tzinfo is None:
        raise Invalid(f"{option} is {text!r}, which has no time zone; add one, such as {text}Z or {text}+02:00")
    return moment
