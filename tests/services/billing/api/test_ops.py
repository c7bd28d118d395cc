"""What operators of billing see and steer, and nobody else."""

from dataclasses import replace

from payonce.console.auth import FORWARDED
from payonce.engine.messages.maintenance import Task, synthetic_message, write_maintenance_run
from payonce.http.application import build_web
from payonce.services.billing import QUEUES
from payonce.services.billing.api.operations import OURS
from tests.services.billing.api.conftest import OpenCounter, OpenShop
from tests.services.billing.api.counter import PASSWORD, Counter

OPS, DETAILED, DEPTHS = "/v1/ops", "/v1/health/detailed", "/v1/health/queues"
QUEUE = "q:sub:payment_initiation"


async def test_an_operator_is_made_by_a_key_and_steers_from_then_on(shop: OpenShop) -> None:
    async with shop() as ask:
        ada = await ask.customer("ada@example.com")
        assert (await ada.get(f"{OPS}/queues")).status == 403
        key = await ask.with_key("root", "billing:operate")
        made = await key.post(f"{OPS}/accounts/{ada.account_id}/role", {"role": "operator"})
        assert (made.status, made.json["role"]) == (200, "operator")
        assert (await ada.get(f"{OPS}/queues")).status == 401
        login = {"email": "ada@example.com", "password": "correct horse battery staple"}
        ada = ask.bearing((await ask.post("/v1/auth/login", login)).json["access_token"])
        listed = (await ada.get(f"{OPS}/queues")).json["queues"]
        assert {each["queue"] for each in listed} == {policy.queue for policy in QUEUES}
        assert (await key.post(f"{OPS}/accounts/nobody/role", {"role": "operator"})).status == 404


async def test_the_job_log_is_searched_by_everything_that_is_known_of_a_run(shop: OpenShop) -> None:
    async with shop() as ask:
        ada = await ask.customer("ada@example.com")
        subscription = await ada.subscribed()
        crm = await ask.with_key("crm", "billing:read")
        everything = (await crm.get(f"{OPS}/job-logs")).json["jobs"]
        assert {job["queue"].rpartition(":")[0] for job in everything} == {"q:sub", "q:pay"}
        [first] = (await crm.get(f"{OPS}/job-logs?queue={QUEUE}&action=initial&status=success")).json["jobs"]
        assert (first["correlation_id"], first["idempotency_key"]) == (
            subscription["id"],
            f"initial:{subscription['id']}",
        )
        for name in ("correlation_id", "idempotency_key", "queue", "action"):
            found = (await crm.get(f"{OPS}/job-logs?{name}={first[name]}")).json["jobs"]
            assert first in found
            assert {job[name] for job in found} == {first[name]}
        moment = first["created_at"].replace("+", "%2B")
        assert (await crm.get(f"{OPS}/job-logs?since={moment}")).json["jobs"]
        assert (await crm.get(f"{OPS}/job-logs?until=2020-01-01T00:00:00Z")).json["jobs"] == []
        page = (await crm.get(f"{OPS}/job-logs?limit=1")).json
        following = (await crm.get(f"{OPS}/job-logs?limit=1&before={page['next_before']}")).json
        assert following["jobs"][0]["id"] < page["jobs"][0]["id"]
        await write_maintenance_run(
            ask.app.database, synthetic_message(QUEUE, Task.SWEEP), "2 messages taken", "worker-1"
        )
        [swept] = (await crm.get(f"{OPS}/job-logs?action={Task.SWEEP}")).json["jobs"]
        assert (swept["status"], swept["last_error"], swept["info"]) == ("success", None, "2 messages taken")


async def test_queues_of_billing_are_paused_resumed_and_redriven_under_a_name(counter: OpenCounter) -> None:
    async with counter() as ask:
        crm = await ask.with_key("crm", "billing:operate")
        place = f"{OPS}/queues/{QUEUE}"
        assert (await crm.post(f"{place}/pause", {"reason": "looking"})).json == {"queue": QUEUE, "paused": True}
        assert (await crm.post(f"{place}/resume")).json == {"queue": QUEUE, "paused": False}
        redriven = await crm.post(f"{place}/redrive", {"all": True, "why": "mended"}, idempotency_key="r")
        assert (redriven.status, redriven.json["redriven"]) == (200, 0)
        notes = await ask.app.read.fetch("select distinct actor from payonce.audit_log where reference = $1", QUEUE)
        assert [row["actor"] for row in notes] == ["crm"]
        # What is not billing's is for the keys of the house.
        for path in ("tally/pause", "webhooks/resume"):
            assert (await crm.post(f"{OPS}/queues/{path}", {"reason": "looking"})).status == 404
        assert (await (await ask.with_key("crm", "billing:read")).get(f"{OPS}/job-logs?queue=tally")).status == 404
        viewer = await ask.with_key("viewer", "billing:read")
        assert (await viewer.post(f"{place}/pause", {"reason": "no"})).status == 403


