"""Accounts over HTTP: registration, login, token refresh and passwords."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from http import HTTPStatus
from typing import Annotated, Final

from fastapi import APIRouter, Response
from pydantic import BaseModel, Field, SecretStr
from starlette.requests import Request

from payonce.engine.operators.login_limits import TooManyAttempts
from payonce.engine.operators.passwords import PasswordQueueFull
from payonce.http.kit.auth import address_of
from payonce.http.kit.context import AppContext, AppContextDep, Trace
from payonce.http.kit.problems import Problem, responses
from payonce.http.kit.values import NO_CONTROLS, RequestBody
from payonce.services.billing.api.callers import BillingCaller, require_account, require_resource, too_many
from payonce.services.billing.api.tokens import Claims, Tokens
from payonce.services.billing.subscriptions.domain.config import SubscriptionConfig
from payonce.services.billing.subscriptions.model import Account
from payonce.services.billing.subscriptions.store import accounts, password_tokens, refresh_tokens
from payonce.services.billing.subscriptions.store.accounts import (
    AccountVersions,
    LoginRefused,
    NewAccount,
    RegistrationClosed,
    RegistrationRefused,
)
from payonce.services.billing.subscriptions.store.refresh_tokens import TOKEN_MAX_CHARS, IssuedRefreshToken

PREFIX: Final = "/v1/auth"
ENTER: Final = responses(400, 401, 404, 409, 413, 422, 429, 503)
REGISTER: Final = responses(400, 401, 403, 404, 409, 413, 422, 429, 503)
OWN: Final = responses(400, 401, 403, 404, 409, 413, 422, 429, 503)
PASSWORD_MAX_CHARS: Final = 1_000

Email = Annotated[str, Field(min_length=3, max_length=300, pattern=NO_CONTROLS, examples=["ada@example.com"])]
Password = Annotated[SecretStr, Field(min_length=1, max_length=PASSWORD_MAX_CHARS)]
PersonName = Annotated[str, Field(max_length=200, pattern=NO_CONTROLS)]
TimeZone = Annotated[
    str,
    Field(
        min_length=1,
        max_length=100,
        pattern=NO_CONTROLS,
        examples=["Asia/Dubai"],
        description="Time zone of the billing periods, such as Asia/Dubai.",
    ),
]
Locale = Annotated[
    str,
    Field(
        min_length=2,
        max_length=20,
        pattern=NO_CONTROLS,
        examples=["ar-AE"],
        description="Locale of amounts on invoices, such as en or ar-AE.",
    ),
]
RefreshText = Annotated[str, Field(min_length=1, max_length=TOKEN_MAX_CHARS, pattern=NO_CONTROLS)]
Customer = Annotated[BillingCaller, require_account()]


class Registration(RequestBody):
    email: Email
    password: Password = Field(description="12 to 1,000 characters; a few words are easier to remember than symbols.")
    name: PersonName = ""
    time_zone: TimeZone = "UTC"
    locale: Locale = "en"


class Login(RequestBody):
    email: Email
    password: Password


class TokenRefresh(RequestBody):
    refresh_token: RefreshText


class PasswordChange(RequestBody):
    old_password: Password
    new_password: Password = Field(description="12 to 1,000 characters.")


class PasswordSetting(RequestBody):
    token: Annotated[str, Field(min_length=1, max_length=password_tokens.TOKEN_MAX_CHARS, pattern=NO_CONTROLS)]
    new_password: Password = Field(description="12 to 1,000 characters.")


class AccountDocument(BaseModel):
    id: str
    email: str
    name: str
    role: str
    time_zone: str
    locale: str
    test_clock_id: str | None
    created_at: datetime


class Session(BaseModel):
    access_token: str = Field(description="For the header Authorization with the scheme Bearer.")
    token_type: str = "bearer"  # noqa: S105 - what OAuth calls it
    expires_in: int = Field(description="Lifetime of the access token in seconds.")
    refresh_token: str = Field(description="Valid for one use at /v1/auth/refresh; reusing it ends the login.")
    refresh_expires_at: datetime
    account: AccountDocument


def auth_routes() -> APIRouter:
    routes = APIRouter(prefix=PREFIX, tags=["auth"])
    _add_logins(routes)
    _add_passwords(routes)

    @routes.get("/me", summary="Get the caller's account", responses=OWN)
    async def me(context: AppContextDep, caller: Customer) -> AccountDocument:
        assert caller.account_id is not None
        return account_document(await accounts.account(context.read, caller.account_id))

    return routes


def _add_logins(routes: APIRouter) -> None:
    @routes.post("/register", status_code=201, summary="Create an account and log in", responses=REGISTER)
    async def register(body: Registration, request: Request, context: AppContextDep, trace: Trace) -> Session:
        require_resource(context, Tokens)
        most = require_resource(context, SubscriptionConfig).registrations_max
        wanted = NewAccount(body.email, body.password.get_secret_value(), body.name, body.time_zone, body.locale)
        with _refusals():
            account = await accounts.register(
                context.database, lambda: context.begin(trace), wanted, address_of(request), most
            )
            return await _session(context, trace, account)

    @routes.post("/login", summary="Log in with an e-mail address and a password", responses=ENTER)
    async def log_in(body: Login, request: Request, context: AppContextDep, trace: Trace) -> Session:
        require_resource(context, Tokens)
        password = body.password.get_secret_value()
        with _refusals():
            account = await accounts.log_in(context.database, body.email, password, address_of(request))
            return await _session(context, trace, account)

    @routes.post(
        "/refresh", summary="Exchange a refresh token for a new access token and refresh token", responses=ENTER
    )
    async def refresh(body: TokenRefresh, context: AppContextDep, trace: Trace) -> Session:
        days = require_resource(context, SubscriptionConfig).refresh_days
        with _refusals():
            async with context.begin(trace) as tx:
                prolonged = await refresh_tokens.rotate(tx, body.refresh_token, days)
        if prolonged is None:
            raise Problem(HTTPStatus.UNAUTHORIZED, "this refresh token is not valid; log in again", headers=WWW)
        return _shown(context, *prolonged)

    @routes.post(
        "/logout",
        status_code=204,
        summary="Log out: revoke the login's refresh tokens",
        responses=ENTER,
        response_class=Response,
    )
    async def log_out(body: TokenRefresh, context: AppContextDep, trace: Trace) -> Response:
        require_resource(context, Tokens)
        async with context.begin(trace) as tx:
            await refresh_tokens.end_login(tx, body.refresh_token)
        return Response(status_code=HTTPStatus.NO_CONTENT)


def _add_passwords(routes: APIRouter) -> None:
    @routes.post("/change-password", summary="Change the password; ends every other login", responses=OWN)
    async def change_password(
        body: PasswordChange, request: Request, context: AppContextDep, trace: Trace, caller: Customer
    ) -> Session:
        assert caller.account_id is not None
        old, new = body.old_password.get_secret_value(), body.new_password.get_secret_value()
        with _refusals():
            account = await accounts.change_password(context.database, caller.account_id, old, new, address_of(request))
            require_resource(context, AccountVersions).forget(account.id)
            return await _session(context, trace, account)

    @routes.post("/set-password", summary="Set a password with a token, and log in", responses=ENTER)
    async def set_password(body: PasswordSetting, context: AppContextDep, trace: Trace) -> Session:
        versions = require_resource(context, AccountVersions)
        new = body.new_password.get_secret_value()
        with _refusals():
            account = await password_tokens.set_password(
                context.database, lambda: context.begin(trace), body.token, new
            )
            if account is None:
                text = "this token was used, replaced or has expired; ask the merchant for a new link"
                raise Problem(HTTPStatus.UNAUTHORIZED, text, headers=WWW)
            versions.forget(account.id)
            return await _session(context, trace, account)


WWW: Final = {"WWW-Authenticate": "Bearer"}


def account_document(account: Account) -> AccountDocument:
    return AccountDocument(
        id=account.id,
        email=account.email,
        name=account.name,
        role=account.role,
        time_zone=account.time_zone,
        locale=account.locale,
        test_clock_id=account.test_clock_id,
        created_at=account.created_at,
    )


async def _session(context: AppContext, trace: str | None, account: Account) -> Session:
    days = require_resource(context, SubscriptionConfig).refresh_days
    async with context.begin(trace) as tx:
        issued = await refresh_tokens.begin_login(tx, account.id, days)
    return _shown(context, account, issued)


def _shown(context: AppContext, account: Account, issued: IssuedRefreshToken) -> Session:
    tokens = require_resource(context, Tokens)
    return Session(
        access_token=tokens.issue(Claims(account.id, account.role, account.version)),
        expires_in=tokens.access_s,
        refresh_token=issued.token,
        refresh_expires_at=issued.expires_at,
        account=account_document(account),
    )


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except (TooManyAttempts, PasswordQueueFull) as refusal:
        raise too_many(refusal) from refusal
    except LoginRefused as refusal:
        raise Problem(HTTPStatus.UNAUTHORIZED, str(refusal), headers=WWW) from refusal
    except RegistrationClosed as refusal:
        raise Problem(HTTPStatus.FORBIDDEN, str(refusal)) from refusal
    except RegistrationRefused as refusal:
        raise Problem(HTTPStatus.CONFLICT, str(refusal)) from refusal
