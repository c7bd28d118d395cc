"""Numbers of invoices and credit notes: consecutive and without gaps, in one series per year."""

from datetime import datetime
from typing import Final

NUMBER_DIGITS: Final = 6
"""At least; the millionth invoice of a year has one more."""


def series(kind: str, test_clock_id: str | None, at: datetime) -> tuple[str, int, str]:
    """The series, its year, and the prefix of its numbers. Test clocks use series of their own."""
    name = kind if test_clock_id is None else f"TEST-{test_clock_id.upper()}-{kind}"
    return name, at.year, f"{name}-{at.year}-"


TAKE_NUMBER: Final = """
    insert into subscriptions.number_series as n (series, year, last) values ($1, $2, 1)
    on conflict (series, year) do update set last = n.last + 1 returning last"""
NUMBER: Final = f"$3::text || lpad(last::text, greatest({NUMBER_DIGITS}, length(last::text)), '0')"
