"""The code blocks of the documents are executed, and their links and paths exist."""

import os
import re
import subprocess
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.routing import Route

from payonce.app.registry import SERVICES
from payonce.engine.ledger import Account, balance
from payonce.engine.messages.model import Message
from payonce.engine.messages.process import Worker
from payonce.engine.messages.transaction import Reader, begin
from payonce.kit.http import HttpClient
from payonce.kit.money import Amount, well_known
from payonce.kit.webhooks import new_secret, signed_headers
from payonce.testing import OpenStage
from tests.engine.webhooks_stage import open_post

DOCS = Path(__file__).parents[2] / "docs"


def python_blocks(name: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (DOCS / name).read_text(encoding="utf-8"), re.DOTALL)


def sh_blocks(name: str) -> list[str]:
    return re.findall(r"```sh\n(.*?)```", (DOCS / name).read_text(encoding="utf-8"), re.DOTALL)


def test_the_example_of_the_readme_pays_once(pytester: pytest.Pytester) -> None:
    [example] = re.findall(r"```python\n(.*?)```", (DOCS.parent / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    pytester.makepyfile(test_refund=example)
    ran = pytester.runpytest_subprocess("-p", "payonce.testing.plugin", "-p", "no:cacheprovider")
    ran.assert_outcomes(passed=1)


def test_every_path_on_the_page_about_the_architecture_exists() -> None:
    text = (DOCS / "architecture.md").read_text(encoding="utf-8")
    paths = {path for path in re.findall(r"`([\w/.]+(?:\.py|/))`", text) if not path.startswith(("src/", "tests/"))}
    assert len(paths) > 40
    assert sorted(path for path in paths if not (DOCS.parent / "src" / "payonce" / path).exists()) == []


def test_the_example_of_the_testing_page_passes(pytester: pytest.Pytester) -> None:
    plugin_line, example = python_blocks("testing.md")
    pytester.makeconftest(plugin_line)
    pytester.makepyfile(example)
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=1)


async def test_the_effect_of_the_effects_page_pays_once_although_the_answer_is_lost(stage: OpenStage) -> None:
    names: dict[str, Any] = {"__name__": "effects"}
    for program in python_blocks("effects.md"):
        exec(compile(program, "effects.md", "exec"), names)  # noqa: S102 - it is our own document
    assert names["RefundLessFee"](Bank(names["Receipt"]), 500).identity() == {"cents": 500}
    refund = names["refunds"](Bank(names["Receipt"]))
    async with stage() as s:
        await s.owner.execute(
            """
            create schema shop; grant usage on schema shop to payonce_service;
            create table shop.refunds (id bigint, number text); grant select, insert on shop.refunds to payonce_service;
            """
        )
        queue = await s.queue(refund.policy)
        worker = Worker([refund], s.database, s.feed, lambda policy: queue)
        await s.feed.put([Message(queue=refund.policy.queue, payload={"id": 7, "cents": 500})])
        assert await worker.step()
        await s.clock.advance(3_600)
        assert await worker.step()
        rows = await s.owner.fetch("select id, number from shop.refunds")
        assert [tuple(row) for row in rows] == [(7, "n-1")]


async def test_the_posting_of_the_ledger_page_is_written_once(stage: OpenStage) -> None:
    [program] = python_blocks("ledger.md")
    names: dict[str, Any] = {"__name__": "ledger"}
    exec(compile(program, "ledger.md", "exec"), names)  # noqa: S102 - it is our own document
    async with stage() as s:
        for _ in range(2):
            async with begin(s.database, s.feed) as tx:
                await tx.post(names["refund_posting"](7, 500))
        paid_back = await balance(Reader(s.database), Account("customers/refunds", well_known("EUR")))
    assert paid_back == Amount(500, well_known("EUR"))


class Bank:
    """Loses its first answer."""

    def __init__(self, receipt: Any) -> None:
        self.paid: list[str] = []
        self._receipt = receipt

    async def pay(self, order: Any) -> Any:
        self.paid.append(order.reference)
        raise ConnectionResetError("the answer is lost")

    async def find(self, reference: str) -> Any:
        return self._receipt(f"n-{len(self.paid)}") if reference in self.paid else None

    async def cancel(self, order: Any) -> None:
        raise AssertionError("nothing is to be fenced: it happened")


def test_the_first_service_survives_its_bad_days(pytester: pytest.Pytester) -> None:
    files: dict[str, str] = {}
    for block in python_blocks("first-service.md"):
        name, _, code = block.partition("\n")
        assert name.startswith("# "), f"a block of the tutorial does not say which file it belongs to: {name}"
        files[name[2:]] = files.get(name[2:], "") + code
    assert list(files) == ["conftest.py", "remittance.py", "test_remittance.py"]
    for name, code in files.items():
        (pytester.path / name).write_text(code, encoding="utf-8")
    ran = pytester.runpytest_subprocess("-p", "no:cacheprovider", f"--rootdir={pytester.path}")
    ran.assert_outcomes(passed=2)


@pytest.mark.full
def test_the_scenario_of_the_crash_page_survives_every_crash(pytester: pytest.Pytester) -> None:
    [example] = python_blocks("crash-explorer.md")
    pytester.makepyfile(example)
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=1)


