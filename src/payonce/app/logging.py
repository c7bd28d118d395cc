"""The process log, on stderr: JSON for machines, lines with signs on a terminal, secrets taken out of both."""

import logging
import re
import sys
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TextIO

import msgspec

from payonce.kit.log import structlog
from payonce.kit.redact import HIDDEN, TEXT_MAX_CHARS, could_be_card, redact

LogStyle = Literal["json", "pretty", "auto"]

DEPTH_MAX: Final = 6
"""Deeper values are shown as text: a log line is not a place for documents."""

SHOWN_MAX_CHARS: Final = 100_000
"""Of one value with all that is in it."""

LEVEL_SIGNS: Final = {"critical": "❌", "error": "❌", "exception": "❌", "warning": "⚠️"}
# The first word found in the event's name decides, so the order is from the particular to the general.
EVENT_SIGNS: Final = {
    "retry": "🔄",
    "redrive": "🔄",
    "restart": "🔄",
    "start": "🚀",
    "listening": "🌐",
    "http": "🌐",
    "request": "🌐",
    "vendor": "🌐",
    "exchange": "🌐",
    "priced": "💰",
    "paid": "💰",
    "refunded": "💰",
    "deposit": "💰",
    "payment": "💰",
    "posted": "💰",
    "amount": "💰",
    "encrypt": "🔐",
    "decrypt": "🔐",
    "signature": "🔐",
    "payload": "📦",
    "message": "📦",
    "schedule": "⏰",
    "due": "⏰",
    "lease": "⏰",
    "triggered": "🚀",
    "taken_up": "📦",
    "received": "📦",
    "accumulating": "⏰",
    "rejected": "⚠️",
    "finished": "✅",
    "trace": "🆔",
    "done": "✅",
    "stopped": "✅",
    "migrated": "✅",
    "ready": "✅",
    "success": "✅",
}
NO_SIGN: Final = "·"

_CONTROLS: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
"""What a terminal obeys instead of showing it: a stranger's path could otherwise rewrite the lines above it."""


def configure_logs(
    style: LogStyle = "auto",
    *,
    quiet: bool = False,
    stream: TextIO | None = None,
    emoji: bool = False,
    severity: bool = False,
) -> None:
    """Sends everything, the standard library's logging included, to stderr. `quiet` keeps to warnings; with `emoji`
    JSON has the sign of a line, and its words, in `message`; with `severity` its level as Google Cloud names it."""
    out = sys.stderr if stream is None else stream
    pretty = style == "pretty" or (style == "auto" and out.isatty())
    level = logging.WARNING if quiet else logging.INFO
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True, key="timestamp"),
            structlog.processors.format_exc_info,
            take_out_secrets,
            *([add_severity] if severity and not pretty else []),
            render_pretty if pretty else render_json_with_emoji if emoji else render_json,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(out),
        cache_logger_on_first_use=False,
    )
    root = logging.getLogger()
    root.handlers[:] = [_Forward()]
    root.setLevel(logging.WARNING)


def add_severity(logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Google's log viewer reads the level of a line from `severity`, in capitals; without it every line is DEFAULT."""
    event["severity"] = str(event.get("level", "info")).upper()
    return event


def take_out_secrets(logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    for key, value in event.items():
        event[key] = without_secrets(value, key)
    return event


def without_secrets(value: Any, key: str = "", depth: int = DEPTH_MAX) -> Any:
    """The value as it may be shown: plain, bounded in depth and length, secrets hidden by what they are or are
    called."""
    return _shown_of(value, key, depth, _Room(SHOWN_MAX_CHARS))


@dataclass
class _Room:
    """Characters that may still be looked at; what comes after them is left out."""

    chars: int

    def redacted(self, text: str) -> str:
        if self.chars <= 0 and text:
            return f"… ({len(text):,} characters)"
        shown = redact(text, max_chars=min(self.chars, TEXT_MAX_CHARS))
        self.chars -= len(text)
        return shown


def _shown_of(value: Any, key: str, depth: int, room: _Room) -> Any:
    if key and _names_a_secret(key):
        return HIDDEN
    if isinstance(value, str):
        return room.redacted(value)
    if isinstance(value, int):
        return HIDDEN if could_be_card(value) else value
    if value is None or isinstance(value, float):
        return value
    if isinstance(value, Mapping) and depth:
        return {room.redacted(str(name)): _shown_of(item, str(name), depth - 1, room) for name, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)) and depth:
        return [_shown_of(item, "", depth - 1, room) for item in value]
    return room.redacted(str(value))


def render_json(logger: Any, method: str, event: MutableMapping[str, Any]) -> str:
    ordered = {key: event.pop(key) for key in ("timestamp", "level", "event") if key in event}
    return msgspec.json.encode({**ordered, **event}).decode()


def render_json_with_emoji(logger: Any, method: str, event: MutableMapping[str, Any]) -> str:
    """As JSON; `message` is what Google's log viewer shows of a line."""
    name = str(event.get("event", ""))
    sign = sign_of(name, str(event.get("level", "info")))
    words = name.replace("_", " ")
    event.setdefault("message", words if sign == NO_SIGN else f"{sign} {words}")
    return render_json(logger, method, event)


def render_pretty(logger: Any, method: str, event: MutableMapping[str, Any]) -> str:
    """`08:15:02 🚀 worker started  roles=tally.worker`, with a traceback, if any, below it."""
    time = str(event.pop("timestamp", ""))[11:19]
    name, level = str(event.pop("event", "")), str(event.pop("level", "info"))
    story = event.pop("exception", None)
    values = " ".join(f"{key}={_shown(value)}" for key, value in event.items())
    line = f"{time} {sign_of(name, level)} {name.replace('_', ' ')}" + (f"  {values}" if values else "")
    lines = [line, *str(story).split("\n")] if story else [line]
    return "\n".join(map(_harmless, lines))


def _harmless(line: str) -> str:
    codes = map(ord, _CONTROLS.findall(line))
    return line.translate({code: f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" for code in codes})


def sign_of(event: str, level: str) -> str:
    if level in LEVEL_SIGNS:
        return LEVEL_SIGNS[level]
    return next((sign for word, sign in EVENT_SIGNS.items() if word in event.lower()), NO_SIGN)


class _Forward(logging.Handler):
    """What libraries say through the standard library's logging takes the same way out."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = record.getMessage()
        except (TypeError, ValueError):
            text = str(record.msg)
        structlog.get_logger(record.name).log(
            record.levelno, text, logger=record.name, exc_info=record.exc_info or None
        )


def _names_a_secret(key: str) -> bool:
    """Asks the one judge of secrets, with a value that only its name could give away."""
    return redact(f"{key}=value") != f"{key}=value"


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    text = text.replace("\n", " ⏎ ")
    return f'"{text}"' if " " in text else text
