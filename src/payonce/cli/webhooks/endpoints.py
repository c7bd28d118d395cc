"""`webhooks endpoints`: add, rotate, disable, enable, remove and ping endpoints."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final
from uuid import UUID

import typer

from payonce.cli.arguments import ByOption, LimitOption, operator_name
from payonce.cli.confirmation import confirm
from payonce.cli.output import JsonOption, YesOption, open_app, run_async, show, table
from payonce.cli.webhooks.signatures import SecretFileOption, read_secrets
from payonce.kit.durations import parsed_duration_s
from payonce.kit.outcomes import Invalid

if TYPE_CHECKING:
    from payonce.app.process import App
    from payonce.engine.webhooks import Endpoint
    from payonce.kit.crypto import Keyring
    from payonce.kit.webhooks import Secret

LIST: Final = "payonce webhooks endpoints list"

commands = typer.Typer(
    help="Manage endpoints: URLs, subscribed events and secrets.", no_args_is_help=True, rich_markup_mode=None
)

EndpointArgument = Annotated[str, typer.Argument(metavar="ENDPOINT", help=f"Its id; `{LIST}` shows it.")]


@commands.command("add")
def add(
    url: Annotated[str, typer.Argument(metavar="URL", help="The https URL that events are posted to.")],
    events: Annotated[list[str], typer.Option("--event", help="An event type, `invoice.*` or `*`; repeatable.")],
    tenant: Annotated[str, typer.Option(help="The tenant whose events it receives.")] = "default",
    description: Annotated[str, typer.Option(help="Its purpose.")] = "",
    secret_file: SecretFileOption = None,
    by: ByOption = None,
    as_json: JsonOption = False,
) -> None:
    """Add an endpoint for these events. Its secret is printed once: give it to the receiver.

    Example: payonce webhooks endpoints add https://shop.example/hook --event 'invoice.*' --tenant acme
    """
    own_secret = _own_secret(secret_file)

    async def act() -> None:
        from payonce.engine.webhooks import add_endpoint

        async with open_app() as app, app.begin() as tx:
            made, secret = await add_endpoint(
                tx,
                keys_of(app),
                url=url,
                events=events,
                tenant=tenant,
                description=description,
                by=operator_name(by),
                secret=own_secret,
                allow_private=app.settings.webhook_private,
            )
        result = {"endpoint": described(made), "secret": secret.reveal()}
        show(result, as_json, f"endpoint {made.id} of {made.origin} is enabled", f"secret: {secret.reveal()}")

    run_async(act())


@commands.command("list")
def list_endpoints(
    tenant: Annotated[str | None, typer.Option(help="Only endpoints of this tenant.")] = None,
    state: Annotated[str | None, typer.Option(help="enabled, disabled or removed.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Include removed endpoints.")] = False,
    limit: LimitOption = 50,
    before: Annotated[str | None, typer.Option(help="Continue after this endpoint, for the next page.")] = None,
    as_json: JsonOption = False,
) -> None:
    """List endpoints, newest first. URL paths are omitted, since many receivers keep a secret there."""
    behind = None if before is None else parsed_endpoint(before)

    async def act() -> None:
        from payonce.engine.webhooks import EndpointState, endpoints

        wanted = None if state is None else parsed_state(state, EndpointState, "an endpoint")
        async with open_app() as app:
            found = await endpoints(
                app.read, tenant=tenant, state=wanted, removed=everything, before=behind, limit=limit
            )
        following = str(found[-1].id) if len(found) == limit else None
        result = {"endpoints": [described(each) for each in found], "next_before": following}
        show(result, as_json, _table(found) if found else "there are no endpoints")

    run_async(act())


@commands.command("show")
def show_endpoint(endpoint: EndpointArgument, as_json: JsonOption = False) -> None:
    """Show an endpoint with its whole URL. Secrets are not shown; `rotate` creates a new one."""
    endpoint_id = parsed_endpoint(endpoint)

    async def act() -> None:
        from payonce.engine.webhooks import endpoint as found_by

        async with open_app() as app:
            found = await found_by(app.read, endpoint_id)
        fields = {**described(found), "url": found.url}
        rows = [(name, ", ".join(value) if isinstance(value, tuple) else value) for name, value in fields.items()]
        show({"endpoint": fields}, as_json, table(f"Endpoint {endpoint_id}", ("field", "value"), rows))

    run_async(act())


@commands.command("rotate")
def rotate(
    endpoint: EndpointArgument,
    overlap: Annotated[
        str, typer.Option(help="How long previous secrets keep signing, such as 30m, 24h or 7d.")
    ] = "24h",
    at_once: Annotated[bool, typer.Option("--at-once", help="Previous secrets end now, as after a leak.")] = False,
    secret_file: SecretFileOption = None,
    by: ByOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create a new secret, printed once. Previous secrets keep signing for a while, so that no event is rejected.

    Example: payonce webhooks endpoints rotate 0199… --overlap 7d
    """
    endpoint_id, own_secret = parsed_endpoint(endpoint), _own_secret(secret_file)
    overlap_s = 0 if at_once else parsed_duration_s(overlap, "--overlap")

    async def act() -> None:
        from payonce.engine.webhooks import rotate_secret

        async with open_app() as app, app.begin() as tx:
            secret = await rotate_secret(
                tx, keys_of(app), endpoint_id, by=operator_name(by), overlap_s=overlap_s, secret=own_secret
            )
        result = {"endpoint": str(endpoint_id), "secret": secret.reveal(), "overlap_s": overlap_s}
        said = "previous secrets have ended" if at_once else f"previous secrets keep signing for {overlap}"
        show(result, as_json, f"endpoint {endpoint_id} has a new secret; {said}", f"secret: {secret.reveal()}")

    run_async(act())


