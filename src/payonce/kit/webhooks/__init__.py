"""Signed webhooks, pure: secrets, signing and verifying, by Standard Webhooks and by the older timestamped scheme."""

from payonce.kit.webhooks.secrets import Secret, new_secret
from payonce.kit.webhooks.signatures import signed_headers
from payonce.kit.webhooks.verification import BODY_MAX_BYTES, TOLERANCE_S, Refusal, Scheme, Verified, Why, verify

__all__ = [
    "BODY_MAX_BYTES",
    "TOLERANCE_S",
    "Refusal",
    "Scheme",
    "Secret",
    "Verified",
    "Why",
    "new_secret",
    "signed_headers",
    "verify",
]
