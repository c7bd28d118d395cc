"""Services start with a login that is neither superuser nor owner of the schema, or with one that a setting accepts."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit
from uuid import uuid4

import asyncpg
import pytest

from payonce.engine.database.connections import check_login
from payonce.kit.outcomes import Unavailable
from payonce.testing import ScratchDatabase


async def check(url: str, *, superuser_accepted: bool = False, owner_accepted: bool = False) -> None:
    connection = await asyncpg.connect(url)
    try:
        await check_login(connection, superuser_accepted=superuser_accepted, owner_accepted=owner_accepted)
    finally:
        await connection.close()


@asynccontextmanager
async def member_of(scratch: ScratchDatabase, role: str) -> AsyncIterator[str]:
    """A login of its own that could become this role."""
    name = f"crew_{uuid4().hex[:12]}"
    superuser = await asyncpg.connect(scratch.superuser_url)
    try:
        await superuser.execute(f"create role {name} login in role {role}")
        yield scratch.superuser_url.replace("//postgres@", f"//{name}@", 1)
    finally:
        await superuser.execute(f"drop role {name}")
        await superuser.close()


async def test_the_login_of_the_services_is_taken(scratch: ScratchDatabase) -> None:
    await check(scratch.service_url)


async def test_the_owner_of_the_schema_is_refused_and_told_the_way_out(scratch: ScratchDatabase) -> None:
    owner = urlsplit(scratch.owner_url).username
    with pytest.raises(
        Unavailable,
        match=rf"logs in as {owner}, which owns the schema payonce: .* member of payonce_service, .*"
        r"DATABASE_OWNER_URL for migrations and backups, .* PAYONCE_ACCEPT_OWNER=true",
    ):
        await check(scratch.owner_url)


async def test_a_member_of_the_owner_is_refused_too(scratch: ScratchDatabase) -> None:
    owner = urlsplit(scratch.owner_url).username or ""
    async with member_of(scratch, owner) as url:
        with pytest.raises(
            Unavailable, match=f"is a member of {owner}, the owner of the schema payonce: .*ACCEPT_OWNER"
        ):
            await check(url)


async def test_an_accepted_owner_is_taken(scratch: ScratchDatabase) -> None:
    await check(scratch.owner_url, owner_accepted=True)


async def test_the_switch_for_superusers_does_not_accept_an_owner(scratch: ScratchDatabase) -> None:
    with pytest.raises(Unavailable, match="PAYONCE_ACCEPT_OWNER"):
        await check(scratch.owner_url, superuser_accepted=True)


async def test_the_switch_for_owners_does_not_accept_a_superuser(scratch: ScratchDatabase) -> None:
    with pytest.raises(Unavailable, match="PAYONCE_ACCEPT_SUPERUSER"):
        await check(scratch.superuser_url, owner_accepted=True)
    await check(scratch.superuser_url, superuser_accepted=True)