async def test_health_is_told_at_the_paths_that_are_looked_at(counter: OpenCounter) -> None:
    async with counter() as stranger:
        near = replace(stranger, client="127.0.0.1")
        assert (await stranger.get("/v1/health/")).json == {"status": "healthy"}
        told = (await near.get(DETAILED)).json
        assert told["status"] == "healthy"
        assert {"database", "queues"} <= {part["name"] for part in told["parts"]}
        assert (await near.get(DEPTHS)).json["queues"]
        await stranger.app.database.engine.close()
        sick = (await near.get(DETAILED)).json
        assert (sick["status"], [part["well"] for part in sick["parts"][:2]]) == ("unhealthy", [False, False])
        assert (await stranger.get(DETAILED)).json == {"status": "unhealthy", "parts": []}


async def test_queues_are_told_to_operators_and_monitors_and_a_status_to_everybody(counter: OpenCounter) -> None:
    async with counter() as ask:
        ada = await ask.registered("ada@example.com")
        near = replace(ask, client="127.0.0.1")
        others = {
            "a stranger": (ask, 401),
            "a customer": (ada, 403),
            "a wrong token": (ask.bearing("a.b.c"), 401),
            "a key for less": (await ask.with_key("crm", "billing:read"), 403),
            **{
                f"behind a proxy: {header}": (replace(near, headers={header: "198.51.100.7"}), 401)
                for header in FORWARDED
            },
        }
        for name, (who, status) in others.items():
            assert (await who.get(DETAILED)).json == {"status": "healthy", "parts": []}, name
            refused = await who.get(DEPTHS)
            assert (refused.status, b"q:" in refused.body) == (status, False), name
        root = await ask.with_key("root", "billing:operate")
        made = await root.post(f"{OPS}/accounts/{await account_of(ada)}/role", {"role": "operator"})
        assert made.status == 200
        login = {"email": "ada@example.com", "password": PASSWORD}
        watchers = {
            "an operator": ask.bearing((await ask.post("/v1/auth/login", login)).json["access_token"]),
            "a monitor with a key": await ask.with_key("prometheus", "metrics:read"),
            "a monitor on this machine": near,
            "a monitor on this machine, by IPv6": replace(ask, client="::1"),
        }
        for name, who in watchers.items():
            assert (await who.get(DETAILED)).json["parts"], name
            assert {each["queue"] for each in (await who.get(DEPTHS)).json["queues"]} > set(OURS), name


async def account_of(ask: Counter) -> str:
    found: str = (await ask.get("/v1/auth/me")).json["id"]
    return found


async def test_the_setting_of_metrics_decides_for_depths_as_well(counter: OpenCounter) -> None:
    async with counter() as ask:
        for setting, near, far in (("open", 200, 200), ("key", 401, 401)):
            ask.app.settings = ask.app.settings.model_copy(update={"metrics": setting})
            far_off = replace(ask, web=build_web(ask.app))
            assert (await replace(far_off, client="127.0.0.1").get(DEPTHS)).status == near
            assert (await far_off.get(DEPTHS)).status == far


async def test_a_filter_that_is_unknown_or_comes_twice_is_refused_and_a_list_is_not(counter: OpenCounter) -> None:
    async with counter() as ask:
        viewer = await ask.with_key("viewer", "billing:read", "effects:read")
        assert (await viewer.get("/v1/invoices?stat=open")).problem["errors"][0]["where"] == "query.stat"
        twice = await viewer.get("/v1/invoices?state=open&state=paid")
        assert (twice.status, twice.problem["detail"]) == (
            422,
            "query.state: it is given more than once; give one value",
        )
        assert (await viewer.get("/v1/effects?state=performed&state=review")).status == 200
