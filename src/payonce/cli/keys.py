"""`keys`: API keys of the HTTP API."""

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from payonce.cli.arguments import ByOption, operator_name
from payonce.cli.output import JsonOption, note, open_app, run_async, show, table
from payonce.kit.durations import parsed_duration_s

if TYPE_CHECKING:
    from payonce.engine.operators.api_keys import ApiKey
    from payonce.http.kit.scopes import ScopeCatalogue

HELP: Final = """Create and revoke API keys. A key is shown once; the database stores only its digest.

\b
Examples:
  payonce keys scopes
  payonce keys add ada --scope queues:read --scope queues:steer --expires-in 30d
  payonce keys add shop --tenant acme --scope transfers:write --scope transfers:read
  payonce keys list
  payonce keys revoke abcd2345 --why 'was in a log'
"""
NEVER: Final = "never"

commands = typer.Typer(help=HELP, no_args_is_help=True, rich_markup_mode=None)


@commands.command("add")
def add(
    holder: Annotated[str, typer.Argument(metavar="HOLDER", help="The person or system that uses the key.")],
    scope: Annotated[list[str], typer.Option(help="A scope of the key; repeatable. `payonce keys scopes` lists them.")],
    tenant: Annotated[
        str | None, typer.Option(help="The only tenant whose data it gives access to; unset, every tenant's.")
    ] = None,
    expires_in: Annotated[str, typer.Option(help="Its lifetime, such as 12h, 90d or never.")] = "90d",
    by: ByOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create an API key and print it once.

    Example: payonce keys add ada --scope queues:read --expires-in 30d
    """
    lifetime_s = None if expires_in == NEVER else parsed_duration_s(expires_in, "--expires-in")
    _catalogue().check(scope, tenant)

    async def act() -> None:
        from payonce.engine.operators.api_keys import make_key

        async with open_app() as app, app.begin() as tx:
            made = await make_key(tx, holder, scope, operator_name(by), tenant=tenant, lifetime_s=lifetime_s)
        show({**_described(made.key), "key": made.secret}, as_json, made.secret)
        if not as_json:
            note("The key is not shown again. Send it as: Authorization: Bearer KEY")

    run_async(act())


@commands.command("list")
def list_keys(
    holder: Annotated[str | None, typer.Option(help="Only the keys of this holder.")] = None,
    ended: Annotated[bool, typer.Option("--all", help="Include expired and revoked keys.")] = False,
    as_json: JsonOption = False,
) -> None:
    """List keys by their visible part, newest first."""

    async def act() -> None:
        from payonce.engine.operators.api_keys import keys

        async with open_app() as app:
            found = await keys(app.read, holder=holder, also_ended=ended)
        show({"keys": [_described(each) for each in found]}, as_json, _table(found) if found else "there is no key")

    run_async(act())


@commands.command("revoke")
def revoke(
    key: Annotated[str, typer.Argument(metavar="KEY", help="Its visible part, from `payonce keys list`.")],
    why: Annotated[str, typer.Option(help="For the audit log.")],
    by: ByOption = None,
    as_json: JsonOption = False,
) -> None:
    """Revoke a key, at once and permanently.

    Example: payonce keys revoke abcd2345 --why 'was in a log'
    """

    async def act() -> None:
        from payonce.engine.operators.api_keys import revoke_key

        async with open_app() as app, app.begin() as tx:
            ended = await revoke_key(tx, key, operator_name(by), why)
        show({"revoked": _described(ended)}, as_json, f"key {ended.prefix} of {ended.holder} is revoked")

    run_async(act())


@commands.command("scopes")
def scopes(as_json: JsonOption = False) -> None:
    """List the scopes that a key can have."""
    known = _catalogue()
    rows = [(name, what, "yes" if name in known.for_tenants else "no") for name, what in known.allows.items()]
    plain = [{"scope": name, "allows": what, "tenants": may == "yes"} for name, what, may in rows]
    show({"scopes": plain}, as_json, table("Scopes", ("scope", "allows to", "for tenants"), rows))


def _catalogue() -> "ScopeCatalogue":
    from payonce.app.registry import scope_catalogue

    return scope_catalogue()


def _described(key: "ApiKey") -> dict[str, Any]:
    names = (
        "prefix",
        "holder",
        "tenant",
        "made_by",
        "made_at",
        "expires_at",
        "expired",
        "last_used_at",
        "revoked_by",
        "revoked_at",
        "revoked_why",
    )
    return {**{name: getattr(key, name) for name in names}, "scopes": sorted(key.scopes)}


def _table(found: "list[ApiKey]") -> Any:
    columns = ("key", "holder", "tenant", "scopes", "made", "expires", "last used", "state")
    rows = [
        (
            each.prefix,
            each.holder,
            each.tenant,
            ", ".join(sorted(each.scopes)),
            each.made_at,
            each.expires_at,
            each.last_used_at,
            "revoked" if each.revoked_at else "expired" if each.expired else "live",
        )
        for each in found
    ]
    return table("API keys", columns, rows)
