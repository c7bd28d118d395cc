"""The Jinja environment, and filters that format amounts, ages, counts and times."""

import hashlib
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec
from jinja2 import ChoiceLoader, Environment, FileSystemLoader, PrefixLoader, StrictUndefined

from payonce.app.logging import without_secrets
from payonce.console.charts import static_chart
from payonce.console.links import ROOT, link
from payonce.kit.money import Amount
from payonce.kit.words import counted

FOLDER: Final = Path(__file__).parent
STATIC: Final = FOLDER / "static"
TEMPLATES: Final = FileSystemLoader(FOLDER / "templates")
DOCUMENT_MAX_LENGTH: Final = 20_000
"""Of a payload on a page; `payonce queues peek --json` shows all of it."""

_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def duration(seconds: float | None) -> str:
    """The two largest units, `2 h 5 min`; below a second, `12 ms`."""
    if seconds is None:
        return "–"
    if 0 < abs(seconds) < 0.9995:
        return f"{abs(seconds) * 1_000:.0f} ms"
    left = round(abs(seconds))
    parts = []
    for size, unit in _UNITS:
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count:,} {unit}")
    return " ".join(parts[:2]) or "0 s"


def age(moment: datetime | None, now: datetime) -> str:
    """`3 min ago`, `in 2 h`."""
    if moment is None:
        return "–"
    seconds = (now - moment).total_seconds()
    if abs(seconds) < 1:
        return "now"
    return f"{_one_unit(seconds)} ago" if seconds > 0 else f"in {_one_unit(-seconds)}"


def moment(value: datetime | None) -> str:
    """To the second, in UTC, to compare with logs."""
    return "–" if value is None else value.strftime("%Y-%m-%d %H:%M:%S UTC")


def money(amount: Amount) -> str:
    """Every decimal of the asset, in groups of three: 49,478,122.36."""
    return format(amount.to_decimal(), ",f")


def count(value: int | None) -> str:
    return "–" if value is None else f"{value:,}"


def spark(values: Sequence[float | int | None], width: int = 120, height: int = 24) -> str:
    """The points of a sparkline; the largest value touches the top."""
    known = [value or 0 for value in values]
    top = max(known, default=0) or 1
    step = width / max(len(known) - 1, 1)
    return " ".join(
        f"{index * step:.1f},{height - 1 - value / top * (height - 2):.1f}" for index, value in enumerate(known)
    )


def as_json(value: Any) -> str:
    """JSON for a data attribute, which the template escapes."""
    return msgspec.json.encode(value).decode()


def document(value: Any) -> str:
    """Indented JSON with secrets redacted, cut at DOCUMENT_MAX_LENGTH."""
    text = msgspec.json.format(msgspec.json.encode(without_secrets(value)), indent=2).decode()
    return text if len(text) <= DOCUMENT_MAX_LENGTH else text[:DOCUMENT_MAX_LENGTH] + "\n… cut here"


def _one_unit(seconds: float) -> str:
    whole = timedelta(seconds=round(seconds)).total_seconds()
    size, unit = next(((size, unit) for size, unit in _UNITS if whole >= size), _UNITS[-1])
    return f"{int(whole // size):,} {unit}"


@cache
def asset(name: str) -> str:
    """The URL of a static file, which contains its digest, so that browsers may cache it."""
    digest = hashlib.sha256((STATIC / name).read_bytes()).hexdigest()[:12]
    return f"{ROOT}/static/{name}?v={digest}"


def _environment() -> Environment:
    made = Environment(
        loader=TEMPLATES,
        # Text from payloads, vendors and people is never markup.
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    shown = (age, as_json, count, counted, document, duration, moment, money, spark)
    made.filters |= {each.__name__: each for each in shown}
    made.filters["redacted"] = without_secrets
    made.globals |= {"asset": asset, "link": link, "static_chart": static_chart}
    return made


ENVIRONMENT: Final = _environment()
"""The platform's templates only."""


def environment_with(folders: Mapping[str, Path], tones: Mapping[str, Mapping[str, str]]) -> Environment:
    """The platform's templates, and those of each folder under its name; `tones` has the tone of each state by kind of
    object."""
    services = PrefixLoader({name: FileSystemLoader(folder) for name, folder in folders.items()})
    made = ENVIRONMENT.overlay(loader=ChoiceLoader([TEMPLATES, services]))
    made.globals = {**ENVIRONMENT.globals, "state_tones": tones}
    return made
