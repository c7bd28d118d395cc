"""The part of PromQL that the rules and dashboards use: parsed strictly, so that a typo is an error, and evaluated."""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

LOOKBACK_S: Final = 300.0
"""A series without a newer sample than this has ended, as in Prometheus."""
UNITS_S: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
AGGREGATIONS: Final[Mapping[str, Callable[[Sequence[float]], float]]] = {
    "sum": sum,
    "max": max,
    "min": min,
    "count": len,
}
FUNCTIONS: Final = {"rate": 1, "increase": 1, "histogram_quantile": 2, "absent": 1, "time": 0}
RANGED: Final = ("rate", "increase")
COMPARISONS: Final[Mapping[str, Callable[[float, float], bool]]] = {
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    ">": lambda a, b: a > b,
    "<": lambda a, b: a < b,
    ">=": lambda a, b: a >= b,
    "<=": lambda a, b: a <= b,
}
ARITHMETIC: Final[Mapping[str, Callable[[float, float], float]]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b if b else math.nan,
}
PRECEDENCE: Final = (("or",), ("and", "unless"), tuple(COMPARISONS), ("+", "-"), ("*", "/"))
TOKEN: Final = re.compile(
    r"\s*(?:(?P<duration>\d+[smhd])(?![\w.])|(?P<number>\d+(?:\.\d+)?)(?![\w.])|(?P<name>[A-Za-z_:][\w:]*)"
    r'|(?P<text>"(?:[^"\\]|\\.)*")|(?P<mark>=~|!~|==|!=|>=|<=|[=<>+*/(){}\[\],-]))'
)

Labels = frozenset[tuple[str, str]]
Vector = dict[Labels, float]
Series = Mapping[tuple[str, Labels], Sequence[tuple[float, float]]]


class NotPromql(Exception):
    """The text cannot be read, or would be refused by Prometheus."""


@dataclass(frozen=True)
class Number:
    value: float


@dataclass(frozen=True)
class Selector:
    name: str
    matchers: tuple[tuple[str, str, str], ...]
    range_s: float | None = None

    def fits(self, labels: Labels) -> bool:
        have = dict(labels)
        return all(_matches(have.get(label, ""), how, wanted) for label, how, wanted in self.matchers)


@dataclass(frozen=True)
class Call:
    function: str
    arguments: "tuple[Expression, ...]"


@dataclass(frozen=True)
class Aggregate:
    how: str
    by: tuple[str, ...]
    inner: "Expression"


@dataclass(frozen=True)
class Binary:
    sign: str
    left: "Expression"
    right: "Expression"
    on: tuple[str, ...] | None = None


Expression = Number | Selector | Call | Aggregate | Binary


def parsed(text: str) -> Expression:
    reader = _Reader(text)
    found = reader.expression(0)
    if reader.next is not None:
        raise NotPromql(f"{text!r}: {reader.next[1]!r} stands where nothing may")
    _check_ranges(found, text)
    return found


def _check_ranges(expression: Expression, text: str, wanted: bool = False) -> None:
    """rate and increase want a range, and nothing else does."""
    match expression:
        case Selector(_, _, range_s) if (range_s is not None) != wanted:
            raise NotPromql(f"{text!r}: rate and increase want a range such as [5m], and nothing else does")
        case Call(function, arguments):
            for each in arguments:
                _check_ranges(each, text, function in RANGED)
        case Aggregate(_, _, inner):
            _check_ranges(inner, text)
        case Binary(_, left, right):
            _check_ranges(left, text)
            _check_ranges(right, text)


def selectors(expression: Expression) -> Iterator[Selector]:
    match expression:
        case Selector():
            yield expression
        case Call(_, arguments):
            for each in arguments:
                yield from selectors(each)
        case Aggregate(_, _, inner):
            yield from selectors(inner)
        case Binary(_, left, right):
            yield from selectors(left)
            yield from selectors(right)


def grouped_by(expression: Expression) -> Iterator[tuple[str, Expression]]:
    """Every label that an aggregation keeps or an operator joins on, with its operand."""
    match expression:
        case Aggregate(_, by, inner):
            for label in by:
                yield label, inner
            yield from grouped_by(inner)
        case Call(_, arguments):
            for each in arguments:
                yield from grouped_by(each)
        case Binary(_, left, right, on):
            for side in (left, right):
                yield from ((label, side) for label in on or ())
                yield from grouped_by(side)


