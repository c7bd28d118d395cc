"""Who calls billing: a customer by the access token of their login, an operator by one or by an API key of the house.

async def show(invoice_id: Id, who: Annotated[Who, either(READ)]) -> InvoiceDocument: ...
async def pay(invoice_id: Id, once: Annotated[Once, moving(CHARGE)]) -> Response:
    who = who_of(once)
"""

from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from typing import Annotated, Any, Final, TypeVar

from fastapi import Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.requests import Request

from payonce.engine.messages.transaction import Tx
from payonce.engine.monitoring.metrics import TOKEN_FAILURES
from payonce.engine.operators.login_limits import TooManyAttempts, count_action
from payonce.engine.operators.passwords import PasswordQueueFull
from payonce.http.kit.auth import Caller, attempts_of, authorize, check_attempt_limit, record_failure, unauthorized
from payonce.http.kit.context import AppContext, context_of
from payonce.http.kit.idempotency import Once, once_for
from payonce.http.kit.problems import Problem, not_found
from payonce.services.billing.scopes import NO_TENANTS, OPERATE, READ
from payonce.services.billing.tokens import Claims, Expired, Tokens, is_token

BEARER: Final = HTTPBearer(
    scheme_name="AccessToken",
    bearerFormat="JWT",
    auto_error=False,
    description="`POST /v1/auth/login` gives a token. Operators may use an API key instead: `payonce keys add`.",
)
KEY_NEEDED: Final = (
    "a valid access token or API key is needed, in the header Authorization with the scheme Bearer; "
    "POST /v1/auth/login gives a token, payonce keys add a key"
)
ACCESS_TOKENS: Final = "access tokens"
OPERATOR: Final = "operator"
LOOKING: Final = ("GET", "HEAD")
TRIES_MAX: Final = 30
"""Of one customer within a quarter of an hour: who finds out which of many cards are good needs more."""
NOT_HERE: Final = (
    "this process runs no role of billing; ask the one that runs billing.subscriptions or billing.payments"
)

Found = TypeVar("Found")


@dataclass(frozen=True)
class Who(Caller):
    account_id: str | None = None
    """Of who logged in; None for a key."""
    operator: bool = False
    """Sees and may change what is others'."""

    @property
    def idempotency_scope(self) -> str:
        return super().idempotency_scope if self.account_id is None else f"account {self.account_id}"

    def may_see(self, account_id: str) -> bool:
        """What is somebody else's is answered like what is not there."""
        return self.operator or account_id == self.account_id


def customer() -> Any:
    """Whoever logged in. Keys have no account, so they are told that this is not for them."""
    return Security(_customer)


@cache
def either(scope: str) -> Any:
    """Whoever logged in, or a key with the scope: then `account_id` is None, and what is asked for names it. Whoever
    changes something, such as a card, is held against their account at this very moment."""

    async def caller(request: Request, given: Annotated[HTTPAuthorizationCredentials | None, Security(BEARER)]) -> Who:
        return await _identified(request, given, scope, fresh=request.method not in LOOKING)

    return Security(caller)


@cache
def operator(scope: str = OPERATE) -> Any:
    """An operator who logged in, or a key with the scope; 403 for customers."""

    async def caller(request: Request, given: Annotated[HTTPAuthorizationCredentials | None, Security(BEARER)]) -> Who:
        return _as_operator(await _identified(request, given, scope, fresh=True))

    return Security(caller)


@cache
def moving(scope: str, *, operators: bool = False) -> Any:
    """For a POST that moves money: `Annotated[Once, moving(CHARGE)]`. It needs an Idempotency-Key, and a token is held
    against its account at this very moment."""

    async def caller(request: Request, given: Annotated[HTTPAuthorizationCredentials | None, Security(BEARER)]) -> Who:
        who = await _identified(request, given, scope, fresh=True)
        return _as_operator(who) if operators else who

    return once_for(Security(caller))


async def identify(request: Request, scope: str) -> Who:
    """As `either`, for a route that reads its request itself."""
    return await _identified(request, await BEARER(request), scope)


async def is_operator(request: Request, given: HTTPAuthorizationCredentials) -> bool | None:
    """Whether an operator logged in with this access token; None for what is no access token."""
    return (await _identified(request, given, READ)).operator if is_token(given.credentials) else None


def who_of(once: Once) -> Who:
    assert isinstance(once.caller, Who)
    return once.caller


def account_of(who: Who, account_id: str | None) -> str:
    """A customer's own account; for those who act for others the one that they name."""
    if account_id is not None and not who.may_see(account_id):
        raise not_found(f"account {account_id!r}")
    chosen = account_id or who.account_id
    if chosen is None:
        raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, "account_id is missing: a key has no account of its own")
    return chosen


async def take_try(tx: Tx, who: Who) -> None:
    """A customer brings a card, chooses one, or has something charged out of turn: so often and no more, or the
    gateway would be asked about cards that are not theirs. Operators and keys act for many."""
    if who.operator or who.account_id is None:
        return
    try:
        await count_action(tx.connection, "cards and payments of this account", who.account_id, TRIES_MAX)
    except TooManyAttempts as no:
        raise too_many(no) from no


def too_many(no: TooManyAttempts | PasswordQueueFull) -> Problem:
    return Problem(HTTPStatus.TOO_MANY_REQUESTS, str(no), headers={"Retry-After": str(no.wait_s)})


def opened(context: AppContext, kind: type[Found]) -> Found:
    """What a role of billing opened in this process, or 404."""
    for resource in context.resources:
        if isinstance(resource, kind):
            return resource
    raise Problem(HTTPStatus.NOT_FOUND, NOT_HERE)


async def _customer(request: Request, given: Annotated[HTTPAuthorizationCredentials | None, Security(BEARER)]) -> Who:
    who = await _identified(request, given, None, fresh=True)
    if who.account_id is None:
        raise Problem(HTTPStatus.FORBIDDEN, "this is for people who log in, and a key has no account")
    return who


async def _identified(
    request: Request, given: HTTPAuthorizationCredentials | None, scope: str | None, *, fresh: bool = False
) -> Who:
    if given is None or not is_token(given.credentials):
        key = await authorize(request, given, scope, challenge=KEY_NEEDED, no_tenants=NO_TENANTS)
        if scope is not None:
            opened(context_of(request), Tokens)
        return Who(key.key, key.holder, key.tenant, operator=True)
    digest = check_attempt_limit(request, given, ACCESS_TOKENS)
    tokens = opened(context_of(request), Tokens)
    claims = await _read(request, tokens, given.credentials, digest, fresh)
    attempts_of(request, ACCESS_TOKENS).succeeded(digest)
    return Who("", claims.account_id, None, claims.account_id, claims.role == OPERATOR)


async def _read(request: Request, tokens: Tokens, text: str, digest: bytes, fresh: bool) -> Claims:
    try:
        claims = tokens.read(text)
    except Expired:
        TOKEN_FAILURES.labels("expired").inc()
        raise unauthorized(KEY_NEEDED) from None
    if claims is None:
        record_failure(request, digest, ACCESS_TOKENS)
        raise unauthorized(KEY_NEEDED)
    if not await tokens.counts(claims, fresh=fresh):
        TOKEN_FAILURES.labels("ended").inc()
        raise unauthorized(KEY_NEEDED)
    return claims


def _as_operator(who: Who) -> Who:
    if not who.operator:
        TOKEN_FAILURES.labels("scope").inc()
        raise Problem(HTTPStatus.FORBIDDEN, "this is for operators; ask one, or log in as one")
    return who
