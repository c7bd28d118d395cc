"""Signed webhooks without I/O: secrets, signing and verification, by Standard Webhooks and by an older timestamped
scheme."""

from payonce.kit.webhooks.secrets import Secret, new_secret
from payonce.kit.webhooks.signatures import signed_headers
from payonce.kit.webhooks.verification import (
    BODY_MAX_BYTES,
    TOLERANCE_S,
    Refusal,
    RefusalReason,
    Scheme,
    Verified,
    verify,
)

__all__ = [
    "BODY_MAX_BYTES",
    "TOLERANCE_S",
    "Refusal",
    "RefusalReason",
    "Scheme",
    "Secret",
    "Verified",
    "new_secret",
    "signed_headers",
    "verify",
]
