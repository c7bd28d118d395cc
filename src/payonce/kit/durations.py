"""Durations in text: 90s, 30m, 1h, 7d."""

import re
from typing import Final

from payonce.kit.outcomes import Invalid

DURATION_MAX_S: Final = 3_660 * 86_400
_SECONDS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


def parsed_duration_s(text: str, what: str) -> int:
    match = re.fullmatch(r"([0-9]{1,9})([smhd])", text.strip(), re.ASCII)
    if match is None or int(match[1]) == 0:
        raise Invalid(f"{what} is {text[:60]!r}; write a time such as 90s, 30m, 1h or 7d")
    seconds = int(match[1]) * _SECONDS[match[2]]
    if seconds > DURATION_MAX_S:
        raise Invalid(f"{what} is {text[:60]!r}; that is more than ten years")
    return seconds
