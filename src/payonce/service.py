"""The manifest of a service: everything that the platform knows of it.

A service is registered by one object, `SERVICE`, in its package: built-in ones by a line in `app/registry.py`, others
by the entry-point group `payonce.services`.
"""

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from payonce.engine.audit.run import Audit
from payonce.engine.controls import Action
from payonce.engine.database.connections import Database
from payonce.engine.database.notifier import Notifier
from payonce.engine.janitors import Schedule
from payonce.engine.messages.ports import Admin
from payonce.engine.messages.push import Target
from payonce.engine.messages.transaction import Reader
from payonce.engine.messages.work import Handler
from payonce.engine.monitoring.attention import AttentionSource
from payonce.engine.monitoring.lookup import Lookup
from payonce.engine.outbox import Relay
from payonce.engine.reconcile import StatementSource
from payonce.settings import Settings
from payonce.settings.service import ServiceSettings

if TYPE_CHECKING:
    from fastapi import APIRouter
    from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
    from starlette.requests import Request
    from starlette.routing import Route
    from starlette.types import ASGIApp
    from typer import Typer

    from payonce.console.page import ServicePages
    from payonce.http.kit.context import AppContext
    from payonce.testing.crash import Ablation, Backend, Scenario


def lazily(target: str) -> Callable[..., Any]:
    """The callable `module:name`, imported when it is called: most processes need no routes, clients or scenarios."""
    module, _, name = target.partition(":")

    def call(*arguments: Any, **named: Any) -> Any:
        return getattr(import_module(module), name)(*arguments, **named)

    return call


@dataclass(frozen=True)
class Forwarding:
    """Queues of another service whose database is another one, and the relay that brings messages there."""

    queues: frozenset[str]
    relay: Relay


class Running(Protocol):
    """What a role runs besides handlers: opened before anything else looks for it, begun when the process works."""

    @property
    def address(self) -> str: ...

    async def run(self) -> None:
        """Until told to stop."""
        ...

    def stop(self) -> None: ...


@dataclass(frozen=True)
class Option:
    """An option that a service adds to a command of the platform."""

    flag: str
    help: str
    kind: type[int] | type[str] = int
    default: int | str | None = None
    min: int | None = None
    max: int | None = None
    metavar: str | None = None

    @property
    def name(self) -> str:
        """The name of the keyword argument that carries its value."""
        return self.flag.removeprefix("--").replace("-", "_")


class DemoReport(Protocol):
    """The result of a demonstration."""

    @property
    def log_path(self) -> Path: ...

    def figures(self) -> Mapping[str, Any]: ...

    def complaints(self) -> list[str]:
        """Each broken promise in one sentence; empty if all were kept."""
        ...

    def rendered(self) -> Any: ...


@dataclass(frozen=True)
class Demo:
    """A demonstration, which `payonce demo NAME` runs."""

    name: str
    run: Callable[..., Coroutine[Any, Any, DemoReport]]
    """Takes the settings, the seed, the size or None, and each given option by name."""
    help: str
    """A paragraph for `payonce demo --help`."""
    size_flag: str | None = None
    """Another name of `--size`, such as `--messages`."""
    options: Sequence[Option] = ()
    is_default: bool = False
    """Whether `payonce demo` without a name runs this one."""


@dataclass(frozen=True)
class Served:
    """Simulators that listen."""

    addresses: Mapping[str, str]
    """By what is simulated, for the log."""
    environment: Mapping[str, str]
    """What to export so that roles in other processes use them."""


@dataclass(frozen=True)
class Simulators:
    """The simulated vendors of a service, which `payonce simulators` serves."""

    vendors: Sequence[str]
    """For the help text, such as `exchange`."""
    options: Sequence[Option]
    serve: Callable[..., AbstractAsyncContextManager[Served]]
    """Takes the settings, the host to listen on, and the value of each option by name."""
    example: str = ""
    """The arguments of an example."""


