"""What a vendor call declares: its request, the call, the question afterwards, and how safe a repetition is."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Generic, TypeVar, get_args, get_origin

import msgspec

from payonce.kit.money import Amount
from payonce.kit.outcomes import Invalid

DOCUMENT_MAX_BYTES: Final = 256 * 1024
"""Of a stored request or outcome; what is larger belongs into object storage, and its address here."""
SEND_MAX_S: Final = 300.0
"""The longest time-out of an effect: so long after a quarantine began, a send that nobody remembers may still land."""

Request = TypeVar("Request")
Outcome = TypeVar("Outcome")


@dataclass(frozen=True)
class Keyed:
    """The vendor recognises our key for so long: the exact request may be sent again, and happens once."""

    valid_for_s: float


@dataclass(frozen=True)
class Findable:
    """The vendor can be asked. What it does not show `horizon_s` after the last send did not happen."""

    horizon_s: float
    fence: Callable[[Any], Awaitable[None]] | None = None
    """Makes at the vendor sure that an earlier send of this request can no longer land (wipes the cart, burns the
    nonce), or raises. Without one a person decides about sending again."""
    burns: bool = False
    """The fence makes this reference useless for ever, also to us: what is sent after it is a new generation, prepared
    anew under a reference of its own."""


@dataclass(frozen=True)
class Rebroadcast:
    """The same signed bytes may be sent again: whoever takes them takes them once."""


@dataclass(frozen=True)
class Harmless:
    """A duplicate moves no money: the doubtful generation is abandoned and the next one performed."""


@dataclass(frozen=True)
class Blind:
    """It can neither be asked for nor repeated: once, then a person decides."""


_outcome_types: Final[dict[str, list[Any]]] = {}
"""By kind, of every effect that this process has declared."""

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
    """A call that changes the outside world. Request and outcome are stored as JSON: keep secrets out of them."""

    kind: str
    version: int = 1
    """Of the stored request. A request of a higher version is left to a newer worker; one of a lower version is not
    compared with what prepare() gives now. Raise it when prepare() is to give another request."""
    timeout_s: float
    safety: Safety
    reference: str = ""
    """`key:generation`, set before prepare(): what a vendor is given as our key or memo."""
    tenants: Sequence[str] = ()
    """Whose money it moves besides that of the message's lane: a freeze of any of them stops it."""

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
        """The exact request. Reads only; what the first call of a generation gave is stored and sent.

        Called again by later runs, to hold what is asked for against what is on record, unless identity() says what
        that is. So without identity() it waits for nothing and gives the same for the same `reference`; an effect that
        does not is refused before anything is recorded.
        """
        raise NotImplementedError

    def identity(self) -> object:
        """What is asked for, as far as it is the same in every run: at least the parties and the amount. JSON, stored
        with the request; another one under the same key raises KeyReused. Reads nothing from outside.

        None, the default: the whole request. Declare it where prepare() reads a quote, a nonce or the time.
        """
        return None

    async def perform(self, request: Request) -> Outcome:
        """The call. May raise Refused (a definite no) or NotSent (proven); everything else is unknown."""
        raise NotImplementedError

    async def resolve(self, request: Request) -> Happened[Outcome] | DidNot | CannotTell:
        """Whether it happened. Changes nothing at the vendor."""
        raise NotImplementedError

    def amount(self, request: Request) -> Amount | None:
        """What it moves: velocity limits, approvals and the money meter count it. None: it moves nothing."""
        return None

    def vendor_ref(self, outcome: Outcome) -> str | None:
        """The vendor's own name for what happened; no two effects of a kind may have the same."""
        return None

    @property
    def vendor_name(self) -> str:
        """Whose system it changes: the kind up to its first dot."""
        return self.kind.partition(".")[0]

    @property
    def can_resolve(self) -> bool:
        return type(self).resolve is not Effect.resolve


def encode_stated(value: object, kind: str, what: str) -> str:
    """JSON of an outcome that a person wrote, held against what this process declares for its kind. A vendor may
    add a field that nobody reads; by hand that is a slip."""
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
    """By the names that they have in JSON; none for what is no record."""
    if isinstance(declared, type) and issubclass(declared, msgspec.Struct):
        return [field.encode_name for field in msgspec.structs.fields(declared)]
    return []


def _field_names_hint(declared: Any) -> str:
    names = _fields_of(declared)
    return f"; {declared.__name__} has the fields {', '.join(names)}" if names else ""


def encode(value: object, as_type: Any, what: str) -> str:
    """JSON that is proven to be readable again as what it was."""
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
            f"{what} is on record in a form that this code does not read: {error}; accept what older versions wrote"
        ) from error
