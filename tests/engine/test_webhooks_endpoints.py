"""Endpoints and their secrets: sealed at rest, rotated without a gap, every change with an audit note."""

import asyncio
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from payonce.engine.webhooks import (
    EndpointState,
    add_endpoint,
    disable_endpoint,
    endpoint,
    endpoints,
    remove_endpoint,
    rotate_secret,
    secrets_in_force,
)
from payonce.engine.webhooks.model import ENDPOINTS_MAX
from payonce.kit.crypto import Keyring, Unopenable
from payonce.kit.outcomes import Invalid
from payonce.kit.webhooks import Refusal, Secret, Verified, verify
from payonce.testing import OpenStage, eventually
from tests.engine.webhooks_stage import KEYS, Arrived, Post, open_post

HOUR_S = 3_600.0


def older(request: Arrived) -> dict[str, str]:
    return {name: value for name, value in request.headers.items() if name.startswith("x-")}


async def verified_by(post: Post, secret: Secret, *, scheme: Any = dict) -> bool:
    """Whether the last request satisfies a receiver with this secret."""
    request = post.shop.arrived[-1]
    answer = verify(scheme(request) if scheme is older else request.headers, request.body, [secret], await post.now())
    return isinstance(answer, Verified)


async def test_an_exchanged_secret_signs_along_until_its_time_is_over(stage: OpenStage) -> None:
    async with open_post(stage) as post:
        made, first = await post.add()
        async with post.s.begin() as tx:
            second = await rotate_secret(tx, KEYS, made.id, by="ada", overlap_s=int(HOUR_S))
        await post.s.clock.advance(HOUR_S - 1)
        await post.announce()
        await post.run()
        assert (await verified_by(post, first), await verified_by(post, second)) == (True, True)
        assert await verified_by(post, first, scheme=older), "the older header has room for one: it changes at the end"
        await post.s.clock.advance(2)
        await post.announce()
        await post.run()
        assert (await verified_by(post, first), await verified_by(post, second)) == (False, True)
        assert await verified_by(post, second, scheme=older)
        assert (await post.notes())[-1] == ("ada", "SHOP secret 2 created; earlier ones keep signing for 3600 s")


async def test_a_leaked_secret_ends_at_once_also_when_it_was_to_stay(stage: OpenStage) -> None:
    async with open_post(stage) as post:
        made, first = await post.add()
        async with post.s.begin() as tx:
            second = await rotate_secret(tx, KEYS, made.id, by="ada")
        async with post.s.begin() as tx:
            third = await rotate_secret(tx, KEYS, made.id, by="ada", overlap_s=0)
        await post.announce()
        await post.run()
        assert [await verified_by(post, each) for each in (first, second, third)] == [False, False, True]


async def test_a_longer_overlap_does_not_bring_an_ended_secret_back(stage: OpenStage) -> None:
    async with open_post(stage) as post:
        made, first = await post.add()
        for overlap_s in (60, 10 * 86_400):
            async with post.s.begin() as tx:
                await rotate_secret(tx, KEYS, made.id, by="ada", overlap_s=overlap_s)
        await post.s.clock.advance(61)
        keys = [secret.key for secret in await secrets_in_force(post.s.read, KEYS, made.id)]
        assert len(keys) == 2
        assert first.key not in keys


async def test_a_rotation_that_never_ends_is_refused(stage: OpenStage) -> None:
    async with open_post(stage) as post:
        made, _ = await post.add()

        async def rotate() -> None:
            async with post.s.begin() as tx:
                await rotate_secret(tx, KEYS, made.id, by="ada")

        for _ in range(9):
            await rotate()
        with pytest.raises(Invalid, match="10 secrets in force; rotate with a shorter overlap"):
            await rotate()
        assert len(await secrets_in_force(post.s.read, KEYS, made.id)) == 10