@commands.command("disable")
def disable(
    endpoint: EndpointArgument,
    reason: Annotated[str, typer.Option(help="The reason, shown with the endpoint.")],
    by: ByOption = None,
    as_json: JsonOption = False,
) -> None:
    """Disable an endpoint. Events announced meanwhile are recorded as skipped and can be replayed."""
    endpoint_id = parsed_endpoint(endpoint)

    async def act() -> None:
        from payonce.engine.webhooks import disable_endpoint

        async with open_app() as app, app.begin() as tx:
            moved = await disable_endpoint(tx, endpoint_id, by=operator_name(by), reason=reason)
        show({"endpoint": described(moved)}, as_json, f"endpoint {endpoint_id} is disabled")

    run_async(act())


@commands.command("enable")
def enable(endpoint: EndpointArgument, by: ByOption = None, as_json: JsonOption = False) -> None:
    """Enable an endpoint. Missed events are not sent automatically: see `payonce webhooks replay`."""
    endpoint_id = parsed_endpoint(endpoint)

    async def act() -> None:
        from payonce.engine.webhooks import enable_endpoint
        from payonce.engine.webhooks import endpoint as found_by

        async with open_app() as app:
            since = (await found_by(app.read, endpoint_id)).changed_at.isoformat(timespec="seconds")
            async with app.begin() as tx:
                moved = await enable_endpoint(tx, endpoint_id, by=operator_name(by))
        hint = f"replay missed events with: payonce webhooks replay --endpoint {endpoint_id} --since {since} --why '…'"
        show({"endpoint": described(moved)}, as_json, f"endpoint {endpoint_id} is enabled", hint)

    run_async(act())


@commands.command("remove")
def remove(
    endpoint: EndpointArgument,
    reason: Annotated[str, typer.Option(help="The reason, for the audit log.")],
    by: ByOption = None,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Remove an endpoint permanently and destroy its secrets. Its deliveries stay on record until they are pruned."""
    endpoint_id = parsed_endpoint(endpoint)

    async def act() -> None:
        from payonce.engine.webhooks import endpoint as found_by
        from payonce.engine.webhooks import remove_endpoint

        async with open_app() as app:
            found = await found_by(app.read, endpoint_id)
            question = f"remove {found.origin} of {found.tenant}?"
            confirm("removing an endpoint", question, yes=yes, as_json=as_json)
            async with app.begin() as tx:
                moved = await remove_endpoint(tx, endpoint_id, by=operator_name(by), reason=reason)
        show({"endpoint": described(moved)}, as_json, f"endpoint {endpoint_id} is removed")

    run_async(act())


@commands.command("ping")
def ping(endpoint: EndpointArgument, as_json: JsonOption = False) -> None:
    """Send an event `payonce.ping` to an endpoint. A process with the role webhooks.sender delivers it."""
    endpoint_id = parsed_endpoint(endpoint)

    async def act() -> None:
        from payonce.engine.webhooks import announce_to

        async with open_app() as app, app.begin() as tx:
            event_id = await announce_to(tx, endpoint_id, "payonce.ping", {})
        look = f"payonce webhooks deliveries list --event {event_id}"
        show({"event": event_id}, as_json, f"event {event_id} is queued; see: {look}")

    run_async(act())


def keys_of(app: "App") -> "Keyring":
    keys = app.settings.keyring()
    if keys is None:
        raise Invalid(
            "PAYONCE_KEYS is not set, so secrets cannot be encrypted; set it for every process to k1: and the output "
            "of `openssl rand -base64 32`"
        )
    return keys


def parsed_endpoint(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise Invalid(f"{text[:60]!r} is not the id of an endpoint; copy one from `{LIST}`") from None


def parsed_state(text: str, states: Any, what: str) -> Any:
    known = [str(state) for state in states]
    if text not in known:
        raise Invalid(f"there is no state {text[:40]!r}; {what} is {', '.join(known[:-1])} or {known[-1]}")
    return states(text)


def described(found: "Endpoint") -> dict[str, Any]:
    fields = asdict(found)
    del fields["url"]
    return {**fields, "place": found.origin}


def _own_secret(path: Path | None) -> "Secret | None":
    if path is None:
        return None
    found = read_secrets(path)
    if len(found) != 1:
        raise Invalid(f"{path} holds {len(found)} secrets; it must hold one")
    return found[0]


def _table(found: "Sequence[Endpoint]") -> Any:
    columns = ("id", "place", "tenant", "events", "state", "reason", "failing since", "description")
    rows = [
        (
            each.id,
            each.origin,
            each.tenant,
            ", ".join(each.events),
            each.state,
            each.reason,
            each.failing_since,
            each.description,
        )
        for each in found
    ]
    return table("Endpoints", columns, rows)
