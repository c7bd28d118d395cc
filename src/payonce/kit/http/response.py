"""One attempt at a request, which reads the body within a bound, and the finished answer."""

import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any, ClassVar, Final, TypeVar

import msgspec
from multidict import CIMultiDict, CIMultiDictProxy

from payonce.kit.http.failures import BodyTooLarge, Broken
from payonce.kit.money import loads_exact
from payonce.kit.outcomes import Invalid, Unknown
from payonce.kit.redact import redact

EXCERPT_MAX_CHARS: Final = 200
RETRY_AFTER_MAX_S: Final = 86_400
"""Longer waits are cut to one day."""

Shape = TypeVar("Shape")


@dataclass(frozen=True, slots=True)
class Response:
    """An answer of any status. Its repr omits headers and body, which may contain secrets."""

    status: int
    headers: CIMultiDictProxy[str] = field(repr=False)
    body: bytes = field(repr=False)
    elapsed_s: float
    source: str = ""
    """Client, method and path, for error messages."""

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300

    @property
    def retry_after_s(self) -> int | None:
        """Retry-After in seconds. A date is relative to the Date of the answer, that is, to the vendor's clock."""
        text = self.headers.get("Retry-After", "").strip()
        if text.isascii() and text.isdigit():
            return min(int(text[:9]), RETRY_AFTER_MAX_S)
        try:
            until, since = (parsedate_to_datetime(date) for date in (text, self.headers.get("Date", "")))
            return min(max(int((until - since).total_seconds()), 0), RETRY_AFTER_MAX_S)
        except (ValueError, TypeError, OverflowError):
            return None

    def json(self) -> Any:
        """The body with exact numbers. Raises Unknown for unreadable JSON, which proves nothing."""
        try:
            return loads_exact(self.body)
        except Invalid as problem:
            raise Unknown(f"{self.source} answered {self.status}, and {problem}: {self.excerpt()}") from None

    def decode(self, shape: type[Shape]) -> Shape:
        """The body as a vendor's document of that shape. Raises Unknown for anything else: the call may have
        succeeded."""
        try:
            return msgspec.json.decode(self.body, type=shape)
        except (msgspec.MsgspecError, ValueError) as error:
            raise Unknown(f"{self.source} answered {self.status} in a form that is not its own: {error}") from None

    def text(self) -> str:
        return self.body.decode("utf-8", "replace")

    def excerpt(self) -> str:
        """The beginning of the body without secrets; the only part for logs and errors."""
        # Redacted before the final cut, or half a secret would stay unrecognised; cut first because bodies are long.
        beginning = self.body[: EXCERPT_MAX_CHARS * 10].decode("utf-8", "replace")
        text = redact(" ".join(beginning.split()), max_chars=EXCERPT_MAX_CHARS * 8)
        return text if len(text) <= EXCERPT_MAX_CHARS else f"{text[:EXCERPT_MAX_CHARS]}…"


class Attempt:
    """One request. The transport records its progress here; the client derives the outcome from it."""

    wants_body: ClassVar = True
    """False to ignore the rest of a body that has begun."""

    def __init__(self, body_max_bytes: int) -> None:
        self.may_have_left = False
        """True from just before the first byte is written: from then on a failure is unknown."""
        self.status = 0
        self.headers: CIMultiDict[str] = CIMultiDict()
        self._body_max_bytes = body_max_bytes
        self._body = bytearray()
        self._raw_bytes = 0
        self._gzip: zlib._Decompress | None = None

    def begin(self, status: int, headers: Iterable[tuple[str, str]]) -> None:
        self.status = status
        self.headers = CIMultiDict(headers)
        encoding = self.headers.get("Content-Encoding", "identity").strip().lower()
        if encoding in ("gzip", "x-gzip"):
            self._gzip = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
        elif encoding not in ("identity", ""):
            raise Broken("answered in an encoding that was not asked for")

    def feed(self, chunk: bytes) -> None:
        """Bounds the size before and after decompression: a kilobyte of gzip can contain a megabyte."""
        self._raw_bytes += len(chunk)
        room = self._body_max_bytes - len(self._body)
        if self._gzip is not None and chunk:
            try:
                chunk = self._gzip.decompress(chunk, room + 1)
            except zlib.error:
                raise Broken("answered with damaged gzip") from None
            if self._gzip.unused_data:
                # Readers differ in how they treat it, so the body is ambiguous.
                raise Broken("answered with more after the end of its gzip")
        if len(chunk) > room or self._raw_bytes > self._body_max_bytes:
            raise BodyTooLarge(f"answered {self.status} with a body over {self._body_max_bytes} bytes", self.status)
        self._body += chunk

    def finish(self) -> tuple[CIMultiDictProxy[str], bytes]:
        if self._gzip is not None and self._raw_bytes and not self._gzip.eof:
            raise Broken("answered with gzip that ends too early")
        return CIMultiDictProxy(self.headers), bytes(self._body)
