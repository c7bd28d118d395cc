"""Common parts of the routes of subscriptions: id types, account scoping, and refusals as problems."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Annotated, Any, Final

from fastapi import Path, Query
from pydantic import BaseModel, Field, StringConstraints

from payonce.engine.messages.transaction import Tx
from payonce.http.kit.problems import Problem, responses
from payonce.kit.outcomes import Invalid
from payonce.services.billing.api.callers import BillingCaller, require_account_or_key
from payonce.services.billing.scopes import READ
from payonce.services.billing.subscriptions.domain.refusals import Conflict, NotFound

ID: Final = r"^[0-9a-zA-Z_-]{1,100}$"
READS: Final = responses(400, 401, 403, 404, 422, 429, 503)
CHANGES: Final = responses(400, 401, 403, 404, 409, 413, 422, 429, 503)

Id = Annotated[str, Path(pattern=ID)]
IdText = Annotated[str, StringConstraints(pattern=ID)]
Cursor = Annotated[str | None, Query(pattern=ID, description="The last id of the previous page.")]
OfAccount = Annotated[str | None, Query(pattern=ID, description="The account; for API keys and operators.")]
ForAccount = Annotated[
    IdText | None, Field(description="The account. Customers omit it; API keys and operators give it.")
]
Viewer = Annotated[BillingCaller, require_account_or_key(READ)]


@contextmanager
def refusals() -> Iterator[None]:
    """Turns refusals of the service into problems."""
    try:
        yield
    except NotFound as refusal:
        raise Problem(HTTPStatus.NOT_FOUND, str(refusal)) from refusal
    except Conflict as refusal:
        raise Problem(HTTPStatus.CONFLICT, str(refusal), kind=refusal.kind) from refusal
    except Invalid as refusal:
        raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, str(refusal)) from refusal


def refusing(act: Callable[[Tx], Awaitable[BaseModel]]) -> Callable[[Tx], Awaitable[BaseModel]]:
    async def acting(tx: Tx) -> BaseModel:
        with refusals():
            return await act(tx)

    return acting


def only_of(caller: BillingCaller) -> str | None:
    """The account to which a change is limited; None for operators and API keys, which may change every account."""
    return None if caller.operator else caller.account_id


def page_after(found: list[Any], limit: int) -> str | None:
    """The cursor of the next page; None on the last one."""
    return found[-1].id if len(found) == limit else None
