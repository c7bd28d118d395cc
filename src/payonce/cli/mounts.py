"""Commands with parts of services: built only when used, since services take long to import."""

import inspect
import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command, get_group

from payonce import examples, services
from payonce.app import ENTRY_POINTS, chosen_services
from payonce.app.service_modules import named_modules
from payonce.kit.outcomes import Invalid

if TYPE_CHECKING:
    from payonce.service import Option, Service


def placeholder() -> None:
    """Registered in place of a lazy command, whose built command runs instead."""


class _Built:
    """An attribute of the built command; what the framework sets on the placeholder is ignored."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, command: Any, owner: type) -> Any:
        return getattr(command.built(), self._name)

    def __set__(self, command: Any, value: object) -> None: ...


def lazy_command(build: Callable[[], Callable[..., None]]) -> type[TyperCommand]:
    """For `app.command(cls=…, help=…)`: a command with the parameters, body and help of the function that `build`
    returns. The list of commands shows the registered help and builds nothing."""

    class LazyCommand(TyperCommand):
        params: Any = _Built()
        callback: Any = _Built()
        help: Any = _Built()

        def __init__(self, name: str | None, **attributes: Any) -> None:
            self._command: Any = None
            self._summary_command = TyperCommand(name, help=attributes["help"])
            super().__init__(name, **attributes)

        def built(self) -> Any:
            if self._command is None:
                alone = typer.Typer(add_completion=False, rich_markup_mode=None)
                alone.command(self.name)(build())
                self._command = get_command(alone)
            return self._command

        def get_short_help_str(self, limit: int = 45) -> str:
            return self._summary_command.get_short_help_str(limit)

    return LazyCommand


def lazy_help(build: Callable[[], str]) -> type[TyperCommand]:
    """For `app.command(cls=…, help=…)`: a command whose help is built when it is shown. The list of commands shows the
    help that is registered."""

    class LazyHelp(TyperCommand):
        def format_help_text(self, ctx: Any, formatter: Any) -> None:
            self.help = inspect.cleandoc(build())
            super().format_help_text(ctx, formatter)

    return LazyHelp


class LazyGroup(TyperGroup):
    """The commands of a built-in service: listed by its `cli/help.toml`, and imported when one is used."""

    commands: Any = _Built()
    params: Any = _Built()
    callback: Any = _Built()
    help: Any = _Built()

    def __init__(self, **attributes: Any) -> None:
        self._group: Any = None
        self._summary_command = TyperCommand(attributes["name"], help=attributes["help"])
        super().__init__(**attributes)

    def built(self) -> Any:
        if self._group is None:
            known = _services_with_commands()
            if self.name not in known:
                raise Invalid(f"this installation has no service {self.name}")
            self._group = _group(known[self.name])
        return self._group

    def get_short_help_str(self, limit: int = 45) -> str:
        return self._summary_command.get_short_help_str(limit)


class Platform(TyperGroup):
    """All commands: the platform's and the services'. Installed services are imported for the list of commands and for
    unknown names; their commands cannot replace others."""

    def list_commands(self, ctx: Any) -> list[str]:
        own = super().list_commands(ctx)
        return own + [name for name in _installed() if name not in own]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        own = super().get_command(ctx, cmd_name)
        if own is None and (service := _installed().get(cmd_name)) is not None:
            return _group(service)
        return own


@dataclass(frozen=True)
class ServiceHelp:
    """The help texts of a built-in service's commands, shown by `payonce --help`."""

    service: str
    summary: str
    examples: Mapping[str, str]


def service_help() -> list[ServiceHelp]:
    found, chosen = [], chosen_services(os.environ)
    for package in (examples, services):
        for path in sorted(Path(package.__path__[0]).glob("*/cli/help.toml")):
            name = path.parents[1].name
            if chosen is None or name in chosen:
                text = tomllib.loads(path.read_text(encoding="utf-8"))
                found.append(ServiceHelp(name, text["summary"], text.get("examples", {})))
    return found


def mount(app: typer.Typer, service_help_texts: Sequence[ServiceHelp]) -> None:
    for each in service_help_texts:
        group = typer.Typer(cls=LazyGroup, help=each.summary, no_args_is_help=True, rich_markup_mode=None)
        app.add_typer(group, name=each.service)


def _services_with_commands() -> dict[str, "Service"]:
    """The services that have commands."""
    from payonce.app.registry import SERVICES

    return {service.name: service for service in SERVICES if service.commands is not None}


def _installed() -> dict[str, "Service"]:
    return _services_with_commands() if entry_points(group=ENTRY_POINTS) or named_modules() else {}


def _group(service: "Service") -> TyperGroup:
    assert service.commands is not None
    group = get_group(service.commands())
    group.name = service.name
    return group


def with_options(command: Callable[..., None], options: Sequence["Option"], help_text: str) -> Callable[..., None]:
    """The command with services' options before its `--json`; it gets their values by name."""
    own = [each for each in inspect.signature(command).parameters.values() if each.kind is not each.VAR_KEYWORD]
    place = [each.name for each in own].index("as_json")
    parameters = [
        each.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for each in (*own[:place], *(_parameter(option) for option in options), *own[place:])
    ]

    def extended(**given: Any) -> None:
        command(**given)

    extended.__doc__ = help_text
    extended.__annotations__ = {each.name: each.annotation for each in parameters}
    extended.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return extended


def _parameter(option: "Option") -> inspect.Parameter:
    default = typer.Option(
        option.default, option.flag, help=option.help, min=option.min, max=option.max, metavar=option.metavar
    )
    annotation = option.kind | None if option.default is None else option.kind
    return inspect.Parameter(option.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
