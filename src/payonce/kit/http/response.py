"""What came back: one request on its way, its body taken in within a bound, and the finished answer."""

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
"""A vendor that asks for more than a day is not obeyed for more."""

Shape = TypeVar("Shape")


@dataclass(frozen=True, slots=True)
class Response:
    """An answer of any status. Headers and body stay out of its repr: either may hold a secret."""

    status: int
    headers: CIMultiDictProxy[str] = field(repr=False)
    body: bytes = field(repr=False)
    elapsed_s: float
    source: str = ""
    """Who answered what, for error texts."""

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300

    @property
    def retry_after_s(self) -> int | None:
        """Retry-After in seconds; a date in it is counted from the answer's own date, by the vendor's clock."""
        text = self.headers.get("Retry-After", "").strip()
        if text.isascii() and text.isdigit():
            return min(int(text[:9]), RETRY_AFTER_MAX_S)
        try:
            until, since = (parsedate_to_datetime(date) for date in (text, self.headers.get("Date", "")))
            return min(max(int((until - since).total_seconds()), 0), RETRY_AFTER_MAX_S)
        except (ValueError, TypeError, OverflowError):
            return None

    def json(self) -> Any:
        """With exact numbers. What cannot be read says nothing of what happened: hence `Unknown`."""
        try:
            return loads_exact(self.body)
        except Invalid as problem:
            raise Unknown(f"{self.source} answered {self.status}, and {problem}: {self.excerpt()}") from None

    def decode(self, shape: type[Shape]) -> Shape:
        """The body as a vendor's document of that shape. Unknown when it is anything else: a call that was answered so
        may have done what it was to do."""
        try:
            return msgspec.json.decode(self.body, type=shape)
        except (msgspec.MsgspecError, ValueError) as error:
            raise Unknown(f"{self.source} answered {self.status} in a form that is not its own: {error}") from None

    def text(self) -> str:
        return self.body.decode("utf-8", "replace")

    def excerpt(self) -> str:
        """The beginning of the body without secrets; the only part of it that belongs in a log or an error."""
        # Redacted before it is cut, or half a secret would go unrecognised; cut before that, as bodies are long.
        beginning = self.body[: EXCERPT_MAX_CHARS * 10].decode("utf-8", "replace")
        text = redact(" ".join(beginning.split()), max_chars=EXCERPT_MAX_CHARS * 8)
        return text if len(text) <= EXCERPT_MAX_CHARS else f"{text[:EXCERPT_MAX_CHARS]}…"


class Attempt:
    """One request on its way: a transport tells it what happens, the client judges by what it was told."""

    wants_body: ClassVar = True
    """Without it nobody waits for the rest of a body that has begun."""

    def __init__(self, body_max_bytes: int) -> None:
        self.may_have_left = False
        """True from the moment a connection stands: what is written to it can no longer be taken back."""
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
        """Bounded as sent and as unpacked: a kilobyte of gzip can hold a megabyte."""
        self._raw_bytes += len(chunk)
        room = self._body_max_bytes - len(self._body)
        if self._gzip is not None and chunk:
            try:
                chunk = self._gzip.decompress(chunk, room + 1)
            except zlib.error:
                raise Broken("answered with damaged gzip") from None
            if self._gzip.unused_data:
                # Readers differ in whether they take it: what the body is, nobody can know.
                raise Broken("answered with more after the end of its gzip")
        if len(chunk) > room or self._raw_bytes > self._body_max_bytes:
            raise BodyTooLarge(f"answered {self.status} with a body over {self._body_max_bytes} bytes", self.status)
        self._body += chunk

    def finish(self) -> tuple[CIMultiDictProxy[str], bytes]:
        if self._gzip is not None and self._raw_bytes and not self._gzip.eof:
            raise Broken("answered with gzip that ends too early")
        return CIMultiDictProxy(self.headers), bytes(self._body)
