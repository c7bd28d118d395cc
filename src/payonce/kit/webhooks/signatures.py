"""Signature headers of a sender: both schemes', over the exact bytes sent."""

import base64
import re
from collections.abc import Sequence
from datetime import datetime
from typing import Final

from payonce.kit.crypto import sign, sign_hex
from payonce.kit.outcomes import Invalid
from payonce.kit.webhooks.secrets import Secret

ID, TIMESTAMP, SIGNATURE = "webhook-id", "webhook-timestamp", "webhook-signature"
OLDER_TIMESTAMP, OLDER_SIGNATURE = "X-Webhook-Timestamp", "X-Webhook-Signature"

ID_MAX_CHARS: Final = 200
SECRETS_MAX: Final = 10
"""A rotation uses two; more are rotations that never ended."""
_OUR_ID: Final = re.compile(r"[A-Za-z0-9_-]*[A-Za-z_-][A-Za-z0-9_-]*")


def signed_headers(secrets: Sequence[Secret], event_id: str, at: datetime, body: bytes) -> dict[str, str]:
    """The headers of one attempt. `secrets` are those in force, the newest first.

    The standard header has a signature by each secret. The older scheme's has only one: by the oldest, so that nothing
    changes for its receivers until the rotation is complete.
    """
    if not 1 <= len(secrets) <= SECRETS_MAX:
        raise Invalid(f"{len(secrets)} secrets to sign with; there must be 1 to {SECRETS_MAX}")
    if len(event_id) > ID_MAX_CHARS or not _OUR_ID.fullmatch(event_id):
        # With a dot, or with digits only, the signed text would be ambiguous.
        raise Invalid(f"event id {event_id[:40]!r} must have letters, digits, _ or -, and not only digits")
    timestamp = str(int(at.timestamp()))
    content = standard_content(event_id, timestamp, body)
    return {
        ID: event_id,
        TIMESTAMP: timestamp,
        SIGNATURE: " ".join(f"v1,{standard_signature(secret, content)}" for secret in secrets),
        OLDER_TIMESTAMP: timestamp,
        OLDER_SIGNATURE: f"sha256={older_signature(secrets[-1], older_content(timestamp, body))}",
    }


def standard_content(event_id: str, timestamp: str, body: bytes) -> bytes:
    return b".".join((event_id.encode(), timestamp.encode(), body))


def older_content(timestamp: str, body: bytes) -> bytes:
    return b".".join((timestamp.encode(), body))


def standard_signature(secret: Secret, content: bytes) -> str:
    return base64.b64encode(sign(secret.key, content)).decode()


def older_signature(secret: Secret, content: bytes) -> str:
    return sign_hex(secret.key, content)
