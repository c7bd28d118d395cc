"""Which variables fill a model's fields, and the sentence that refuses one of them."""

import os
from collections.abc import Mapping, Sequence

from pydantic import AliasChoices, BaseModel, SecretStr, ValidationError
from pydantic.fields import FieldInfo

from payonce.settings.references import is_reference


def variables(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """The fields by the variables that fill them."""
    return {variable: field for field in model.model_fields.values() for variable in _aliases(field)}


def sentence(error: ValidationError, fields: Mapping[str, FieldInfo]) -> str:
    """The first thing that is wrong: the variable, its value unless it is a secret, and what it must be."""
    found = error.errors(include_url=False)[0]
    variable = str(found["loc"][0])
    field = fields.get(variable)
    if field is None:
        return f"{variable}: {found['msg']}"
    shown = next((alias for alias in _aliases(field) if alias in os.environ), variable)
    secret = field.annotation == SecretStr | None or is_reference(shown, os.environ.get(shown, "").rstrip())
    value = "set, its value is not shown" if secret else f"is {found['input']!r}"
    return f"{shown} {value}; {field.description}"


def _aliases(field: FieldInfo) -> Sequence[str]:
    aliases = field.validation_alias
    if isinstance(aliases, AliasChoices):
        return [str(alias) for alias in aliases.choices]
    return [] if aliases is None else [str(aliases)]
