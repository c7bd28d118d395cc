"""The addresses of the example's banks.

| variable | meaning | unset |
|---|---|---|
| PAYONCE_NORTHBANK_URL | Northbank, which the example `transfers` withdraws from | simulated in the process |
| PAYONCE_SOUTHBANK_URL | Southbank, which the example `transfers` pays into | simulated in the process |
"""

from typing import Final

from pydantic import Field, field_validator

from payonce import ServiceSettings, checked_url

BANK_RULE: Final = "it must be an address such as https://api.bank.example"


class TransfersSettings(ServiceSettings):
    northbank_url: str | None = Field(None, validation_alias="PAYONCE_NORTHBANK_URL", description=BANK_RULE)
    southbank_url: str | None = Field(None, validation_alias="PAYONCE_SOUTHBANK_URL", description=BANK_RULE)

    @field_validator("northbank_url", "southbank_url")
    @classmethod
    def _is_a_url(cls, url: str | None) -> str | None:
        return checked_url(url)
