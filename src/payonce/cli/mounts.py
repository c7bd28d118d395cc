"""Commands that services have a part in: built when they are needed, as services take long to import."""

import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand
from typer.main import get_command

if TYPE_CHECKING:
    from payonce.service import Option


def not_built() -> None:
    """What is registered for a late command; its built one runs instead."""


class _Built:
    """An attribute that is read from the built command, whatever the framework sets on the placeholder."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, command: Any, owner: type) -> Any:
        return getattr(command.built(), self._name)

    def __set__(self, command: Any, value: object) -> None: ...


def late_command(build: Callable[[], Callable[..., None]]) -> type[TyperCommand]:
    """For `app.command(cls=…, help=…)`: a command with the parameters, the body and the help of the function that
    `build` returns. The list of commands shows the help that is registered, and builds nothing."""

    class LateCommand(TyperCommand):
        params: Any = _Built()
        callback: Any = _Built()
        help: Any = _Built()

        def __init__(self, name: str | None, **attributes: Any) -> None:
            self._command: Any = None
            self._listed = TyperCommand(name, help=attributes["help"])
            super().__init__(name, **attributes)

        def built(self) -> Any:
            if self._command is None:
                alone = typer.Typer(add_completion=False, rich_markup_mode=None)
                alone.command(self.name)(build())
                self._command = get_command(alone)
            return self._command

        def get_short_help_str(self, limit: int = 45) -> str:
            return self._listed.get_short_help_str(limit)

    return LateCommand


def with_options(command: Callable[..., None], options: Sequence["Option"], help_text: str) -> Callable[..., None]:
    """The command with options of services before its own `--json`; it gets their values by name."""
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
