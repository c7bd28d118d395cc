"""Static charts for browsers without JavaScript: all lines on one scale, with labelled axes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

WIDTH, HEIGHT = 120, 24
"""In units of the drawing, which the stylesheet scales."""
NICE: Final = (1, 2, 5, 10)
_MOMENTS: Final = {"day": "%m-%d", "month": "%Y-%m"}
_SIZES: Final = ((10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "k"))


@dataclass(frozen=True)
class Line:
    tone: str
    segments: Sequence[str]
    """Points; a gap in the data ends a segment."""


@dataclass(frozen=True)
class StaticChart:
    top: str
    middle: str
    first: str
    last: str
    lines: Sequence[Line]


def static_chart(
    columns: Mapping[str, Sequence[Any]], lines: Sequence[tuple[str, str, str]], units: int = 1, step: str = "minute"
) -> StaticChart:
    """`lines` are (column, label, tone); values are divided by `units` for the axis."""
    top = nice_top([value for column, _, _ in lines for value in columns[column] if value is not None], units)
    at = columns["at"]
    drawn = [Line(tone, segments(columns[column], top * units)) for column, _, tone in lines]
    first, last = (_moment(at[0], step), _moment(at[-1], step)) if at else ("", "")
    return StaticChart(short(top), short(top / 2), first, last, drawn)


def nice_top(values: Sequence[float], units: int = 1) -> float:
    """The smallest of 1, 2 or 5 times a power of ten that no value exceeds; at least 2, so that the middle is whole."""
    most = max(values, default=0) / units
    power = 1
    while power * 10 < most:
        power *= 10
    return max(2, next(power * each for each in NICE if power * each >= most))


def segments(values: Sequence[float | None], top: float) -> list[str]:
    across = WIDTH / max(len(values) - 1, 1)
    found: list[list[str]] = [[]]
    for index, value in enumerate(values):
        if value is None:
            found.append([])
        else:
            found[-1].append(f"{index * across:.1f},{HEIGHT - value / top * HEIGHT:.1f}")
    # A single point is doubled, and so drawn as a dot.
    return [" ".join(each if len(each) > 1 else each * 2) for each in found if each]


def short(value: float) -> str:
    """Formats like the JavaScript axes: 1500 is 1.5k."""
    size, letter = next(((size, letter) for size, letter in _SIZES if value >= size), (1, ""))
    return f"{value / size:g}{letter}"


def _moment(seconds: int, step: str) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime(_MOMENTS.get(step, "%H:%M"))
