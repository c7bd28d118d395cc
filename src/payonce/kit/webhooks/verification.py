"""Verifies signed webhooks before anything reads their body.

`verify` is total: for any input it returns `Verified`, or a `Refusal` with its HTTP status.

    400  missing      a header is missing
         malformed    a header cannot be parsed
         stale        the timestamp is older than the tolerance
         future       the timestamp is further ahead than the tolerance
    401  forged       no signature was made by one of our secrets
    413  too large    the body exceeds the size limit
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
"""Headers by name, or as pairs, as in ASGI or a framework's mapping. Names in any case."""

_DIGITS: Final = re.compile(r"[0-9]{1,12}", re.ASCII)
_PRINTABLE: Final = re.compile(r"[\x21-\x7e]+", re.ASCII)
_BEGINS_WITH_A_TIME: Final = re.compile(rb"[0-9]+\.")


class Scheme(StrEnum):
    STANDARD = "standard"
    """Standard Webhooks: webhook-id, webhook-timestamp, webhook-signature; `id.timestamp.body` is signed."""
    OLDER = "older"
    """X-Webhook-Timestamp and X-Webhook-Signature: sha256=…; `timestamp.body` is signed. No header has an event id."""


class RefusalReason(StrEnum):
    MISSING = "missing"
    MALFORMED = "malformed"
    STALE = "stale"
    FUTURE = "future"
    FORGED = "forged"
    TOO_LARGE = "too large"


_STATUS: Final = {
    RefusalReason.FORGED: HTTPStatus.UNAUTHORIZED,
    RefusalReason.TOO_LARGE: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
}


@dataclass(frozen=True)
class Refusal:
    """Why a request is refused, for the sender to act on. Quotes nothing of the request."""

    why: RefusalReason
    detail: str

    @property
    def status(self) -> int:
        return int(_STATUS.get(self.why, HTTPStatus.BAD_REQUEST))

    def problem(self, instance: str = "") -> dict[str, Any]:
        """A problem document (RFC 9457)."""
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
    """The time at which the sender signed it."""
    id: str | None
    """The signed event id; None in the older scheme, where at most the body has one."""


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
    """Verifies the raw bytes. Any of the `secrets` may have signed them, so that secrets can be rotated without a
    gap."""
    if not secrets or len(secrets) > signatures.SECRETS_MAX:
        raise Invalid(f"{len(secrets)} secrets to verify with; there must be 1 to {signatures.SECRETS_MAX}")
    if not 1 <= tolerance_s <= TOLERANCE_MAX_S:
        raise Invalid(f"tolerance_s is {tolerance_s}; it must be 1 to {TOLERANCE_MAX_S} seconds")
    if not schemes:
        raise Invalid("no scheme to verify by; accept the standard one, the older one, or both")
    if len(body) > BODY_MAX_BYTES:
        return Refusal(RefusalReason.TOO_LARGE, f"the body has more than {BODY_MAX_BYTES} bytes")
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
    """The relevant headers. Refuses duplicates: a proxy may have checked the other one."""
    ours = {name for names in _NAMES.values() for name in names}
    found: dict[str, str] = {}
    for name, value in headers.items() if isinstance(headers, Mapping) else headers:
        lowered = _text(name).lower()
        if lowered not in ours:
            continue
        if lowered in found:
            return Refusal(RefusalReason.MALFORMED, f"the header {lowered} occurs more than once")
        found[lowered] = _text(value).strip(" \t")
        if len(found[lowered]) > HEADER_MAX_CHARS:
            return Refusal(RefusalReason.MALFORMED, f"the header {lowered} has more than {HEADER_MAX_CHARS} characters")
    return found


def _text(value: str | bytes) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else value


def _scheme(found: dict[str, str], schemes: Sequence[Scheme]) -> Scheme | Refusal:
    """The first accepted scheme with any header; all of its headers must be present."""
    for scheme in schemes:
        missing = [name for name in _NAMES[scheme] if not found.get(name)]
        if not missing:
            return scheme
        if len(missing) < len(_NAMES[scheme]):
            return Refusal(RefusalReason.MISSING, f"the header {missing[0]} is missing")
    return Refusal(RefusalReason.MISSING, f"the headers {', '.join(_NAMES[schemes[0]])} are missing")


def _standard(
    found: dict[str, str], body: bytes, secrets: Sequence[Secret], now: datetime, tolerance_s: int, *, alone: bool
) -> Verified | Refusal:
    event_id, timestamp = found[signatures.ID], found[signatures.TIMESTAMP]
    if len(event_id) > signatures.ID_MAX_CHARS or not _PRINTABLE.fullmatch(event_id) or "." in event_id:
        return Refusal(
            RefusalReason.MALFORMED,
            f"{signatures.ID} must have up to {signatures.ID_MAX_CHARS} visible characters, no dot",
        )
    if not alone and event_id.isdigit():
        # The older scheme also signs `1700000000.…`: its signature would be valid here.
        return Refusal(
            RefusalReason.MALFORMED, f"{signatures.ID} has only digits, which the other scheme could have signed"
        )
    at = _timely(timestamp, signatures.TIMESTAMP, now, tolerance_s)
    if isinstance(at, Refusal):
        return at
    given = [entry[3:] for entry in found[signatures.SIGNATURE].split(" ") if entry.startswith("v1,")]
    if not 1 <= len(given) <= SIGNATURES_MAX:
        return Refusal(
            RefusalReason.MALFORMED, f"{signatures.SIGNATURE} must have 1 to {SIGNATURES_MAX} entries like v1,base64"
        )
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
        # The standard scheme also signs `id.1700000000.…` with a numeric id; its timestamp would be taken for the body.
        return Refusal(
            RefusalReason.MALFORMED, "the body begins like a timestamp, which the other scheme could have signed"
        )
    algorithm, _, given = signature.partition("=")
    if algorithm.lower() != "sha256" or not given:
        return Refusal(
            RefusalReason.MALFORMED, f"{signatures.OLDER_SIGNATURE} must read sha256= and 64 hexadecimal digits"
        )
    content = signatures.older_content(timestamp, body)
    if not _any_matches([signatures.older_signature(secret, content) for secret in secrets], [given.lower()]):
        return _forged()
    return Verified(Scheme.OLDER, at, None)


def _timely(timestamp: str, name: str, now: datetime, tolerance_s: int) -> datetime | Refusal:
    if not _DIGITS.fullmatch(timestamp):
        return Refusal(RefusalReason.MALFORMED, f"{name} must be whole seconds since 1970")
    ahead_s = int(timestamp) - now.timestamp()
    if ahead_s < -tolerance_s:
        return Refusal(RefusalReason.STALE, f"{name} is more than {tolerance_s} s old; sign each attempt anew")
    if ahead_s > tolerance_s:
        return Refusal(RefusalReason.FUTURE, f"{name} is more than {tolerance_s} s ahead; set the sender's clock")
    return datetime.fromtimestamp(int(timestamp), UTC)


def _any_matches(expected: Sequence[str], given: Sequence[str]) -> bool:
    """Compares every pair in constant time. As text: base64 has several encodings of the same bytes, and only the
    canonical one counts."""
    matches = [
        hmac.compare_digest(mine.encode(), theirs.encode("utf-8", "replace")) for mine in expected for theirs in given
    ]
    return any(matches)


def _forged() -> Refusal:
    return Refusal(
        RefusalReason.FORGED, "no signature matches the body; check the secret, and that the raw bytes were signed"
    )
