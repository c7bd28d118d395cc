"""Authenticates callers by API key and checks scopes: `caller: Annotated[Caller, require("transfers:read")]`."""

import math
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, Any, Final, cast

from fastapi import Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.requests import Request

from payonce.engine.monitoring.metrics import TOKEN_FAILURES
from payonce.engine.operators.api_keys import authenticate, digest_of
from payonce.http.kit.attempts import Attempts
from payonce.http.kit.context import context_of
from payonce.http.kit.problems import Problem
from payonce.kit.log import get_logger

BEARER: Final = HTTPBearer(
    scheme_name="ApiKey", description="Create a key with `payonce keys add`; it is shown once.", auto_error=False
)
# Spelt like the header itself, the text would be redacted as a secret.
KEY_NEEDED: Final = (
    "a valid API key is required in the header Authorization, with the scheme Bearer; create one with payonce keys add"
)
API_KEYS: Final = "API keys"
NO_TENANTS: Final = "the route shows every tenant's data; use a key without a tenant, from payonce keys add"

log = get_logger(__name__)


@dataclass(frozen=True)
class Caller:
    key: str
    """The visible part of their API key."""
    holder: str
    """The name recorded for their actions."""
    tenant: str | None
    """The only tenant whose data they see; None for every tenant's."""

    @property
    def idempotency_scope(self) -> str:
        """The owner of idempotency keys. It stays the same when an API key is replaced between two attempts."""
        return f"holder {self.holder}" if self.tenant is None else f"tenant {self.tenant}"


TENANT_ROUTE_SCOPES: Final[set[str]] = set()
"""Scopes that some route accepts from a tenant's key."""


def require(scope: str, *, tenants: bool = False) -> Any:
    """A dependency that returns the caller; it raises 401 for an invalid key and 403 without the scope. Only routes
    that separate tenants may set `tenants`, which accepts keys of a tenant."""
    if tenants:
        TENANT_ROUTE_SCOPES.add(scope)

    async def caller(
        request: Request, given: Annotated[HTTPAuthorizationCredentials | None, Security(BEARER)]
    ) -> Caller:
        return await authorize(request, given, scope, tenants)

    return Security(caller)


async def authorize(
    request: Request,
    given: HTTPAuthorizationCredentials | None,
    scope: str | None,
    tenants: bool = False,
    *,
    challenge: str = KEY_NEEDED,
    no_tenants: str = NO_TENANTS,
) -> Caller:
    """Returns the holder of the key; without `scope`, any valid key will do. `challenge` is the text of a 401,
    `no_tenants` the reason and remedy for a tenant's key."""
    if given is None:
        TOKEN_FAILURES.labels("missing").inc()
        raise unauthorized(challenge)
    digest = check_attempt_limit(request, given, API_KEYS)
    key = await authenticate(context_of(request).database, given.credentials)
    if key is None:
        record_failure(request, digest, API_KEYS)
        raise unauthorized(challenge)
    attempts_of(request, API_KEYS).succeeded(digest)
    if key.tenant is not None and not tenants:
        TOKEN_FAILURES.labels("scope").inc()
        text = (
            f"key {key.prefix} belongs to tenant {key.tenant!r}, but this route accepts no tenant's key: {no_tenants}"
        )
        raise Problem(HTTPStatus.FORBIDDEN, text)
    if scope is not None and scope not in key.scopes:
        TOKEN_FAILURES.labels("scope").inc()
        raise Problem(
            HTTPStatus.FORBIDDEN,
            f"key {key.prefix} lacks the scope {scope}; create one that has it with payonce keys add",
        )
    return Caller(key.prefix, key.holder, key.tenant)


def check_attempt_limit(request: Request, given: HTTPAuthorizationCredentials, kind: str) -> bytes:
    """Returns the digest of the credentials. Raises Problem after too many failures of this kind from the address."""
    digest = digest_of(given.credentials)
    if wait_s := attempts_of(request, kind).wait_s(address_of(request), digest):
        TOKEN_FAILURES.labels("too_many").inc()
        raise Problem(
            HTTPStatus.TOO_MANY_REQUESTS,
            f"too many invalid {kind} came from this address; try again later",
            headers={"Retry-After": str(math.ceil(wait_s))},
        )
    return digest


def record_failure(request: Request, digest: bytes, kind: str) -> None:
    """Counts a failure against the address."""
    attempts_of(request, kind).failed(address_of(request), digest)
    TOKEN_FAILURES.labels("unknown").inc()
    log.warning("api_key_refused", kind=kind, address=address_of(request), path=request.url.path)


def attempts_of(request: Request, kind: str) -> Attempts:
    return cast(dict[str, Attempts], request.app.state.attempts)[kind]


def address_of(request: Request) -> str:
    return request.client.host if request.client is not None else ""


def unauthorized(challenge: str = KEY_NEEDED) -> Problem:
    """The same response for missing, unknown, expired and revoked keys, so that a guesser learns nothing."""
    return Problem(HTTPStatus.UNAUTHORIZED, challenge, headers={"WWW-Authenticate": "Bearer"})
