"""Accounts over HTTP: register, log in, stay logged in, change the password."""

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
from payonce.services.billing.callers import Who, customer, opened, too_many
from payonce.services.billing.subscriptions.domain.config import Terms
from payonce.services.billing.subscriptions.model import Account
from payonce.services.billing.subscriptions.store import accounts, password_tokens, refresh_tokens
from payonce.services.billing.subscriptions.store.accounts import (
    AccountVersions,
    NotAdmitted,
    RegistrationClosed,
    Taken,
    Wanted,
)
from payonce.services.billing.subscriptions.store.refresh_tokens import TOKEN_MAX_CHARS, Refreshing
from payonce.services.billing.tokens import Claims, Tokens

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
        description="Whose calendar counts periods, such as Asia/Dubai.",
    ),
]
Locale = Annotated[
    str,
    Field(
        min_length=2,
        max_length=20,
        pattern=NO_CONTROLS,
        examples=["ar-AE"],
        description="How amounts are written on invoices, such as en or ar-AE.",
    ),
]
RefreshText = Annotated[str, Field(min_length=1, max_length=TOKEN_MAX_CHARS, pattern=NO_CONTROLS)]
Customer = Annotated[Who, customer()]


class Registration(RequestBody):
    email: Email
    password: Password = Field(description="12 to 1,000 characters; a few words are easier than signs.")
    name: PersonName = ""
    time_zone: TimeZone = "UTC"
    locale: Locale = "en"


class Login(RequestBody):
    email: Email
    password: Password


class RefreshAsked(RequestBody):
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
    expires_in: int = Field(description="Seconds that the access token counts.")
    refresh_token: str = Field(description="Good for one use at /v1/auth/refresh; used twice, the login is over.")
    refresh_expires_at: datetime
    account: AccountDocument


def auth_routes() -> APIRouter:
    routes = APIRouter(prefix=PREFIX, tags=["auth"])
    _add_logins(routes)
    _add_passwords(routes)

    @routes.get("/me", summary="The account of whoever asks", responses=OWN)
    async def me(context: AppContextDep, who: Customer) -> AccountDocument:
        assert who.account_id is not None
        return account_document(await accounts.account(context.read, who.account_id))

    return routes


def _add_logins(routes: APIRouter) -> None:
    @routes.post("/register", status_code=201, summary="Make an account and log in", responses=REGISTER)
    async def register(body: Registration, request: Request, context: AppContextDep, trace: Trace) -> Session:
        opened(context, Tokens)
        most = opened(context, Terms).registrations_max
        wanted = Wanted(body.email, body.password.get_secret_value(), body.name, body.time_zone, body.locale)
        with _refusals():
            account = await accounts.register(
                context.database, lambda: context.begin(trace), wanted, address_of(request), most
            )
            return await _session(context, trace, account)

    @routes.post("/login", summary="Log in with e-mail address and password", responses=ENTER)
    async def log_in(body: Login, request: Request, context: AppContextDep, trace: Trace) -> Session:
        opened(context, Tokens)
        password = body.password.get_secret_value()
        with _refusals():
            account = await accounts.log_in(context.database, body.email, password, address_of(request))
            return await _session(context, trace, account)

    @routes.post("/refresh", summary="Stay logged in: a new access token and the next refresh token", responses=ENTER)
    async def refresh(body: RefreshAsked, context: AppContextDep, trace: Trace) -> Session:
        days = opened(context, Terms).refresh_days
        with _refusals():
            async with context.begin(trace) as tx:
                prolonged = await refresh_tokens.prolong(tx, body.refresh_token, days)
        if prolonged is None:
            raise Problem(HTTPStatus.UNAUTHORIZED, "this refresh token is good for nothing; log in again", headers=WWW)
        return _shown(context, *prolonged)

    @routes.post(
        "/logout",
        status_code=204,
        summary="End a login, so that it cannot be prolonged",
        responses=ENTER,
        response_class=Response,
    )
    async def log_out(body: RefreshAsked, context: AppContextDep, trace: Trace) -> Response:
        opened(context, Tokens)
        async with context.begin(trace) as tx:
            await refresh_tokens.end_login(tx, body.refresh_token)
        return Response(status_code=HTTPStatus.NO_CONTENT)


def _add_passwords(routes: APIRouter) -> None:
    @routes.post("/change-password", summary="Ends every login but the one it begins", responses=OWN)
    async def change_password(
        body: PasswordChange, request: Request, context: AppContextDep, trace: Trace, who: Customer
    ) -> Session:
        assert who.account_id is not None
        old, new = body.old_password.get_secret_value(), body.new_password.get_secret_value()
        with _refusals():
            account = await accounts.change_password(context.database, who.account_id, old, new, address_of(request))
            opened(context, AccountVersions).forget(account.id)
            return await _session(context, trace, account)

    @routes.post("/set-password", summary="Set a password with a token, and log in", responses=ENTER)
    async def set_password(body: PasswordSetting, context: AppContextDep, trace: Trace) -> Session:
        versions = opened(context, AccountVersions)
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
    days = opened(context, Terms).refresh_days
    async with context.begin(trace) as tx:
        refreshing = await refresh_tokens.begin_login(tx, account.id, days)
    return _shown(context, account, refreshing)


def _shown(context: AppContext, account: Account, refreshing: Refreshing) -> Session:
    tokens = opened(context, Tokens)
    return Session(
        access_token=tokens.issue(Claims(account.id, account.role, account.version)),
        expires_in=tokens.access_s,
        refresh_token=refreshing.token,
        refresh_expires_at=refreshing.expires_at,
        account=account_document(account),
    )


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except (TooManyAttempts, PasswordQueueFull) as no:
        raise too_many(no) from no
    except NotAdmitted as no:
        raise Problem(HTTPStatus.UNAUTHORIZED, str(no), headers=WWW) from no
    except RegistrationClosed as no:
        raise Problem(HTTPStatus.FORBIDDEN, str(no)) from no
    except Taken as no:
        raise Problem(HTTPStatus.CONFLICT, str(no)) from no