@dataclass(frozen=True)
class Service:
    """What a service declares: who handles what, its schema, and what its handlers need from outside."""

    name: str
    """Of a service that is deployed in several parts, each part is registered, under the same name."""
    package: str | None
    """Has the folder `migrations`; None for a service without such a folder, and for one whose other part has it."""
    roles: Mapping[str, Sequence[Handler]]
    invariants: Mapping[str, str] = field(default_factory=dict)
    schedules: Sequence[Schedule] = ()
    migrations: Sequence[str] = ()
    """The SQL of its migrations, in order, for a service of one module without a folder `migrations`. Append to it: a
    released migration must not change."""
    settings: type[ServiceSettings] | None = None
    """Its own settings; `settings.of(…)` reads them, and its roles start only when their `check` passes."""
    resources: Callable[[Settings, Database], AbstractAsyncContextManager[Sequence[object]]] | None = None
    """Opens what the handlers take as parameters: vendors' clients, keys."""
    references: Mapping[str, str] = field(default_factory=dict)
    """For each kind of reference that its postings have, a query: of the ids in $1::text[], those that exist."""
    names: str | None = None
    """A query: the correlation ids of what people call $1, so that `payonce trace` finds it by any name."""
    lookups: Sequence[Lookup] = ()
    """Its objects by whatever a person holds of them, for the console's search and for the links of a trace."""
    attention: AttentionSource | None = None
    """Its objects that wait for a person, for the console's first page."""
    console: Callable[[], "ServicePages"] | None = None
    """Its pages in the console, also of one whose tables are in another database; built when a process listens. Of a
    service that is deployed in several parts, one part has the pages of all."""
    audits: Sequence[Audit] = ()
    """What `payonce audit run` checks beyond queries, such as a vendor's books against ours."""
    actions: Sequence[Callable[[Admin], Action[Any]]] = ()
    """What of it may need a second person."""
    statements: Callable[[Sequence[object]], Sequence[StatementSource]] | None = None
    """The statements of its vendors, read through what `resources` opened."""
    scenarios: Callable[[], Sequence["Scenario"]] = tuple
    """What the crash explorer runs of it; asked for when it does, since simulators and clients take a while to load."""
    ablations: Callable[[], Sequence["Ablation"]] = tuple
    """The safeguards of its own that `payonce crash` takes out beside those of the engine."""
    crash_backend: Callable[[str], "Backend"] | None = None
    """The queues on which its scenarios are explored, where they need queues of their own. Takes the backend that was
    asked for, and raises Invalid where the two contradict each other."""
    explored_when_named: bool = False
    """Whether its scenarios are explored only when they are named, because there are hundreds of points in each."""
    routes: Callable[[], "APIRouter"] | None = None
    """What it answers over HTTP, written with payonce.http.kit; built when a process listens."""
    short_routes: Callable[[], Sequence["Route"]] | None = None
    """POST routes with a fixed path for the most frequent requests. They are answered without the middleware, the
    dependencies and the search among hundreds of routes, so they check their requests themselves."""
    shared_routes: Callable[[], "APIRouter"] | None = None
    """Routes that each part of a service answers. A process that answers for several of them has these once."""
    routes_with_role: bool = False
    """Whether only processes that run one of its roles answer its routes; else every process that listens does."""
    mounts: Mapping[str, Callable[["AppContext"], "ASGIApp"]] = field(default_factory=dict)
    """ASGI applications by the path under which every process that listens answers for them. They authenticate their
    callers themselves; the platform bounds bodies and times and adds trace ids."""
    is_operator: Callable[["Request", "HTTPAuthorizationCredentials"], Awaitable[bool | None]] | None = None
    """Whether these credentials are an operator's of the service, who may see how the queues are; None for credentials
    that the service does not issue. Raises Problem for those that it issued and no longer accepts."""
    operator_scheme: Callable[[], "HTTPBearer"] | None = None
    """The security scheme of these credentials, for the API description."""
    scopes: Mapping[str, str] = field(default_factory=dict)
    """What keys for its routes may be allowed, and what that means."""
    tenant_scopes: Sequence[str] = ()
    """Those of its scopes whose routes keep tenants apart, and so let keys of a tenant in."""
    tenant_refusal: str | None = None
    """Why keys of a tenant can have none of its other scopes, and what to do instead; None: they see every tenant."""
    pushes: Callable[[Settings], Sequence[Target]] | None = None
    """Which of its queues a task service brings over HTTP, and where; the others lie where all queues do."""
    observes: Callable[[Database], Awaitable[None]] | None = None
    """Refreshes its gauges from the store, in every process."""
    forwards: Callable[[Settings, Database], AbstractAsyncContextManager[Forwarding]] | None = None
    """Where messages go for queues that are served from another database."""
    in_database: Callable[["Service", Settings], "Service | None"] | None = None
    """What of it the database of this process holds, by the settings; None: nothing. Without it: all of it, always."""
    held_again_by: str | None = None
    """What to set so that the database holds it whatever `in_database` says, for whoever has messages left for it."""
    check_held: Callable[[Settings, Reader], Awaitable[None]] | None = None
    """Refuses, with what to do, a database that holds other parts of it than the settings say. Called before a role
    starts."""
    runs: Mapping[str, Callable[[Settings, Database, Notifier], AbstractAsyncContextManager[Running | None]]] = field(
        default_factory=dict
    )
    """What a role runs besides handlers, such as a server; None where the settings say that another one serves."""
    commands: Callable[[], "Typer"] | None = None
    """Its own commands, which are mounted under its name. A built-in service has a file `cli/help.toml`, too: `payonce
    --help` lists them by it, without importing the service."""
    demos: Sequence[Demo] = ()
    """Its demonstrations."""
    simulators: Simulators | None = None
    """Its vendors, simulated for roles in several processes."""
    runnable: Callable[[Settings, Sequence[str]], list[str]] | None = None
    """Of all roles, those that `payonce up` runs by the settings; None: all of them."""
    requires: Sequence[str] = ()
    """Modules that it cannot do without. Where one is missing the service is absent, unless PAYONCE_SERVICES names it:
    then every command is refused with the remedy."""
    distribution: str = "payonce"
    """The requirement that installs those modules, such as `payonce[giftcards]`."""
    usual_ports: Mapping[str, int] = field(default_factory=dict)
    """Where a process of nothing but this role listens without being asked to."""
    listens: Callable[[Sequence[object], Settings, Sequence[str], int], None] | None = None
    """Called when a process listens, with what `resources` opened, its roles and its port."""
