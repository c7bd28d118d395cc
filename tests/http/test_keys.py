"""Who gets in: keys by scope, tenant and time, one answer for all that are none, and a bound on guessing."""

import hmac
from dataclasses import replace
from datetime import timedelta

import asyncpg
import pytest

from payonce.app.process import App
from payonce.app.registry import SERVICES
from payonce.engine.operators.api_keys import authenticate, keys, make_key, revoke_key
from payonce.http.application import build_web
from payonce.http.kit.attempts import ADDRESSES_MAX, FAILURES_MAX, GOOD_KEYS_MAX, WINDOW_S, Attempts
from payonce.http.kit.auth import TENANT_ROUTE_SCOPES
from payonce.http.kit.scopes import TENANT_SCOPES
from payonce.kit.outcomes import Invalid
from payonce.settings import Settings
from payonce.testing import Clock, ScratchDatabase
from tests.http.client import WebClient
from tests.http.conftest import OpenWeb

QUEUES = "/v1/queues"


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


async def test_a_key_opens_what_its_scopes_say_and_nothing_else(web: OpenWeb) -> None:
    async with web() as ask:
        ada = await ask.as_holder("ada", "queues:read")
        assert (await ada.get(QUEUES)).status == 200
        refused = await ada.get("/v1/jobs")
        assert refused.status == 403
        assert "jobs:read" in refused.problem["detail"]


async def test_every_key_that_is_none_gets_the_same_answer(web: OpenWeb) -> None:
    async with web() as ask, Clock.open(ask.scratch.owner_url) as clock:
        async with ask.app.begin() as tx:
            expired = await make_key(tx, "ada", ["queues:read"], "tester", lifetime_s=60)
            revoked = await make_key(tx, "ada", ["queues:read"], "tester")
            live = await make_key(tx, "ada", ["queues:read"], "tester", lifetime_s=600)
            await revoke_key(tx, revoked.key.prefix, "tester", "was in a log")
        await clock.advance(61)
        twisted = live.secret[:-2] + ("AA" if live.secret[-2:] != "AA" else "BB")
        given = [
            {},
            {"authorization": "Basic YTpi"},
            {"authorization": "Bearer"},
            bearer("x"),
            bearer("sk_"),
            bearer("é" * 10),
            bearer(expired.secret),
            bearer(revoked.secret),
            bearer(twisted),
            bearer("sk_aaaaaaaa_" + "A" * 43),
        ]
        answers = [await ask("GET", QUEUES, headers=each) for each in given]
        assert {answer.status for answer in answers} == {401}
        assert {answer.headers["www-authenticate"] for answer in answers} == {"Bearer"}
        [detail] = {answer.problem["detail"] for answer in answers}
        assert "the header Authorization, with the scheme Bearer" in detail
        assert (await ask("GET", QUEUES, headers=bearer(live.secret))).status == 200


async def test_the_store_holds_no_key_and_the_logs_show_none(web: OpenWeb) -> None:
    async with web() as ask:
        async with ask.app.begin() as tx:
            made = await make_key(tx, "ada", ["queues:read"], "tester")
        rows = await ask.app.read.fetch("select row_to_json(k)::text as text from payonce.api_keys k")
        noted = await ask.app.read.fetch("select text, reference from payonce.audit_log where location like 'keys.%'")
        told = " ".join(row["text"] for row in [*rows, *noted])
        assert made.secret[12:] not in told
        assert made.key.prefix in told
        [line] = noted
        assert line["text"] == f"created key {made.key.prefix} for ada: queues:read"


async def test_a_key_of_a_tenant_does_not_see_the_house(web: OpenWeb) -> None:
    """Not even one that was given the scope."""
    async with web() as ask:
        shop = await ask.as_holder("shop", "queues:read", "jobs:read", tenant="acme")
        assert [(await shop.get(path)).status for path in (QUEUES, "/v1/jobs", "/v1/traces/x")] == [403, 403, 403]


