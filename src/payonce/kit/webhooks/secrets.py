"""The shared secrets of webhooks: their notation, and the keys they stand for."""

import base64
import binascii
import os
import re
from typing import Final, NoReturn

from payonce.kit.outcomes import Invalid

PREFIX: Final = "whsec_"
KEY_BYTES: Final = 32
KEY_MIN_BYTES: Final = 16
KEY_MAX_BYTES: Final = 256
_BASE64: Final = re.compile(r"[A-Za-z0-9+/]+={0,2}")
_PRINTABLE: Final = re.compile(r"[\x21-\x7e]+")


class Secret:
    """A shared secret. Cannot be shown, compared or pickled.

    `whsec_…` is the base64 of the key, as in Standard Webhooks. Any other text is the key itself, like the older
    scheme's WEBHOOK_SIGNING_SECRET; so `whsec_` and the base64 of that text stand for the same key.
    """

    __slots__ = ("_key", "_text")

    def __init__(self, text: str) -> None:
        """Raises Invalid for an unusable secret, without quoting it."""
        if not _PRINTABLE.fullmatch(text):
            raise Invalid("a webhook secret is printable ASCII without spaces; make one with `payonce webhooks secret`")
        self._text = text
        self._key = _decoded(text) if text.startswith(PREFIX) else text.encode()
        if not KEY_MIN_BYTES <= len(self._key) <= KEY_MAX_BYTES:
            raise Invalid(
                f"a webhook secret has a key of {KEY_MIN_BYTES} to {KEY_MAX_BYTES} bytes, and this one has "
                f"{len(self._key)}; make one with `payonce webhooks secret`"
            )

    @property
    def key(self) -> bytes:
        return self._key

    def reveal(self) -> str:
        """The text for the other side; the only access to it."""
        return self._text

    def __repr__(self) -> str:
        return "Secret(…)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("secrets are not pickled or copied: pass the secret itself")


def new_secret() -> Secret:
    return Secret(PREFIX + base64.b64encode(os.urandom(KEY_BYTES)).decode())


def secrets_of(text: str) -> tuple[Secret, ...]:
    """Parses one secret, or several separated by spaces during a rotation."""
    return tuple(Secret(each) for each in text.split())


def _decoded(text: str) -> bytes:
    encoded = text.removeprefix(PREFIX)
    if not _BASE64.fullmatch(encoded):
        raise Invalid(
            f"the text after {PREFIX} in a webhook secret is not base64; make one with `payonce webhooks secret`"
        )
    try:
        # Senders write it with or without padding.
        return base64.b64decode(encoded.rstrip("=") + "=" * (-len(encoded.rstrip("=")) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise Invalid(
            f"the text after {PREFIX} in a webhook secret is not base64; make one with `payonce webhooks secret`"
        ) from None
