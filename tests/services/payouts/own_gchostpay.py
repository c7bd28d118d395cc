"""A stand-in for somebody's own GCHostPay: it reads the tokens as the seed describes them, with nothing of ours."""

import base64
import hashlib
import hmac
import json
import struct
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from payonce.testing.server import serving

TOKEN_LIVES_S: Final = 86_400


@dataclass
class OwnGcHostPay:
    key: bytes
    calls: list[dict[str, Any]] = field(default_factory=list)
    """What each call's token says, with the headers of its task."""
    answers: list[int] = field(default_factory=list)
    """Statuses of the next calls; 200 when there are none."""

    async def pay(self, request: Request) -> JSONResponse:
        document = json.loads(await request.body())
        assert list(document) == ["token"], "nothing beside the token"
        told = decoded(document["token"], self.key)
        self.calls.append({**told, "task": request.headers["x-cloudtasks-taskname"]})
        return JSONResponse({}, self.answers.pop(0) if self.answers else 200)


def decoded(token: str, key: bytes) -> dict[str, Any]:
    """16 bytes unique_id, texts behind a byte of length, a double, the time, and 16 bytes of HMAC-SHA256."""
    raw = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
    body, mac = raw[:-16], raw[-16:]
    assert hmac.compare_digest(hmac.new(key, body, hashlib.sha256).digest()[:16], mac), "the signature is wrong"
    at = 16
    found: dict[str, Any] = {"unique_id": body[:16].rstrip(b"\x00").decode()}
    for name in ("cn_api_id", "from_currency", "from_network", "from_amount", "payin_address"):
        if name == "from_amount":
            found[name] = struct.unpack_from(">d", body, at)[0]
            at += 8
        else:
            length = body[at]
            found[name] = body[at + 1 : at + 1 + length].decode()
            at += 1 + length
    [made_at] = struct.unpack_from(">I", body, at)
    assert at + 4 == len(body), "bytes are left over"
    assert time.time() - TOKEN_LIVES_S <= made_at <= time.time() + 300, "the token is too old or too new"
    return found


@asynccontextmanager
async def listening(own: OwnGcHostPay) -> AsyncIterator[str]:
    async with serving(Starlette(routes=[Route("/pay", own.pay, methods=["POST"])])) as url:
        yield f"{url}/pay"
