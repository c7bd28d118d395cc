"""The settings that a service declares: a model in its module `settings`, read from the same environment."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

from pydantic import BaseModel, ConfigDict, SecretStr

if TYPE_CHECKING:
    from payonce.settings import Settings


class ServiceSettings(BaseModel):
    """Each field names its variable as `validation_alias`. Its description completes the sentence that refuses a bad
    value: what it must be. `settings.of(MySettings)` reads them."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    def check(self, settings: "Settings", roles: Sequence[str]) -> None:
        """Called before these roles of the service start. Raises Invalid for settings with which they cannot work."""


ServiceSettingsT = TypeVar("ServiceSettingsT", bound=ServiceSettings)


def checked_url(url: str | None) -> str | None:
    """For a field validator: raises ValueError unless it is an HTTP address."""
    if url is not None:
        # Not at the top: most commands never speak HTTP, and its client takes a while to load.
        from payonce.kit.http import parse_url

        parse_url(url)
    return url


def checked_word(secret: SecretStr | None) -> SecretStr | None:
    """For a field validator: the secret without surrounding white space. Raises ValueError unless it is one word of
    printable ASCII."""
    if secret is None:
        return None
    # A file or a stored secret often ends with a line feed.
    word = secret.get_secret_value().strip()
    if not word.isascii() or not word.isprintable() or len(word.split()) != 1:
        raise ValueError("not one word")
    return SecretStr(word)
