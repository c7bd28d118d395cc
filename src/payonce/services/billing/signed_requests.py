"""Signed requests between the two billing services, by their shared secret."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec
from starlette.requests import Request

from payonce.engine.messages.transaction import Reader
from payonce.engine.webhooks import Receiver
from payonce.http.kit.context import AppContext
from payonce.http.kit.json_bodies import refuse_repeated
from payonce.http.kit.problems import Problem
from payonce.kit.ids import new_id
from payonce.kit.outcomes import Invalid
from payonce.kit.webhooks import TOLERANCE_S, Refusal, Scheme, Secret, signed_headers

if TYPE_CHECKING:
    from payonce.kit.http import Application, HttpClient, Response

TIMEOUT_S: Final = 10.0
ANSWER_MAX_BYTES: Final = 256 * 1024
MESSAGES_PATH: Final = "/v1/messages"
"""The route of payments for messages from a subscription service with a database of its own."""
TOKEN_VERSION_PATH: Final = "/v1/auth/token-version"  # noqa: S105 - an address
"""The route of subscriptions that returns the current token version of an account."""


@dataclass(frozen=True)
class SharedSecrets:
    """The secrets that the two services sign with. Any of them is accepted, so they can be rotated without losing a
    request."""

    secrets: Sequence[Secret] = field(repr=False)
    tolerance_s: int = TOLERANCE_S


class SignedClient:
    """The client of the other service. It signs with every active secret and the database's time."""

    def __init__(self, http: "HttpClient", url: str, secrets: Sequence[Secret], read: Reader) -> None:
        if not secrets:
            raise Invalid("there is no secret to sign requests with; set WEBHOOK_SIGNING_SECRET")
        self._http = http
        self._url = url.rstrip("/")
        self._secrets = tuple(secrets)
        self._read = read

    async def post(self, path: str, body: Any) -> "Response":
        """Raises NotSent or Unknown without a response."""
        raw = msgspec.json.encode(body)
        now = await self._read.fetchval("select payonce.due_now()")
        headers = signed_headers(self._secrets, str(new_id()), now, raw)
        headers["Content-Type"] = "application/json"
        return await self._http.request("POST", f"{self._url}{path}", body=raw, headers=headers)


@asynccontextmanager
async def open_signed_client(
    name: str, url: str, secrets: Sequence[Secret], read: Reader, *, transport: "Application | None" = None
) -> AsyncIterator[SignedClient]:
    # Imported late: commands that send no requests need no HTTP client, which is slow to load.
    from payonce.kit.http import HttpClient

    # The operator configured the URL, which may be in their own network.
    async with HttpClient(
        name, None, timeout_s=TIMEOUT_S, max_body_bytes=ANSWER_MAX_BYTES, allow_private=True, transport=transport
    ) as http:
        yield SignedClient(http, url, secrets, read)


async def read_signed(request: Request, context: AppContext, shared: SharedSecrets, consumer: str) -> bytes:
    """Returns the body after verifying its signature. Raises a 400 or 401 problem, also for duplicate names in an
    object."""
    body = await request.body()
    # Other requests are signed with the same secrets, but their bodies do not decode as the types expected here.
    receiver = Receiver(consumer, shared.secrets, Scheme.STANDARD, shared.tolerance_s)
    received = await receiver.receive(context.read, request.headers.items(), body)
    if isinstance(received, Refusal):
        raise Problem(received.status, received.detail)
    refuse_repeated(body)
    return body