class _Reader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens: list[tuple[str, str]] = []
        place = 0
        while place < len(text.rstrip()):
            if (found := TOKEN.match(text, place)) is None:
                raise NotPromql(f"{text!r}: cannot be read from {text[place:][:20]!r} on")
            kind = str(found.lastgroup)
            self.tokens.append((kind, found.group(kind)))
            place = found.end()

    @property
    def next(self) -> tuple[str, str] | None:
        return self.tokens[0] if self.tokens else None

    def take(self, *wanted: str, kind: str | None = None) -> str:
        token = self.tokens.pop(0) if self.tokens else ("end", "the end")
        if (wanted and token[1] not in wanted) or (kind is not None and token[0] != kind):
            raise NotPromql(f"{self.text!r}: {' or '.join(wanted) or kind} is wanted, not {token[1]!r}")
        return token[1]

    def sees(self, *values: str) -> bool:
        return self.next is not None and self.next[1] in values and self.next[0] != "text"

    def expression(self, level: int) -> Expression:
        if level == len(PRECEDENCE):
            return self.operand()
        left = self.expression(level + 1)
        while self.sees(*PRECEDENCE[level]):
            sign, on = self.take(), None
            if self.sees("on"):
                self.take()
                on = self.labels()
            left = Binary(sign, left, self.expression(level + 1), on)
        return left

    def operand(self) -> Expression:
        if self.sees("("):
            self.take()
            inner = self.expression(0)
            self.take(")")
            return inner
        if self.next is not None and self.next[0] == "number":
            return Number(float(self.take()))
        name = self.take(kind="name")
        if name in AGGREGATIONS:
            return self.aggregation(name)
        return self.call(name) if self.sees("(") else self.selector(name)

    def aggregation(self, how: str) -> Expression:
        by: tuple[str, ...] = ()
        if self.sees("by"):
            self.take()
            by = self.labels()
        self.take("(")
        inner = self.expression(0)
        self.take(")")
        return Aggregate(how, by, inner)

    def call(self, name: str) -> Expression:
        if name not in FUNCTIONS:
            raise NotPromql(f"{self.text!r}: there is no function {name!r}; known are {', '.join(FUNCTIONS)}")
        arguments: list[Expression] = []
        self.take("(")
        while not self.sees(")"):
            arguments.append(self.expression(0))
            if not self.sees(")"):
                self.take(",")
        self.take(")")
        if len(arguments) != FUNCTIONS[name]:
            raise NotPromql(f"{self.text!r}: {name} takes {FUNCTIONS[name]} arguments, not {len(arguments)}")
        if name in RANGED and not isinstance(arguments[0], Selector):
            raise NotPromql(f"{self.text!r}: {name} wants a metric with a range such as [5m]")
        return Call(name, tuple(arguments))

    def selector(self, name: str) -> Selector:
        matchers = []
        if self.sees("{"):
            self.take()
            while not self.sees("}"):
                label, how = self.take(kind="name"), self.take("=", "!=", "=~", "!~")
                matchers.append((label, how, self.take(kind="text")[1:-1]))
                if not self.sees("}"):
                    self.take(",")
            self.take("}")
        range_s = None
        if self.sees("["):
            self.take()
            range_s = duration_s(self.take(kind="duration"))
            self.take("]")
        return Selector(name, tuple(matchers), range_s)

    def labels(self) -> tuple[str, ...]:
        found = []
        self.take("(")
        while not self.sees(")"):
            found.append(self.take(kind="name"))
            if not self.sees(")"):
                self.take(",")
        self.take(")")
        return tuple(found)


def duration_s(text: str) -> float:
    return float(int(text[:-1]) * UNITS_S[text[-1]])