async def test_the_last_use_is_written_once_an_hour(web: OpenWeb) -> None:
    async with web() as ask, Clock.open(ask.scratch.owner_url) as clock:
        await clock.freeze(await clock.now())
        ada = await ask.as_holder("ada", "queues:read")

        async def used_and_version() -> tuple[object, object]:
            assert (await ada.get(QUEUES)).status == 200
            row = await ask.app.read.fetchrow("select last_used_at, xmin::text from payonce.api_keys")
            return row["last_used_at"], row["xmin"]

        first = await used_and_version()
        assert first[0] == await clock.now()
        await clock.advance(3_599)
        assert await used_and_version() == first
        await clock.advance(2)
        assert (await used_and_version())[0] == await clock.now()


async def test_a_revoked_key_stays_revoked_and_services_cannot_widen_one(web: OpenWeb) -> None:
    async with web() as ask:
        async with ask.app.begin() as tx:
            made = await make_key(tx, "ada", ["queues:read"], "tester")
            revoked = await revoke_key(tx, made.secret, "tester", "pasted whole")
        assert not revoked.live
        async with ask.app.begin() as tx:
            assert await revoke_key(tx, made.key.prefix, "other", "again") == revoked
        for change in ("scopes = '{queues:steer}'", "digest = ''", "tenant = 'x'", "expires_at = null"):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await ask.app.database.work.execute(f"update payonce.api_keys set {change}")
        with pytest.raises(asyncpg.InsufficientPrivilegeError, match="not rewritten"):
            await ask.app.database.work.execute("update payonce.api_keys set revoked_at = null")
        assert await keys(ask.app.read) == []
        assert await keys(ask.app.read, also_ended=True) == [revoked]


@pytest.mark.parametrize(
    ("holder", "scopes", "more"),
    [
        ("", ["queues:read"], {}),
        ("ada", [], {}),
        ("ada", ["everything"], {}),
        ("ada", ["queues:read\x00"], {}),
        ("ada", ["queues:read"], {"lifetime_s": 0}),
        ("ada", ["queues:read"], {"lifetime_s": 1e12}),
        ("ada", ["queues:read"], {"tenant": " "}),
    ],
)
async def test_a_key_that_makes_no_sense_is_not_made(
    web: OpenWeb, holder: str, scopes: list[str], more: dict[str, object]
) -> None:
    async with web() as ask:
        with pytest.raises(Invalid):
            async with ask.app.begin() as tx:
                await make_key(tx, holder, scopes, "tester", **more)  # type: ignore[arg-type]
        assert await keys(ask.app.read, also_ended=True) == []


async def test_guessing_is_bounded_by_address_and_shuts_out_nobody_who_was_in(web: OpenWeb) -> None:
    async with web() as ask:
        ada = await ask.as_holder("ada", "queues:read")
        assert (await ada.get(QUEUES)).status == 200
        wrong = bearer("sk_aaaaaaaa_" + "A" * 43)
        answers = [await ask("GET", QUEUES, headers=wrong) for _ in range(FAILURES_MAX + 1)]
        assert [answer.status for answer in answers] == [401] * FAILURES_MAX + [429]
        assert 0 < int(answers[-1].headers["retry-after"]) <= WINDOW_S
        assert answers[-1].problem["detail"]
        newcomer = await ask.as_holder("bob", "queues:read")
        assert (await newcomer.get(QUEUES)).status == 429
        assert (await ada.get(QUEUES)).status == 200
        elsewhere = replace(newcomer, client="198.51.100.7")
        assert (await elsewhere.get(QUEUES)).status == 200


async def test_a_key_that_was_good_and_is_revoked_is_no_way_around_the_bound(web: OpenWeb) -> None:
    async with web() as ask:
        ada = await ask.as_holder("ada", "queues:read")
        assert (await ada.get(QUEUES)).status == 200
        [key] = await keys(ask.app.read)
        async with ask.app.begin() as tx:
            await revoke_key(tx, key.prefix, "tester", "left")
        statuses = [(await ada.get(QUEUES)).status for _ in range(FAILURES_MAX + 1)]
        assert statuses == [401] * FAILURES_MAX + [429]


