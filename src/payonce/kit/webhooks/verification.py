"""What a receiver does before it reads a single byte of the body as anything but bytes.

`verify` is total: whatever a stranger sends, it answers with `Verified` or with a `Refusal` that has its HTTP status.

    400  missing      a header is not there
         malformed    a header cannot be read
         stale        the timestamp is older than the tolerance
         future       the timestamp is further ahead than the tolerance
    401  forged       no signature was made by one of our secrets
    413  too large    more bytes than we are willing to hash
"""

import hmac
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from http import HTTPStatus
from typing import Any, Final

from payonce.kit.outcomes import Invalid
from payonce.kit.webhooks import signatures
from payonce.kit.webhooks.secrets import Secret

TOLERANCE_S: Final = 300
TOLERANCE_MAX_S: Final = 86_400
BODY_MAX_BYTES: Final = 1024 * 1024
HEADER_MAX_CHARS: Final = 4_096
SIGNATURES_MAX: Final = 20

Headers = Mapping[str, str] | Iterable[tuple[str | bytes, str | bytes]]
"""By name, or as pairs: as ASGI has them, or a framework's mapping. Names in any case."""

_DIGITS: Final = re.compile(r"[0-9]{1,12}", re.ASCII)
_PRINTABLE: Final = re.compile(r"[\x21-\x7e]+", re.ASCII)
_BEGINS_WITH_A_TIME: Final = re.compile(rb"[0-9]+\.")


class Scheme(StrEnum):
    STANDARD = "standard"
    """Standard Webhooks: webhook-id, webhook-timestamp, webhook-signature; `id.timestamp.body` is signed."""
    OLDER = "older"
    """X-Webhook-Timestamp and X-Webhook-Signature: sha256=…; `timestamp.body` is signed. It has no id in a header."""


class Why(StrEnum):
    MISSING = "missing"
    MALFORMED = "malformed"
    STALE = "stale"
    FUTURE = "future"
    FORGED = "forged"
    TOO_LARGE = "too large"


_STATUS: Final = {Why.FORGED: HTTPStatus.UNAUTHORIZED, Why.TOO_LARGE: HTTPStatus.REQUEST_ENTITY_TOO_LARGE}


@dataclass(frozen=True)
class Refusal:
    """Why a request is not taken in, for the sender to act on. Nothing of the request is quoted in it."""

    why: Why
    detail: str

    @property
    def status(self) -> int:
        return int(_STATUS.get(self.why, HTTPStatus.BAD_REQUEST))

    def problem(self, instance: str = "") -> dict[str, Any]:
        """As a problem document (RFC 9457)."""
        document = {
            "type": "about:blank",
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": self.detail,
        }
        return {**document, "instance": instance} if instance else document


@dataclass(frozen=True)
class Verified:
    scheme: Scheme
    at: datetime
    """When the sender signed it."""
    id: str | None
    """The signed id of the event; None in the older scheme, where it stands in the body if anywhere."""


BOTH: Final = (Scheme.STANDARD, Scheme.OLDER)


def verify(
    headers: Headers,
    body: bytes,
    secrets: Sequence[Secret],
    now: datetime,
    *,
    tolerance_s: int = TOLERANCE_S,
    schemes: Sequence[Scheme] = BOTH,
) -> Verified | Refusal:
    """Over the raw bytes as they came. Any of the `secrets` will do, so that they can be exchanged without a gap."""
    if not secrets or len(secrets) > signatures.SECRETS_MAX:
        raise Invalid(f"{len(secrets)} secrets to verify with; there must be 1 to {signatures.SECRETS_MAX}")
    if not 1 <= tolerance_s <= TOLERANCE_MAX_S:
        raise Invalid(f"tolerance_s is {tolerance_s}; it must be 1 to {TOLERANCE_MAX_S} seconds")
    if not schemes:
        raise Invalid("no scheme to verify by; accept the standard one, the older one, or both")
    if len(body) > BODY_MAX_BYTES:
        return Refusal(Why.TOO_LARGE, f"the body has more than {BODY_MAX_BYTES} bytes")
    found = _known_headers(headers)
    if isinstance(found, Refusal):
        return found
    scheme = _scheme(found, schemes)
    if isinstance(scheme, Refusal):
        return scheme
    if scheme is Scheme.STANDARD:
        return _standard(found, body, secrets, now, tolerance_s, alone=len(schemes) == 1)
    return _older(found, body, secrets, now, tolerance_s, alone=len(schemes) == 1)


_NAMES: Final = {
    Scheme.STANDARD: (signatures.ID, signatures.TIMESTAMP, signatures.SIGNATURE),
    Scheme.OLDER: (signatures.OLDER_TIMESTAMP.lower(), signatures.OLDER_SIGNATURE.lower()),
}


