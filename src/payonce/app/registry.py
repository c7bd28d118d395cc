"""The services of an installation: what each declares, and what follows from all of them together.

A built-in service is one folder with the rooms of its neighbours, and one line in BUILT_IN. An installed package
declares its own by an entry point, and PAYONCE_SERVICE_MODULES names modules that are not installed.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from payonce.app import CHOICE, ENTRY_POINTS, chosen_services
from payonce.app.assembly import roles_of, scopes_of, services_in
from payonce.app.service_modules import load_named
from payonce.engine import controls
from payonce.engine.database.migrate import Migration, known_migrations, migrations_of
from payonce.engine.messages.policy import override_from_environment
from payonce.engine.messages.ports import Admin
from payonce.engine.messages.work import Handler
from payonce.engine.outbox import LogRelay, Relay
from payonce.http.kit.scopes import ScopeCatalogue
from payonce.kit.outcomes import Invalid
from payonce.service import Service
from payonce.settings import Settings

if TYPE_CHECKING:
    from payonce.console.page import ServicePages

PLATFORM: Final = "payonce.app.platform_services"
BUILT_IN: Final = (
    "payonce.examples.tally",
    "payonce.examples.transfers",
    "payonce.services.payouts",
    "payonce.services.billing",
)


@dataclass(frozen=True)
class Loaded:
    services: tuple[Service, ...]
    absent: Mapping[str, str]
    """By name, why an installed service is not part of this deployment, and how to add it."""


def load_services(environ: Mapping[str, str]) -> Loaded:
    """The chosen built-in services, then installed packages in the order of their names, then named modules."""
    installed = _installed()
    chosen, names = chosen_services(environ), dict.fromkeys(service.name for service in installed)
    if chosen is not None and (unknown := sorted(chosen - names.keys())):
        raise Invalid(f"{CHOICE} names {unknown[0]!r}; installed services are: {', '.join(names)}")
    if chosen is not None:
        chosen |= {service.name for service in named_services()}
    absent: dict[str, str] = {}
    for service in installed:
        if chosen is not None and service.name not in chosen:
            absent[service.name] = f"{CHOICE} leaves it out; add it there"
        elif missing := [module for module in service.requires if not _is_importable(module)]:
            remedy = f"pip install '{service.distribution}'"
            if chosen is not None:
                raise Invalid(f"{CHOICE} names {service.name}, which needs the module {missing[0]}; run: {remedy}")
            absent[service.name] = f"it needs the module {missing[0]}; run: {remedy}"
    found = [service for service in installed if service.name not in absent]
    return Loaded((*found, *_declared(import_module(PLATFORM).SERVICE, PLATFORM)), absent)


def _installed() -> list[Service]:
    found = [service for module in BUILT_IN for service in _declared(import_module(module).SERVICE, module)]
    for point in sorted(entry_points(group=ENTRY_POINTS), key=lambda point: point.name):
        found += _declared(point.load(), f"the entry point {point.name} = {point.value}")
    found += [service for service in named_services() if not any(service is other for other in found)]
    names = [role for service in found for role in roles_of([service])]
    if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        raise Invalid(f"two services have the role {twice[0]}; give one of them another name, or uninstall it")
    return found


def _is_importable(module: str) -> bool:
    return find_spec(module) is not None


def named_services() -> list[Service]:
    """The services that PAYONCE_SERVICE_MODULES names."""
    return [service for name, declared in load_named() for service in _declared(declared, name)]


def _declared(declared: object, where: str) -> Sequence[Service]:
    services = declared if isinstance(declared, tuple) else (declared,)
    for service in services:
        if not isinstance(service, Service):
            raise Invalid(f"{where} is {type(service).__name__}; it must be a payonce Service, or a tuple of them")
    return services


LOADED: Final = load_services(os.environ)
SERVICES: Final = LOADED.services

RELAYS: Final[Sequence[Relay]] = (LogRelay(),)

PLATFORM_ACTIONS: Final[Sequence[Callable[[Admin], controls.Action[Any]]]] = (
    controls.answer_review_action,
    controls.redrive_action,
    controls.write_off_action,
    controls.change_threshold_action,
)


def actions() -> list[Callable[[Admin], controls.Action[Any]]]:
    """What may need a second person."""
    return [*PLATFORM_ACTIONS, *(action for service in SERVICES for action in service.actions)]


def service_pages() -> dict[str, "ServicePages"]:
    """What each service adds to the console, by its name."""
    return {service.name: service.console() for service in SERVICES if service.console is not None}


def scope_catalogue() -> ScopeCatalogue:
    return scopes_of(SERVICES)


def role_names(settings: Settings | None = None) -> list[str]:
    """Of every service; with settings, of those whose tables the database holds."""
    return roles_of(SERVICES if settings is None else services_in(SERVICES, settings))


def runnable_roles(settings: Settings) -> list[str]:
    """What `payonce up` runs: every role whose tables the database holds, less those that somebody else runs."""
    roles = role_names(settings)
    for service in SERVICES:
        if service.runnable is not None:
            roles = service.runnable(settings, roles)
    return roles


def usual_ports() -> dict[str, int]:
    """The ports of roles that listen without being asked to."""
    return {f"{service.name}.{role}": port for service in SERVICES for role, port in service.usual_ports.items()}


def usual_port(settings: Settings, roles: Sequence[str]) -> int | None:
    """Where a process of these roles listens without being asked to; None if nowhere."""
    usual = usual_ports().get(roles[0]) if len(set(roles)) == 1 else None
    return settings.port if usual is not None and "port" in settings.model_fields_set else usual


def check_roles(settings: Settings, roles: Sequence[str]) -> None:
    """Refuses to start roles with settings of their services that they cannot work with."""
    for service in SERVICES:
        if service.settings is not None and (its := [role for role in roles if role in roles_of([service])]):
            settings.of(service.settings).check(settings, its)


def handlers_of(roles: Sequence[str]) -> list[Handler]:
    """The handlers of these roles, with the environment's changes to their policies."""
    known = {
        f"{service.name}.{role}": [replace(handler, service=service.name) for handler in handlers]
        for service in SERVICES
        for role, handlers in service.roles.items()
    }
    for role in roles:
        if role not in known:
            why = LOADED.absent.get(role.partition(".")[0])
            remedy = f"known are: {', '.join(known)}" if why is None else f"the service is absent: {why}"
            raise Invalid(f"there is no role {role!r}; {remedy}")
    chosen = [handler for role in dict.fromkeys(roles) for handler in known[role]]
    return [replace(handler, policy=override_from_environment(handler.policy)) for handler in chosen]


def all_migrations() -> list[Migration]:
    packages = known_migrations((each.name, each.package) for each in SERVICES if each.package is not None)
    return packages + [migration for each in SERVICES for migration in migrations_of(each.name, each.migrations)]
