"""Types of values in requests and responses: names, amounts, times."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Annotated, Any, Final

from fastapi import Query
from fastapi.exceptions import RequestValidationError
from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, StringConstraints

from payonce.engine.messages.model import EARLIEST_YEAR, LATEST_YEAR, NAME_MAX_LENGTH
from payonce.kit.money import Amount

PAGE_DEFAULT: Final = 50
PAGE_MAX: Final = 500
NUMBER_MAX: Final = 2**63 - 1

# Rejects, and documents, what the database cannot store.
NO_CONTROLS: Final = r"^[^\x00-\x1f\x7f]*$"

Name = Annotated[str, StringConstraints(min_length=1, max_length=NAME_MAX_LENGTH, pattern=NO_CONTROLS)]
Note = Annotated[
    str,
    StringConstraints(
        min_length=1, max_length=2_000, pattern=r"^[^\x00-\x1f\x7f]*[^\s\x00-\x1f\x7f][^\x00-\x1f\x7f]*$"
    ),
]
"""Free text for other operators."""
Number = Annotated[int, Field(ge=1, le=NUMBER_MAX)]
Limit = Annotated[int, Query(ge=1, le=PAGE_MAX, description="At most this many.")]


def _within_reason(moment: datetime) -> datetime:
    if not EARLIEST_YEAR <= moment.year <= LATEST_YEAR:
        raise ValueError(f"the year must be between {EARLIEST_YEAR} and {LATEST_YEAR}")
    return moment


Moment = Annotated[AwareDatetime, AfterValidator(_within_reason)]
"""A time with a time zone."""


class RequestBody(BaseModel):
    """Base of request bodies. Unknown fields are rejected, since a misspelt field would silently have no effect."""

    model_config = ConfigDict(extra="forbid")


class Money(BaseModel):
    """Amounts are strings, because JSON numbers may lose digits."""

    asset: str
    exponent: int
    amount: str = Field(description="In major units, such as 12.50.")
    minor: str

    @classmethod
    def of(cls, amount: Amount) -> "Money":
        return cls(
            asset=amount.asset.code,
            exponent=amount.asset.exponent,
            amount=amount.to_text(),
            minor=amount.to_minor_text(),
        )


Document = Any
"""A vendor's JSON or a payload, with secrets redacted."""


def no_such_parameters(names: Iterable[str], known: Iterable[str]) -> dict[str, str]:
    """The error of each unknown parameter, by name."""
    there_are = ", ".join(sorted(known)) or "none"
    return dict.fromkeys(sorted(names), f"unknown parameter; known are: {there_are}")


def wrong_query(wrong: Mapping[str, str]) -> RequestValidationError:
    return RequestValidationError([{"type": "query", "loc": ("query", name), "msg": wrong[name]} for name in wrong])