def evaluated(expression: Expression, series: Series, at: float) -> Vector:
    """The result that Prometheus would return at that moment; a number has no labels."""
    match expression:
        case Number(value):
            return {frozenset(): value}
        case Selector():
            return _instant(expression, series, at)
        case Aggregate(how, by, inner):
            groups: dict[Labels, list[float]] = {}
            for labels, value in evaluated(inner, series, at).items():
                groups.setdefault(_only(labels, by), []).append(value)
            return {labels: float(AGGREGATIONS[how](values)) for labels, values in groups.items()}
        case Call("time", _):
            return {frozenset(): at}
        case Call("absent", (inner,)):
            return {} if evaluated(inner, series, at) else {frozenset(): 1.0}
        case Call("histogram_quantile", (Number(share), inner)):
            return _quantiles(share, evaluated(inner, series, at))
        case Call(function, (Selector() as selector,)):
            risen = _risen(selector, series, at)
            width = 1.0 if function == "increase" else selector.range_s or 1.0
            return {labels: value / width for labels, value in risen.items()}
        case Binary():
            return _joined(expression, series, at)
        case _:
            raise NotPromql(f"{expression} cannot be evaluated")


def _instant(selector: Selector, series: Series, at: float) -> Vector:
    found: Vector = {}
    for (name, labels), samples in series.items():
        live = [value for moment, value in samples if at - LOOKBACK_S < moment <= at]
        if name == selector.name and selector.fits(labels) and live:
            found[labels] = live[-1]
    return found


def _risen(selector: Selector, series: Series, at: float) -> Vector:
    """The increase of counters within the range, across restarts of a process."""
    assert selector.range_s is not None
    found: Vector = {}
    for (name, labels), samples in series.items():
        if name != selector.name or not selector.fits(labels):
            continue
        values = [value for moment, value in samples if at - selector.range_s <= moment <= at]
        if len(values) >= 2:
            found[labels] = sum(later - earlier if later >= earlier else later for earlier, later in pairwise(values))
    return found


def _quantiles(share: float, buckets: Vector) -> Vector:
    groups: dict[Labels, list[tuple[float, float]]] = {}
    for labels, value in buckets.items():
        bound = dict(labels)["le"]
        rest = frozenset(pair for pair in labels if pair[0] != "le")
        groups.setdefault(rest, []).append((math.inf if bound == "+Inf" else float(bound), value))
    return {labels: _quantile(share, sorted(group)) for labels, group in groups.items()}


def _quantile(share: float, buckets: Sequence[tuple[float, float]]) -> float:
    total = buckets[-1][1]
    if not total:
        return math.nan
    below, before = 0.0, 0.0
    for bound, count in buckets:
        if count >= share * total:
            if math.isinf(bound):
                return below
            return below + (bound - below) * (share * total - before) / (count - before)
        below, before = bound, count
    raise AssertionError("the last bucket holds everything")


def _joined(expression: Binary, series: Series, at: float) -> Vector:
    left, right = (evaluated(side, series, at) for side in (expression.left, expression.right))
    sign, on = expression.sign, expression.on
    if sign in ("and", "unless", "or"):
        keys = {_key(labels, on) for labels in right}
        if sign == "or":
            present = {_key(labels, on) for labels in left}
            return left | {labels: value for labels, value in right.items() if _key(labels, on) not in present}
        return {labels: value for labels, value in left.items() if (_key(labels, on) in keys) == (sign == "and")}
    scalar = isinstance(expression.right, Number) or expression.right == Call("time", ())
    if not scalar and (isinstance(expression.left, Number) or expression.left == Call("time", ())):
        [(_, value)] = left.items()
        left = dict.fromkeys(right, value)
    elif scalar:
        [(_, value)] = right.items()
        right = dict.fromkeys(left, value)
    found: Vector = {}
    by_key = {_key(labels, on): value for labels, value in right.items()}
    for labels, value in left.items():
        if (key := _key(labels, on)) in by_key:
            if sign in ARITHMETIC:
                found[labels] = ARITHMETIC[sign](value, by_key[key])
            elif COMPARISONS[sign](value, by_key[key]):
                found[labels] = value
    return found


def _key(labels: Labels, on: tuple[str, ...] | None) -> Labels:
    return labels if on is None else _only(labels, on)


def _only(labels: Labels, names: Sequence[str]) -> Labels:
    return frozenset(pair for pair in labels if pair[0] in names)


def _matches(value: str, how: str, wanted: str) -> bool:
    if how in ("=", "!="):
        return (value == wanted) == (how == "=")
    return (re.fullmatch(wanted, value) is not None) == (how == "=~")