def test_the_memory_of_attempts_is_bounded_and_forgets() -> None:
    now = [0.0]
    attempts = Attempts(clock=lambda: now[0])
    for _ in range(FAILURES_MAX):
        attempts.failed("192.0.2.1", b"k")
    assert attempts.wait_s("192.0.2.1", b"k") == WINDOW_S
    now[0] = WINDOW_S + 1
    assert attempts.wait_s("192.0.2.1", b"k") == 0
    for number in range(ADDRESSES_MAX + 5):
        attempts.failed(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}", b"k")
    for number in range(GOOD_KEYS_MAX + 5):
        attempts.succeeded(b"%d" % number)
    assert len(attempts._failures) == ADDRESSES_MAX
    assert len(attempts._good) == GOOD_KEYS_MAX


@pytest.mark.parametrize(
    ("one", "other", "together"),
    [
        ("2001:db8::1", "2001:db8::ffff:2", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:192.0.2.1", "192.0.2.1", True),
        ("fe80::1%eth0", "fe80::2", True),
        ("192.0.2.1", "192.0.2.2", False),
        ("not an address", "", True),
    ],
)
def test_addresses_of_one_subscriber_are_counted_together(one: str, other: str, together: bool) -> None:
    attempts = Attempts()
    for _ in range(FAILURES_MAX):
        attempts.failed(one, b"k")
    assert (attempts.wait_s(other, b"k") > 0) is together


async def test_finding_nothing_compares_as_much_as_finding_another(
    web: OpenWeb, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[int] = []
    genuine = hmac.compare_digest

    def counted(one: bytes, other: bytes) -> bool:
        compared.append(len(one) + len(other))
        return bool(genuine(one, other))

    async with web() as ask:
        async with ask.app.begin() as tx:
            made = await make_key(tx, "ada", ["queues:read"], "tester")
        monkeypatch.setattr("payonce.engine.operators.api_keys.hmac.compare_digest", counted)
        for text in ("", "x" * 5_000, made.secret[:-1] + "_", "sk_aaaaaaaa_" + "A" * 43, made.secret):
            assert (await authenticate(ask.app.database, text) is not None) == (text == made.secret)
    assert compared == [64] * 5


async def test_an_expired_key_is_judged_by_the_clock_of_the_store(web: OpenWeb) -> None:
    async with web() as ask, Clock.open(ask.scratch.owner_url) as clock:
        ada = await ask.as_holder("ada", "queues:read", lifetime_s=3_600)
        assert (await ada.get(QUEUES)).status == 200
        await clock.advance(timedelta(hours=1).total_seconds() + 1)
        assert (await ada.get(QUEUES)).status == 401


@pytest.mark.parametrize(
    ("host", "said", "closed"),
    [
        ("127.0.0.1", None, False),
        ("::1", None, False),
        ("127.0.0.1", "key", True),
        ("0.0.0.0", None, True),
        ("192.0.2.7", None, True),
        ("0.0.0.0", "open", False),
    ],
)
async def test_beyond_the_loopback_metrics_tell_their_sums_to_keys_alone(
    settings: Settings, scratch: ScratchDatabase, host: str, said: str | None, closed: bool
) -> None:
    async with App.open(settings.model_copy(update={"host": host, "metrics": said})) as app:
        ask = WebClient(app, build_web(app), scratch)
        assert (await ask.get("/metrics")).status == (401 if closed else 200)
        assert (await ask.get("/healthz")).status == 200
        if closed:
            assert (await (await ask.as_holder("ada", "queues:read")).get("/metrics")).status == 403
            scraped = await (await ask.as_holder("prometheus", "metrics:read")).get("/metrics")
            assert (scraped.status, "payonce_open_effects_amount" in scraped.body.decode()) == (200, True)


async def test_keys_of_a_tenant_can_have_exactly_the_scopes_that_some_route_takes_from_them(web: OpenWeb) -> None:
    async with web():
        declared = {*TENANT_SCOPES, *(name for service in SERVICES for name in service.tenant_scopes)}
        known = {name for service in SERVICES for name in service.scopes} | TENANT_SCOPES.keys()
        # Services that other tests make have routes and scopes of their own.
        assert declared == TENANT_ROUTE_SCOPES & known
        assert declared <= known
