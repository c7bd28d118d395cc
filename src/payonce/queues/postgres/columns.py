"""Converts messages to columns: checked and encoded column by column, where a bulk put spends its time."""

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any, Final

from payonce.engine.messages.model import NAME_MAX_LENGTH, Message, check_message, encode_extra, encode_payloads

_NAMES: Final = ("queue", "action", "idempotency_key", "correlation_id", "trace_id", "lane")
_NUMBERS_AND_TIMES: Final = ("delay_s", "not_before", "created_at", "attempts", "max_attempts")
_UNUSED: Final = {"delay_s": 0.0, "attempts": 0, "action": ""}
"""Values of unused columns; None for those not listed."""

Columns = dict[str, list[Any]]


def columns_of(messages: Sequence[Message], lanes_by_queue: Mapping[str, bool]) -> Columns:
    """Columns by name, without those that no message uses. Raises Invalid for values that the store could not keep
    unchanged."""
    columns: Columns = {"id": [message.id for message in messages]}
    suspicious = False
    for name in _NAMES + _NUMBERS_AND_TIMES:
        column = list(map(attrgetter(name), messages))
        if column.count(_UNUSED.get(name)) < len(column):
            suspicious = suspicious or name in _NUMBERS_AND_TIMES or not _plain(column)
            columns[name] = column
    if suspicious or not all(isinstance(message.payload, dict) for message in messages):
        for message in messages:
            check_message(message)
    columns["payload"] = encode_payloads(messages)
    if any(lanes_by_queue[queue] for queue in set(columns["queue"])):
        # Messages without a lane share one where lanes take turns.
        columns["lane"] = [
            "" if message.lane is None and lanes_by_queue[message.queue] else message.lane for message in messages
        ]
    if any(message.extra for message in messages):
        columns["extra"] = [encode_extra(message) for message in messages]
    columns.setdefault("action", [""] * len(messages))
    return columns


def _plain(names: Sequence[str | None]) -> bool:
    """Whether all names are surely valid; otherwise each is checked individually."""
    given = [name for name in names if name is not None]
    joined = "".join(given)
    return all(given) and joined.isascii() and "\x00" not in joined and len(max(given, key=len)) <= NAME_MAX_LENGTH
