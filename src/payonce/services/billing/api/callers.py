"""Callers of billing: customers and operators by access token, operators and services by API key.

async def show(invoice_id: Id, caller: Annotated[BillingCaller, require_account_or_key(READ)]) -> InvoiceDocument: ...
async def pay(invoice_id: Id, once: Annotated[Once, require_idempotent(CHARGE)]) -> Response:
    caller = caller_of(once)
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
from payonce.services.billing.api.tokens import Claims, Expired, Tokens, is_token
from payonce.services.billing.scopes import NO_TENANTS, OPERATE, READ

BEARER: Final = HTTPBearer(
    scheme_name="AccessToken",
    bearerFormat="JWT",
    auto_error=False,
    description="`POST /v1/auth/login` issues a token. Operators may use an API key instead: `payonce keys add`.",
)
CREDENTIALS_NEEDED: Final = (
    "a valid access token or API key is needed, in the header Authorization with the scheme Bearer; "
    "POST /v1/auth/login issues a token, payonce keys add an API key"
)
ACCESS_TOKENS: Final = "access tokens"
OPERATOR: Final = "operator"
READ_METHODS: Final = ("GET", "HEAD")
ATTEMPTS_MAX: Final = 30
"""Per customer and quarter of an hour: testing stolen cards takes more attempts."""
NO_BILLING_ROLE: Final = (
    "this process runs no billing role; send the request to one that runs billing.subscriptions or billing.payments"
)

Resource = TypeVar("Resource")


@dataclass(frozen=True)
class BillingCaller(Caller):
    account_id: str | None = None
    """The account that logged in; None for an API key."""
    operator: bool = False
    """May read and change the resources of every account."""

    @property
    def idempotency_scope(self) -> str:
        return super().idempotency_scope if self.account_id is None else f"account {self.account_id}"

    def may_see(self, account_id: str) -> bool:
        """Other accounts' resources return 404."""
        return self.operator or account_id == self.account_id


def require_account() -> Any:
    """A logged-in customer or operator. API keys have no account and get 403."""
    return Security(_customer)


@cache
def require_account_or_key(scope: str) -> Any:
    """A logged-in account, or an API key with the scope; a key has no `account_id`, so its requests name one. For
    methods that change something, the token is checked against its account without the cache."""

    async def identify(
        request: Request, given: Annotated[HTTPAuthorizationCredentials | None, Security(BEARER)]
    ) -> BillingCaller:
        return await _identified(request, given, scope, fresh=request.method not in READ_METHODS)

    return Security(identify)


@cache
def require_operator(scope: str = OPERATE) -> Any:
    """A logged-in operator, or an API key with the scope; 403 for customers."""

    async def identify(
        request: Request, given: Annotated[HTTPAuthorizationCredentials | None, Security(BEARER)]
    ) -> BillingCaller:
        return _as_operator(await _identified(request, given, scope, fresh=True))

    return Security(identify)


@cache
def require_idempotent(scope: str, *, operators: bool = False) -> Any:
    """For a POST that moves money: `Annotated[Once, require_idempotent(CHARGE)]`. It requires an Idempotency-Key and
    checks the token against its account without the cache."""

    async def identify(
        request: Request, given: Annotated[HTTPAuthorizationCredentials | None, Security(BEARER)]
    ) -> BillingCaller:
        caller = await _identified(request, given, scope, fresh=True)
        return _as_operator(caller) if operators else caller

    return once_for(Security(identify))


async def identify_caller(request: Request, scope: str) -> BillingCaller:
    """Like `require_account_or_key`, for a route that parses its request itself."""
    return await _identified(request, await BEARER(request), scope)


async def is_operator(request: Request, given: HTTPAuthorizationCredentials) -> bool | None:
    """Whether the access token belongs to an operator; None if it is not an access token."""
    return (await _identified(request, given, READ)).operator if is_token(given.credentials) else None


def operator_scheme() -> HTTPBearer:
    """The security scheme of access tokens."""
    return BEARER


def caller_of(once: Once) -> BillingCaller:
    assert isinstance(once.caller, BillingCaller)
    return once.caller


def account_of(caller: BillingCaller, account_id: str | None) -> str:
    """The caller's own account, or the named one if the caller may act for it. Raises a 404 or 422 problem."""
    if account_id is not None and not caller.may_see(account_id):
        raise not_found(f"account {account_id!r}")
    chosen = account_id or caller.account_id
    if chosen is None:
        raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, "account_id is missing: an API key has no account of its own")
    return chosen


async def limit_attempts(tx: Tx, caller: BillingCaller) -> None:
    """Limits how often a customer adds or selects a card, or requests a charge: otherwise the endpoint could be used to
    test stolen cards. Operators and API keys are not limited, since they act for many customers."""
    if caller.operator or caller.account_id is None:
        return
    try:
        await count_action(tx, "cards and payments of this account", caller.account_id, ATTEMPTS_MAX)
    except TooManyAttempts as refusal:
        raise too_many(refusal) from refusal


def too_many(refusal: TooManyAttempts | PasswordQueueFull) -> Problem:
    return Problem(HTTPStatus.TOO_MANY_REQUESTS, str(refusal), headers={"Retry-After": str(refusal.wait_s)})


def require_resource(context: AppContext, kind: type[Resource]) -> Resource:
    """The resource of this type that a billing role opened in this process; raises a 404 problem if there is none."""
    for resource in context.resources:
        if isinstance(resource, kind):
            return resource
    raise Problem(HTTPStatus.NOT_FOUND, NO_BILLING_ROLE)


async def _customer(
    request: Request, given: Annotated[HTTPAuthorizationCredentials | None, Security(BEARER)]
) -> BillingCaller:
    caller = await _identified(request, given, None, fresh=True)
    if caller.account_id is None:
        raise Problem(HTTPStatus.FORBIDDEN, "this route needs an account, which an API key does not have; log in")
    return caller


async def _identified(
    request: Request, given: HTTPAuthorizationCredentials | None, scope: str | None, *, fresh: bool = False
) -> BillingCaller:
    if given is None or not is_token(given.credentials):
        key = await authorize(request, given, scope, challenge=CREDENTIALS_NEEDED, no_tenants=NO_TENANTS)
        if scope is not None:
            require_resource(context_of(request), Tokens)
        return BillingCaller(key.key, key.holder, key.tenant, operator=True)
    digest = check_attempt_limit(request, given, ACCESS_TOKENS)
    tokens = require_resource(context_of(request), Tokens)
    claims = await _read(request, tokens, given.credentials, digest, fresh)
    attempts_of(request, ACCESS_TOKENS).succeeded(digest)
    return BillingCaller("", claims.account_id, None, claims.account_id, claims.role == OPERATOR)


async def _read(request: Request, tokens: Tokens, text: str, digest: bytes, fresh: bool) -> Claims:
    try:
        claims = tokens.read(text)
    except Expired:
        TOKEN_FAILURES.labels("expired").inc()
        raise unauthorized(CREDENTIALS_NEEDED) from None
    if claims is None:
        record_failure(request, digest, ACCESS_TOKENS)
        raise unauthorized(CREDENTIALS_NEEDED)
    if not await tokens.counts(claims, fresh=fresh):
        TOKEN_FAILURES.labels("ended").inc()
        raise unauthorized(CREDENTIALS_NEEDED)
    return claims


def _as_operator(caller: BillingCaller) -> BillingCaller:
    if not caller.operator:
        TOKEN_FAILURES.labels("scope").inc()
        raise Problem(HTTPStatus.FORBIDDEN, "this route is for operators; log in as one, or ask one")
    return caller