async def test_the_announcement_and_the_receivers_of_the_webhooks_page_work(stage: OpenStage) -> None:
    names: dict[str, Any] = {"__name__": "webhooks"}
    for program in python_blocks("webhooks.md"):
        exec(compile(program, "webhooks.md", "exec"), names)  # noqa: S102 - it is our own document
    async with open_post(stage) as post:
        await post.s.clock.thaw()
        await post.s.owner.execute(
            """
            create schema shop; grant usage on schema shop to payonce_service;
            create table shop.invoices (id text, state text); create table shop.payments (id text, type text);
            grant all on shop.invoices, shop.payments to payonce_service;
            """
        )
        _, secret = await post.add("invoice.*", tenant="acme")
        async with post.s.begin() as tx:
            await names["pay_invoice"](tx, "i-1")
        while await post.worker.step():
            pass
        [request] = post.shop.arrived
        event = names["received"](secret.reveal(), request.headers, request.body)
        receive = names["payment_webhooks"](post.s.begin, post.s.read, [secret])
        web = HttpClient(
            "web", "https://web.example", transport=Starlette(routes=[Route("/", receive, methods=["POST"])])
        )
        passed_on = {name: value for name, value in request.headers.items() if "webhook" in name}
        for _ in range(2):
            assert (await web.request("POST", "/", body=request.body, headers=passed_on)).status == 204
        refused = await web.request("POST", "/", body=request.body + b" ", headers=passed_on)
        assert (refused.status, refused.json()["title"]) == (401, "Unauthorized")
        rows = await post.s.owner.fetch("select id, type from shop.payments")
        assert [tuple(row) for row in rows] == [(event["id"], "invoice.paid")]
        await web.close()


def test_the_shell_lines_of_the_webhooks_page_verify(tmp_path: Path) -> None:
    [script] = [block for block in sh_blocks("webhooks.md") if "openssl dgst" in block]
    secret, body = new_secret(), b'{"id":"evt_1"}'
    headers = signed_headers([secret], "evt_1", datetime(2026, 1, 31, tzinfo=UTC), body)
    (tmp_path / "body.json").write_bytes(body)
    values = {"SECRET": secret.reveal(), "TIMESTAMP": headers["X-Webhook-Timestamp"]}
    for signature, output in ((headers["X-Webhook-Signature"], "verified\n"), ("sha256=00", "")):
        environment = {**os.environ, **values, "SIGNATURE": signature}
        ran = subprocess.run(
            ["sh", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert ran.stdout == output


@pytest.mark.parametrize("name", sorted(path.name for path in DOCS.glob("*.md")))
def test_links_lead_somewhere(name: str) -> None:
    text = (DOCS / name).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (DOCS / target).exists(), f"{name} links to {target}, which is not there"


@pytest.mark.parametrize("package", [service.package for service in SERVICES if service.package is not None])
def test_the_readme_of_a_service_names_each_of_its_rooms(package: str) -> None:
    folder = Path(str(files(package)))
    readme = (folder / "README.md").read_text(encoding="utf-8")
    named = {
        name
        for row in re.findall(r"^\| (`[^|]+`) \|", readme, re.MULTILINE)
        for name in re.findall(r"`([\w/.]+)`", row)
    }
    documented = {name for name in named if name.endswith((".py", "/"))}
    wholes = tuple(name for name in documented if name.endswith("/"))
    modules = {str(path.relative_to(folder)) for path in folder.rglob("*.py") if path.name != "__init__.py"}
    assert {name for name in documented if not (folder / name).exists()} == set()
    assert {name for name in modules - documented if not name.startswith(wholes)} == set()