def _known_headers(headers: Headers) -> dict[str, str] | Refusal:
    """Those that matter. One that comes twice is refused: whoever checked before us may have read the other."""
    ours = {name for names in _NAMES.values() for name in names}
    found: dict[str, str] = {}
    for name, value in headers.items() if isinstance(headers, Mapping) else headers:
        lowered = _text(name).lower()
        if lowered not in ours:
            continue
        if lowered in found:
            return Refusal(Why.MALFORMED, f"the header {lowered} is there more than once")
        found[lowered] = _text(value).strip(" \t")
        if len(found[lowered]) > HEADER_MAX_CHARS:
            return Refusal(Why.MALFORMED, f"the header {lowered} has more than {HEADER_MAX_CHARS} characters")
    return found


def _text(value: str | bytes) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else value


def _scheme(found: dict[str, str], schemes: Sequence[Scheme]) -> Scheme | Refusal:
    """The first of the accepted ones of which anything is there, and then all of it must be."""
    for scheme in schemes:
        missing = [name for name in _NAMES[scheme] if not found.get(name)]
        if not missing:
            return scheme
        if len(missing) < len(_NAMES[scheme]):
            return Refusal(Why.MISSING, f"the header {missing[0]} is missing")
    return Refusal(Why.MISSING, f"the headers {', '.join(_NAMES[schemes[0]])} are missing")


def _standard(
    found: dict[str, str], body: bytes, secrets: Sequence[Secret], now: datetime, tolerance_s: int, *, alone: bool
) -> Verified | Refusal:
    event_id, timestamp = found[signatures.ID], found[signatures.TIMESTAMP]
    if len(event_id) > signatures.ID_MAX_CHARS or not _PRINTABLE.fullmatch(event_id) or "." in event_id:
        return Refusal(
            Why.MALFORMED, f"{signatures.ID} must have up to {signatures.ID_MAX_CHARS} visible characters, no dot"
        )
    if not alone and event_id.isdigit():
        # `1700000000.…` is also what the older scheme signs: its signature would do for this one.
        return Refusal(Why.MALFORMED, f"{signatures.ID} is digits alone, which the other scheme could have signed")
    at = _timely(timestamp, signatures.TIMESTAMP, now, tolerance_s)
    if isinstance(at, Refusal):
        return at
    given = [entry[3:] for entry in found[signatures.SIGNATURE].split(" ") if entry.startswith("v1,")]
    if not 1 <= len(given) <= SIGNATURES_MAX:
        return Refusal(Why.MALFORMED, f"{signatures.SIGNATURE} must have 1 to {SIGNATURES_MAX} entries like v1,base64")
    content = signatures.standard_content(event_id, timestamp, body)
    if not _any_matches([signatures.standard_signature(secret, content) for secret in secrets], given):
        return _forged()
    return Verified(Scheme.STANDARD, at, event_id)


def _older(
    found: dict[str, str], body: bytes, secrets: Sequence[Secret], now: datetime, tolerance_s: int, *, alone: bool
) -> Verified | Refusal:
    timestamp, signature = (found[name] for name in _NAMES[Scheme.OLDER])
    at = _timely(timestamp, signatures.OLDER_TIMESTAMP, now, tolerance_s)
    if isinstance(at, Refusal):
        return at
    if not alone and _BEGINS_WITH_A_TIME.match(body):
        # `id.1700000000.…`, an id of digits: what the other scheme signs, with its timestamp taken for the body.
        return Refusal(Why.MALFORMED, "the body begins like a timestamp, which the other scheme could have signed")
    algorithm, _, given = signature.partition("=")
    if algorithm.lower() != "sha256" or not given:
        return Refusal(Why.MALFORMED, f"{signatures.OLDER_SIGNATURE} must read sha256= and 64 hexadecimal digits")
    content = signatures.older_content(timestamp, body)
    if not _any_matches([signatures.older_signature(secret, content) for secret in secrets], [given.lower()]):
        return _forged()
    return Verified(Scheme.OLDER, at, None)


def _timely(timestamp: str, name: str, now: datetime, tolerance_s: int) -> datetime | Refusal:
    if not _DIGITS.fullmatch(timestamp):
        return Refusal(Why.MALFORMED, f"{name} must be whole seconds since 1970")
    ahead_s = int(timestamp) - now.timestamp()
    if ahead_s < -tolerance_s:
        return Refusal(Why.STALE, f"{name} is more than {tolerance_s} s old; sign each attempt anew")
    if ahead_s > tolerance_s:
        return Refusal(Why.FUTURE, f"{name} is more than {tolerance_s} s ahead; set the sender's clock")
    return datetime.fromtimestamp(int(timestamp), UTC)


def _any_matches(expected: Sequence[str], given: Sequence[str]) -> bool:
    """Every pair is compared, each in the same time whichever character differs. As text: base64 has several spellings
    of the same bytes, and only the canonical one counts."""
    matches = [
        hmac.compare_digest(mine.encode(), theirs.encode("utf-8", "replace")) for mine in expected for theirs in given
    ]
    return any(matches)


def _forged() -> Refusal:
    return Refusal(Why.FORGED, "no signature fits the body; check the secret, and that the raw bytes were signed")
