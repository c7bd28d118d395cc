"""`users`: logins of the console and their roles."""

import getpass
import sys
from typing import Annotated, Any, Final

import typer

from payonce.cli.arguments import ByOption, operator_name
from payonce.cli.output import JsonOption, open_app, run_async, show, table
from payonce.kit.outcomes import Invalid

commands = typer.Typer(help="Manage logins of the console.", no_args_is_help=True)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Such as ann or ann@example.com.")]
RoleOption = Annotated[str, typer.Option(help="viewer may read, operator may also change, approver may also approve.")]
StdinOption = Annotated[bool, typer.Option("--password-stdin", help="Read the password from standard input.")]
PASSWORD_INPUT_MAX: Final = 4_096


@commands.command("add")
def add(
    name: NameArgument,
    role: RoleOption = "viewer",
    password_stdin: StdinOption = False,
    by: ByOption = None,
    as_json: JsonOption = False,
) -> None:
    """Add a login. Once one exists, the console requires a login.

    Example: payonce users add ann --role approver
    """

    async def act() -> None:
        from payonce.engine.operators import add_person
        from payonce.engine.operators.model import checked_name, checked_role

        wanted, kept = checked_role(role), checked_name(name)
        password = _password(kept, password_stdin)
        async with open_app() as app, app.begin() as tx:
            await add_person(tx, kept, wanted, password, operator_name(by))
        show({"name": kept, "role": wanted}, as_json, f"{kept} may log in as {wanted}")

    run_async(act())


@commands.command("list")
def list_users(as_json: JsonOption = False) -> None:
    """List logins."""

    async def act() -> None:
        from dataclasses import asdict

        from payonce.engine.operators import people

        async with open_app() as app:
            found = [asdict(each) for each in await people(app.read)]
        columns = ("name", "role", "added_by", "added_at", "seen_at")
        rows = [[each[column] for column in columns] for each in found]
        listing: Any = table("People", [column.replace("_", " ") for column in columns], rows)
        if not found:
            listing = "no login exists; only the link of `payonce console` opens it. Add one: payonce users add NAME"
        show({"users": found}, as_json, listing)

    run_async(act())


@commands.command("passwd")
def passwd(
    name: NameArgument, password_stdin: StdinOption = False, by: ByOption = None, as_json: JsonOption = False
) -> None:
    """Set a new password and end the user's sessions."""

    async def act() -> None:
        from payonce.engine.operators import set_password
        from payonce.engine.operators.model import checked_name

        kept = checked_name(name)
        password = _password(kept, password_stdin)
        async with open_app() as app, app.begin() as tx:
            await set_password(tx, kept, password, operator_name(by))
        show({"name": kept}, as_json, f"{kept} has a new password, and must log in again")

    run_async(act())


@commands.command("role")
def role(
    name: NameArgument,
    role: Annotated[str, typer.Argument(metavar="ROLE", help="viewer, operator or approver.")],
    by: ByOption = None,
    as_json: JsonOption = False,
) -> None:
    """Change a user's role, effective from their next request."""

    async def act() -> None:
        from payonce.engine.operators import set_role
        from payonce.engine.operators.model import checked_role

        wanted = checked_role(role)
        async with open_app() as app, app.begin() as tx:
            await set_role(tx, name, wanted, operator_name(by))
        show({"name": name, "role": wanted}, as_json, f"{name} is now {wanted}")

    run_async(act())


@commands.command("remove")
def remove(name: NameArgument, by: ByOption = None, as_json: JsonOption = False) -> None:
    """Remove a login and end its sessions. Their actions stay in the audit log."""

    async def act() -> None:
        from payonce.engine.operators import remove_person

        async with open_app() as app, app.begin() as tx:
            await remove_person(tx, name, operator_name(by))
        show({"name": name}, as_json, f"{name} can no longer log in")

    run_async(act())


def _password(name: str, from_stdin: bool) -> str:
    """Never read from an argument, which the shell's history and the process list would show."""
    from payonce.engine.operators.passwords import check_password

    if from_stdin:
        password = sys.stdin.readline(PASSWORD_INPUT_MAX).rstrip("\r\n")
    elif sys.stdin.isatty():
        password = getpass.getpass(f"password for {name}: ")
        if getpass.getpass("once more: ") != password:
            raise Invalid("the two passwords differ; nothing was changed")
    else:
        raise Invalid("standard input is no terminal; add --password-stdin and send the password there")
    check_password(password)
    return password
