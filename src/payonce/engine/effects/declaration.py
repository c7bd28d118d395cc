"""The declaration of a vendor call: its request, the call, the query for its outcome, and how safely it can be
repeated."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Generic, TypeVar, get_args, get_origin

import msgspec

from payonce.kit.money import Amount
from payonce.kit.outcomes import Invalid

DOCUMENT_MAX_BYTES: Final = 256 * 1024
"""Of a stored request or outcome. Put larger documents into object storage and store their address."""
SEND_MAX_S: Final = 300.0
"""The longest time-out of an effect: for this long after a quarantine began, a forgotten send may still arrive."""

Request = TypeVar("Request")
Outcome = TypeVar("Outcome")


@dataclass(frozen=True)
class Keyed:
    """The vendor recognises our key for this long: the same request may be sent again and happens once."""

    valid_for_s: float


@dataclass(frozen=True)
class Findable:
    """The vendor can be asked. If it does not show the effect `horizon_s` after the last send, the effect did not
    happen."""

    horizon_s: float
    fence: Callable[[Any], Awaitable[None]] | None = None
    """Makes sure at the vendor that an earlier send of this request can no longer take effect (wipes the cart, burns
    the nonce), or raises. Without a fence, a person decides about sending again."""
    burns: bool = False
    """The fence makes this reference unusable for good, for us too: the next send is a new generation, prepared with a
    reference of its own."""


@dataclass(frozen=True)
class Rebroadcast:
    """The same signed bytes may be sent again; recipients accept them only once."""


@dataclass(frozen=True)
class Harmless:
    """A duplicate moves no money: the doubtful generation is abandoned and the next one performed."""


@dataclass(frozen=True)
class Blind:
    """It can neither be queried nor repeated: it is sent once, then a person decides."""


_outcome_types: Final[dict[str, list[Any]]] = {}
"""By kind, for all effects that this process has declared."""

Safety = Keyed | Findable | Rebroadcast | Harmless | Blind


@dataclass(frozen=True)
class Happened(Generic[Outcome]):
    value: Outcome


@dataclass(frozen=True)
class DidNot:
    """The vendor does not show it."""


@dataclass(frozen=True)
class CannotTell:
    reason: str = "the vendor cannot tell"


class Effect(Generic[Request, Outcome]):
    """A call that changes the outside world. Request and outcome are stored as JSON; keep secrets out of them."""

    kind: str
    version: int = 1
    """Version of the stored request. A request of a higher version is left to a newer worker; one of a lower version is
    not compared with what prepare() returns now. Raise it when prepare() returns a different request."""
    timeout_s: float
    safety: Safety
    reference: str = ""
    """`key:generation`, set before prepare(): the key or memo given to the vendor."""
    tenants: Sequence[str] = ()
    """Tenants whose money it moves besides the one of the message's lane. A freeze of any of them stops it."""

    request_type: ClassVar[Any] = Any
    outcome_type: ClassVar[Any] = Any

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for parent in cls.__dict__.get("__orig_bases__", ()):
            if get_origin(parent) is Effect:
                cls.request_type, cls.outcome_type = get_args(parent)
        if isinstance(kind := getattr(cls, "kind", None), str):
            declared = _outcome_types.setdefault(kind, [])
            if cls.outcome_type not in declared:
                declared.append(cls.outcome_type)

    async def prepare(self) -> Request:
        """Builds the exact request, without side effects. The request of a generation's first call is stored and sent.

        Later runs call it again to compare the request with the one on record, unless identity() states what to
        compare. Without identity() it must not wait for anything, and must return the same for the same `reference`;
        otherwise the effect is refused before anything is recorded.
        """
        raise NotImplementedError

    def identity(self) -> object:
        """The parts of the request that are the same in every run: at least the parties and the amount. JSON, stored
        with the request; a different identity under the same key raises KeyReused. It must not read anything from
        outside.

        None, the default, stands for the whole request. Declare it where prepare() reads a quote, a nonce or the time.
        """
        return None

    async def perform(self, request: Request) -> Outcome:
        """The call. May raise Refused (a definite refusal) or NotSent (proven); after any other error the outcome is
        unknown."""
        raise NotImplementedError

    async def resolve(self, request: Request) -> Happened[Outcome] | DidNot | CannotTell:
        """Whether it happened. Changes nothing at the vendor."""
        raise NotImplementedError

    def amount(self, request: Request) -> Amount | None:
        """The amount moved, for velocity limits, approvals and the money meter; None if it moves nothing."""
        return None

    def vendor_ref(self, outcome: Outcome) -> str | None:
        """The vendor's own reference; unique among effects of a kind."""
        return None

    @property
    def vendor_name(self) -> str:
        """The vendor whose system it changes: the kind up to its first dot."""
        return self.kind.partition(".")[0]

    @property
    def can_resolve(self) -> bool:
        return type(self).resolve is not Effect.resolve


def encode_stated(value: object, kind: str, what: str) -> str:
    """JSON of an outcome that a person stated, checked against the types that this process declares for the kind.
    Unknown fields are refused: a vendor may add some, but a person who does has made a mistake."""
    wrong: list[str] = []
    for declared in _outcome_types.get(kind, [Any]):
        try:
            document = encode(value, declared, what)
        except Invalid as error:
            wrong.append(f"{error}{_field_names_hint(declared)}")
            continue
        strange = set(value) - set(_fields_of(declared)) if isinstance(value, dict) and _fields_of(declared) else set()
        if not strange:
            return document
        wrong.append(
            f"{what} has no field {', '.join(map(repr, sorted(map(str, strange))))}{_field_names_hint(declared)}"
        )
    raise Invalid(wrong[-1])


def _fields_of(declared: Any) -> list[str]:
    """JSON field names; empty if the type is not a record."""
    if isinstance(declared, type) and issubclass(declared, msgspec.Struct):
        return [field.encode_name for field in msgspec.structs.fields(declared)]
    return []


def _field_names_hint(declared: Any) -> str:
    names = _fields_of(declared)
    return f"; {declared.__name__} has the fields {', '.join(names)}" if names else ""


def encode(value: object, as_type: Any, what: str) -> str:
    """JSON that is verified to decode to the declared type."""
    try:
        document = msgspec.json.encode(value)
        msgspec.json.decode(document, type=as_type)
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise Invalid(f"{what} cannot be stored as JSON of its declared type: {error}") from error
    if len(document) > DOCUMENT_MAX_BYTES:
        raise Invalid(f"{what} has {len(document):,} bytes, the limit is {DOCUMENT_MAX_BYTES:,}; store it elsewhere")
    return document.decode()


def decode(document: str, as_type: Any, what: str) -> Any:
    try:
        return msgspec.json.decode(document.encode(), type=as_type)
    except msgspec.MsgspecError as error:
        raise Invalid(
            f"{what} is on record in a form that this code cannot read: {error}; keep reading what older versions wrote"
        ) from error