async def test_two_rotations_at_once_follow_each_other(stage: OpenStage) -> None:
    async with open_post(stage) as post:
        made, _ = await post.add()

        async def rotate() -> None:
            async with post.s.begin() as tx:
                await rotate_secret(tx, KEYS, made.id, by="ada")

        await asyncio.gather(rotate(), rotate(), rotate())
        assert len(await secrets_in_force(post.s.read, KEYS, made.id)) == 4


async def test_a_customer_may_bring_the_secret(stage: OpenStage) -> None:
    async with open_post(stage) as post:
        brought = Secret("a-shared-secret-of-theirs")
        _, secret = await post.add(secret=brought)
        assert secret is brought
        await post.announce()
        await post.run()
        assert await verified_by(post, brought, scheme=older)


async def test_the_database_does_not_know_the_secret(stage: OpenStage) -> None:
    async with open_post(stage) as post:
        made, secret = await post.add()
        dump = str(await post.s.owner.fetch("select * from payonce.webhook_secrets"))
        sealed = await post.s.owner.fetchval("select sealed from payonce.webhook_secrets")
        assert secret.reveal() not in dump
        assert secret.key not in bytes(sealed)
        with pytest.raises(Unopenable):
            await secrets_in_force(post.s.read, Keyring({1: b"x" * 32}), made.id)


async def test_a_secret_opens_for_its_own_endpoint_alone(stage: OpenStage) -> None:
    async with open_post(stage) as post:
        (mine, _), (theirs, _) = await post.add(), await post.add()
        await post.s.owner.execute(
            """
            update payonce.webhook_secrets
            set sealed = (select sealed from payonce.webhook_secrets where endpoint_id = $1)
            """,
            theirs.id,
        )
        with pytest.raises(Unopenable):
            await secrets_in_force(post.s.read, KEYS, mine.id)


REFUSED_URLS = [
    ("http://shop.example/hook", "is not https"),
    ("https://127.0.0.1/hook", "loopback"),
    ("https://10.0.0.8/hook", "private"),
    ("https://169.254.169.254/latest", "link-local"),
    ("https://[::1]/", "loopback"),
    ("https://[::ffff:10.0.0.8]/", "private"),
    ("https://[64:ff9b::7f00:1]/", "loopback"),
    ("https://[2002:7f00:1::]/", "loopback"),
    ("https://[2001:0:4136:e378:8000:63bf:3fff:fdd2]/", "reserved"),
    ("https://[fe80::1%25eth0]/", "cannot be read"),
    ("https://2130706433/", "four plain numbers"),
    ("https://0177.0.0.1/", "four plain numbers"),
    ("https://0x7f.1/", "four plain numbers"),
    ("https://user:password@shop.example/", "names a user"),
    ("ftp://shop.example/", "does not read"),
    ("shop.example", "does not read"),
]


@pytest.mark.parametrize(("url", "words"), REFUSED_URLS)
async def test_a_url_that_could_never_be_sent_to_is_refused(stage: OpenStage, url: str, words: str) -> None:
    async with open_post(stage) as post:
        with pytest.raises(Invalid, match=words):
            async with post.s.begin() as tx:
                await add_endpoint(tx, KEYS, url=url, events=["*"], by="ada")
        assert await endpoints(post.s.read) == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"events": []}, "0 event types"),
        ({"events": ["a"] * 101}, "101 event types"),
        ({"events": ["invoice.**"]}, "event type"),
        ({"events": ["*.paid"]}, "event type"),
        ({"tenant": " "}, "tenant ' '"),
        ({"tenant": "a\x00b"}, "tenant"),
        ({"description": "x" * 501}, "description"),
        ({"by": ""}, "by is ''"),
    ],
)
async def test_bad_words_are_refused_and_nothing_is_written(
    stage: OpenStage, options: dict[str, Any], words: str
) -> None:
    given = {"url": "https://shop.example/", "events": ["*"], "by": "ada", **options}
    async with open_post(stage) as post:
        with pytest.raises(Invalid, match=words):
            async with post.s.begin() as tx:
                await add_endpoint(tx, KEYS, **given)
        assert await endpoints(post.s.read) == []


