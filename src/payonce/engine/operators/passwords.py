"""Passwords: hashed with scrypt in a thread, a few at a time, and compared in constant time.

Each login endpoint has threads and a queue of its own, so that many customers logging in do not keep operators out of
the console.
"""

import asyncio
import base64
import hashlib
import hmac
import os
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import Final

from payonce.engine.operators.login_limits import CONSOLE
from payonce.kit.outcomes import Invalid, PayonceError

LENGTH_MIN: Final = 12
LENGTH_MAX: Final = 1_000
COST, BLOCK, LANES = 2**15, 8, 1
"""32 MiB and about 0.1 s per hash; OWASP's second choice for scrypt takes as long and less memory."""
MEMORY_MAX_BYTES: Final = 64 * 1024 * 1024
AT_ONCE: Final = 2
"""Concurrent hashes per endpoint: many logins must not take the workers' CPU and memory."""
WAITING_MAX: Final = 40
"""Waiting hashes per endpoint: two seconds' work. Further logins are refused at once instead of waiting longer."""
QUEUE_FULL_WAIT_S: Final = 5

_SALT_BYTES, _HASH_BYTES = 16, 32


class PasswordQueueFull(PayonceError):
    """The password was not checked."""

    def __init__(self) -> None:
        super().__init__(f"too many passwords are being checked; wait {QUEUE_FULL_WAIT_S} seconds")
        self.wait_s = QUEUE_FULL_WAIT_S


def check_password(password: str) -> None:
    if not LENGTH_MIN <= len(password) <= LENGTH_MAX:
        raise Invalid(
            f"the password has {len(password):,} characters; it needs {LENGTH_MIN} to {LENGTH_MAX:,}, and a few "
            "words are easier than special characters"
        )


class _HashQueue:
    """The hashes of one endpoint."""

    def __init__(self, endpoint: str) -> None:
        self.threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix=f"passwords-{endpoint}")
        self.under_way: set[Future[bytes]] = set()


_hash_queue = cache(_HashQueue)


async def hash_password(password: str, endpoint: str = CONSOLE) -> str:
    """`scrypt$cost$block$lanes$salt$hash`, so that hashes stay readable after a change of cost."""
    salt = os.urandom(_SALT_BYTES)
    digest = await _digest(endpoint, password, salt, COST, BLOCK, LANES)
    return "$".join(("scrypt", str(COST), str(BLOCK), str(LANES), _text(salt), _text(digest)))


async def is_password(password: str, stored: str | None, endpoint: str = CONSOLE) -> bool:
    """Takes as long for an unknown name, so that the time does not reveal which names exist."""
    if stored is None:
        await _digest(endpoint, password[:LENGTH_MAX], bytes(_SALT_BYTES), COST, BLOCK, LANES)
        return False
    _, cost, block, lanes, salt, digest = stored.split("$")
    found = await _digest(endpoint, password[:LENGTH_MAX], _bytes(salt), int(cost), int(block), int(lanes))
    return hmac.compare_digest(found, _bytes(digest)) and len(password) <= LENGTH_MAX


async def _digest(endpoint: str, password: str, salt: bytes, cost: int, block: int, lanes: int) -> bytes:
    def compute() -> bytes:
        return hashlib.scrypt(
            password.encode("utf-8", "surrogatepass"),
            salt=salt,
            n=cost,
            r=block,
            p=lanes,
            maxmem=MEMORY_MAX_BYTES,
            dklen=_HASH_BYTES,
        )

    crowd = _hash_queue(endpoint)
    if len(crowd.under_way) >= AT_ONCE + WAITING_MAX:
        raise PasswordQueueFull
    hashing = crowd.threads.submit(compute)
    crowd.under_way.add(hashing)
    # When the hash ends, not when its caller goes away: a thread that has begun a hash finishes it.
    hashing.add_done_callback(crowd.under_way.discard)
    return await asyncio.wrap_future(hashing)


def _text(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)
