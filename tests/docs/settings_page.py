"""docs/settings.md, made from the settings classes: types, bounds and defaults from their fields, meanings from the
tables at the top of their modules.

`.venv/bin/python -m tests.docs.settings_page` writes it anew.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Literal, NamedTuple, get_args, get_origin

from annotated_types import Ge, Le
from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

import payonce.examples.transfers.settings as transfers
import payonce.services.billing.settings as billing
import payonce.services.payouts.settings as payouts
import payonce.settings
from payonce.examples.transfers.settings import TransfersSettings
from payonce.services.billing.settings import BillingSettings
from payonce.services.payouts.settings import PayoutsSettings
from payonce.settings import Settings, access, cloud_sql, references
from payonce.settings.access import AccessSettings
from payonce.settings.cloud_sql import CloudSqlSettings
from payonce.settings.variables import variables

PAGE: Final = Path(__file__).parents[2] / "docs" / "settings.md"
MARK: Final = "<!-- From here on the page is made by tests/docs/settings_page.py. -->"

MODELS: Final[Mapping[type[BaseModel], ModuleType]] = {
    Settings: payonce.settings,
    AccessSettings: access,
    CloudSqlSettings: cloud_sql,
    BillingSettings: billing,
    PayoutsSettings: payouts,
    TransfersSettings: transfers,
}
ALIASES: Final = {"PORT": "PAYONCE_PORT"}
"""Second names of a setting, told in the row of the first."""
OUTSIDE_THE_MODELS: Final = {references.ENDPOINT_VARIABLE: "`host:port`"}
"""Read before any model is made, since it decides where the values come from."""

PAYOUTS_ROLES, BILLING_ROLES = "payouts.*", "billing.*"
ALL: Final = "every process"
READERS: Final = (
    (r"CLOUD_TASKS_", f"{PAYOUTS_ROLES}, `payonce cloudtasks`"),
    (r"WEBHOOK_", BILLING_ROLES),
)
"""Who reads a setting, by its name, where its class does not say it."""
READERS_BY_MODEL: Final[Mapping[type[BaseModel], str]] = {
    PayoutsSettings: PAYOUTS_ROLES,
    BillingSettings: BILLING_ROLES,
    TransfersSettings: "transfers.worker",
}
REQUIRED: Final = {
    BILLING_ROLES: ("JWT_SECRET_KEY", "WEBHOOK_SIGNING_SECRET"),
    PAYOUTS_ROLES: ("SUCCESS_URL_SIGNING_KEY", "TPS_HOSTPAY_SIGNING_KEY"),
}
"""Without these no such role starts beside a DATABASE_URL. A test holds this against the start itself."""
SECTIONS: Final = {
    "Every process": ALL,
    "Payouts": PAYOUTS_ROLES,
    "Billing": BILLING_ROLES,
    "Examples": "transfers.worker",
}


class Row(NamedTuple):
    variable: str
    value: str
    default: str
    meaning: str
    reader: str

    @property
    def required(self) -> bool:
        return any(self.variable in names for names in REQUIRED.values())


def rows() -> list[Row]:
    found = []
    told = {name: text for module in MODELS.values() for name, text in documented(module).items()}
    for model in MODELS:
        for variable, field in variables(model).items():
            if variable not in ALIASES:
                meaning, unset = told[variable]
                found.append(Row(variable, _value(field), _default(field, unset), meaning, _reader(variable, model)))
    for variable, (meaning, unset) in documented(references).items():
        found.append(Row(variable, OUTSIDE_THE_MODELS[variable], unset, meaning, ALL))
    order = [*told, *OUTSIDE_THE_MODELS]
    return sorted(found, key=lambda row: order.index(row.variable))


def documented(module: ModuleType) -> dict[str, tuple[str, str]]:
    """By variable, the meaning and what holds without it, as the table of the module's docstring says."""
    found: dict[str, tuple[str, str]] = {}
    for line in (module.__doc__ or "").splitlines():
        cells = [cell.strip() for cell in line.strip("| ").split(" | ")] if line.startswith("| ") else []
        if cells and re.match(r"[A-Z]", cells[0]):
            meaning, unset = cells[1], cells[2].rstrip(" |") if len(cells) > 2 else ""
            found.update(dict.fromkeys(cells[0].split(", "), (meaning, unset)))
    return found


def made() -> str:
    """What stands behind the mark."""
    lines: list[str] = []
    all_rows = rows()
    for title, reader in SECTIONS.items():
        chosen = [row for row in all_rows if row.reader.startswith(reader)]
        lines += ["", f"## {title}", "", "| name | value | unset | meaning | read by |", "|---|---|---|---|---|"]
        lines += [_line(row) for row in chosen]
    return "\n".join(lines) + "\n"


def page() -> str:
    head, mark, _ = PAGE.read_text().partition(MARK)
    assert mark, f"{PAGE} has lost the line {MARK}"
    return f"{head}{MARK}\n{made()}"


def _line(row: Row) -> str:
    needed = "; **required** with `DATABASE_URL`" if row.required else ""
    reader = ", ".join(part if part.startswith("`") or part == ALL else f"`{part}`" for part in row.reader.split(", "))
    cells = (f"`{row.variable}`", _marked(row.value), _marked(row.default), _marked(row.meaning) + needed, reader)
    return f"| {' | '.join(cells)} |"


def _marked(text: str) -> str:
    """Names of settings as code, and pages as links."""
    names = "|".join(sorted((name for model in MODELS for name in variables(model)), key=len, reverse=True))
    return re.sub(r"docs/((\w+)\.md)", r"[\2](\1)", re.sub(rf"(?<![`\w])({names})(?![`\w])", r"`\1`", text))


def _reader(variable: str, model: type[BaseModel]) -> str:
    for pattern, reader in READERS:
        if re.match(pattern, variable):
            return reader
    return READERS_BY_MODEL.get(model, ALL)


def _value(field: FieldInfo) -> str:
    kind = _without_none(field.annotation)
    if get_origin(kind) is Literal:
        return " or ".join(f"`{each}`" for each in get_args(kind))
    if kind is bool:
        return "`true` or `false`"
    if kind in (int, float):
        return f"{'whole number' if kind is int else 'number'} {_bounds(field)}"
    rule = re.sub(r"^it must (be |name |read |have )?", "", field.description or "")
    assert rule, "a setting without a rule"
    return f"secret: {rule}" if kind is SecretStr else rule


def _bounds(field: FieldInfo) -> str:
    least = next(each.ge for each in field.metadata if isinstance(each, Ge))
    most = next(each.le for each in field.metadata if isinstance(each, Le))
    return f"from {least} to {most}"


def _default(field: FieldInfo, unset: str) -> str:
    """The value that holds where there is one, else what the module says of it."""
    if field.default_factory is None and field.default is not None:
        return f"`{_plain(field.default)}`"
    return unset or "none"


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _without_none(annotation: Any) -> Any:
    parts = [each for each in get_args(annotation) if each is not type(None)]
    return parts[0] if type(None) in get_args(annotation) else annotation


if __name__ == "__main__":
    PAGE.write_text(page())