async def test_a_tenant_has_a_bounded_number_of_endpoints_also_when_added_at_once(stage: OpenStage) -> None:
    async with open_post(stage) as post:
        for number in range(ENDPOINTS_MAX - 1):
            await post.add(path=f"/{number}")
        async with post.s.begin() as tx:
            await add_endpoint(tx, KEYS, url="https://shop.example/last", events=["*"], by="ada")
            one_more = asyncio.create_task(post.add())
            waits = "select exists (select from pg_locks where locktype = 'advisory' and not granted)"
            await eventually(lambda: one_more.done() or post.s.owner.fetchval(waits), what="it waits for the first")
        with pytest.raises(Invalid, match=f"has {ENDPOINTS_MAX} endpoints, the maximum"):
            await one_more
        assert len(await endpoints(post.s.read, limit=500)) == ENDPOINTS_MAX
        await post.add(tenant="other")


async def test_changes_that_make_no_sense_are_refused_in_words(stage: OpenStage) -> None:
    async with open_post(stage) as post:
        made, _ = await post.add()
        with pytest.raises(Invalid, match="there is no endpoint"):
            await endpoint(post.s.read, uuid4())
        async with post.s.begin() as tx:
            await disable_endpoint(tx, made.id, by="ada", reason="closed for today")
        with pytest.raises(Invalid, match="is already disabled: closed for today"):
            async with post.s.begin() as tx:
                await disable_endpoint(tx, made.id, by="ada", reason="again")
        with pytest.raises(Invalid, match="the reason is empty"):
            async with post.s.begin() as tx:
                await remove_endpoint(tx, made.id, by="ada", reason=" ")
        async with post.s.begin() as tx:
            await remove_endpoint(tx, made.id, by="ada", reason="closed")
        with pytest.raises(Invalid, match="was removed; add a new one"):
            async with post.s.begin() as tx:
                await rotate_secret(tx, KEYS, made.id, by="ada")


async def test_services_cannot_rewrite_what_was_said(stage: OpenStage) -> None:
    async with open_post(stage) as post:
        await post.add()
        await post.announce()
        for statement in (
            "update payonce.webhook_endpoints set url = 'https://evil.example'",
            "update payonce.webhook_events set body = 'x'",
            "delete from payonce.webhook_deliveries",
            "update payonce.webhook_attempts set status = 200",
        ):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await post.s.database.work.execute(statement)


async def test_endpoints_are_listed_page_by_page(stage: OpenStage) -> None:
    async with open_post(stage) as post:
        made = [(await post.add(tenant=f"t{number % 2}"))[0] for number in range(5)]
        async with post.s.begin() as tx:
            await remove_endpoint(tx, made[0].id, by="ada", reason="closed")
            await disable_endpoint(tx, made[1].id, by="ada", reason="closed")
        first = await endpoints(post.s.read, limit=2)
        second = await endpoints(post.s.read, limit=2, before=first[-1].id)
        assert [each.id for each in (*first, *second)] == [each.id for each in made[:0:-1]]
        assert len(await endpoints(post.s.read, removed=True)) == 5
        assert [each.id for each in await endpoints(post.s.read, tenant="t1", state=EndpointState.DISABLED)] == [
            made[1].id
        ]
        with pytest.raises(Invalid, match="limit is 0"):
            await endpoints(post.s.read, limit=0)


async def test_a_stranger_with_another_secret_learns_that_it_does_not_fit(stage: OpenStage) -> None:
    async with open_post(stage) as post:
        await post.add()
        await post.announce()
        await post.run()
        [request] = post.shop.arrived
        answer = verify(request.headers, request.body, [Secret("quite-another-secret")], await post.now())
        assert isinstance(answer, Refusal)
        assert answer.status == 401
