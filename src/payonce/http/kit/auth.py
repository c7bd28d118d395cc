"""Who calls, by their API key, and whether they may: `caller: Annotated[Caller, require("transfers:read")]`."""

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
    scheme_name="ApiKey", description="`payonce keys add` makes a key and shows it once.", auto_error=False
)
# Written as the header is, it would be taken for a secret and hidden.
KEY_NEEDED: Final = (
    "a valid API key is needed, in the header Authorization with the scheme Bearer; payonce keys add gives one"
)
API_KEYS: Final = "API keys"
NO_TENANTS: Final = "it sees the work of every tenant; use a key without a tenant, which payonce keys add gives"

log = get_logger(__name__)


@dataclass(frozen=True)
class Caller:
    key: str
    """The visible part of their API key."""
    holder: str
    """In whose name they act."""
    tenant: str | None
    """Whose data they see; None for those of the house."""

    @property
    def idempotency_scope(self) -> str:
        """Idempotency keys are theirs: they outlive an API key that is replaced between two tries."""
        return f"holder {self.holder}" if self.tenant is None else f"tenant {self.tenant}"


TENANT_ROUTE_SCOPES: Final[set[str]] = set()
"""The scopes with which some route lets keys of a tenant in."""


def require(scope: str, *, tenants: bool = False) -> Any:
    """The caller, if their key has the scope: 401 for every key that is none, 403 without the scope.
    Only routes that keep tenants apart let keys of a tenant in."""
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
    """The holder of the key that was given; without a scope, of any key. `challenge` is what a stranger is told,
    `no_tenants` why a key of a tenant is refused and what to do instead."""
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
        text = f"key {key.prefix} is one of tenant {key.tenant!r}, and this route takes none of a tenant: {no_tenants}"
        raise Problem(HTTPStatus.FORBIDDEN, text)
    if scope is not None and scope not in key.scopes:
        TOKEN_FAILURES.labels("scope").inc()
        raise Problem(HTTPStatus.FORBIDDEN, f"key {key.prefix} has not the scope {scope}; payonce keys add gives one")
    return Caller(key.prefix, key.holder, key.tenant)


def check_attempt_limit(request: Request, given: HTTPAuthorizationCredentials, kind: str) -> bytes:
    """The digest of what was given, unless too many of this kind that were wrong came from the same address."""
    digest = digest_of(given.credentials)
    if wait_s := attempts_of(request, kind).wait_s(address_of(request), digest):
        TOKEN_FAILURES.labels("too_many").inc()
        raise Problem(
            HTTPStatus.TOO_MANY_REQUESTS,
            f"too many unknown {kind} came from this address",
            headers={"Retry-After": str(math.ceil(wait_s))},
        )
    return digest


def record_failure(request: Request, digest: bytes, kind: str) -> None:
    """Counts a wrong one against its address."""
    attempts_of(request, kind).failed(address_of(request), digest)
    TOKEN_FAILURES.labels("unknown").inc()
    log.warning("api_key_refused", kind=kind, address=address_of(request), path=request.url.path)


def attempts_of(request: Request, kind: str) -> Attempts:
    return cast(dict[str, Attempts], request.app.state.attempts)[kind]


def address_of(request: Request) -> str:
    return request.client.host if request.client is not None else ""


def unauthorized(challenge: str = KEY_NEEDED) -> Problem:
    """One answer for missing, unknown, expired and revoked keys: it tells a guesser nothing."""
    return Problem(HTTPStatus.UNAUTHORIZED, challenge, headers={"WWW-Authenticate": "Bearer"})
