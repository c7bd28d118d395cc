"""The settings of the service.

| variable | meaning | unset |
|---|---|---|
| GIFTCARDS_MINT_URL | address of the mint | simulated in the process |
"""

from pydantic import Field, field_validator

from payonce import ServiceSettings, checked_url


class GiftcardsSettings(ServiceSettings):
    mint_url: str | None = Field(
        None,
        validation_alias="GIFTCARDS_MINT_URL",
        description="it must be an address such as https://api.mint.example",
    )

    @field_validator("mint_url")
    @classmethod
    def _is_a_url(cls, url: str | None) -> str | None:
        return checked_url(url)
