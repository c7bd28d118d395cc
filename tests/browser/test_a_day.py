"""The document *A day as an operator*: its commands typed as they stand, its way taken in a browser by a stranger."""

import asyncio
import re
import shlex
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, expect

from payonce.testing import ScratchDatabase
from payonce.testing.processes import Child, Processes, clean_environment
from tests.browser.chromium import Watched, open_person

DOCUMENT = Path(__file__).parents[2] / "docs" / "a-day-as-an-operator.md"
COMMAND = f"{shlex.quote(sys.executable)} -m payonce"
MINUTE_S = 60.0
QUIET = "All quiet"

pytestmark = pytest.mark.timeout(240)


def commands() -> list[str]:
    """Every line of the document's blocks, with the installed command in place of the checkout's."""
    blocks = re.findall(r"```sh\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    lines = [line for block in blocks for line in block.strip().splitlines()]
    assert all("./dev " in line for line in lines)
    return lines


async def typed(line: str, environment: dict[str, str], stdin: str = "") -> str:
    process = await asyncio.create_subprocess_shell(
        line.replace("./dev", COMMAND),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment,
    )
    output, _ = await process.communicate(stdin.encode())
    assert process.returncode == 0, output.decode()
    return output.decode()


@contextmanager
def upped(line: str, environment: dict[str, str], folder: Path) -> Iterator[Child]:
    *variables, command, up = shlex.split(line)
    assert (command, up) == ("./dev", "up")
    environment |= dict(each.split("=", 1) for each in variables)
    with Processes(folder) as processes:
        yield processes.start(sys.executable, "-m", "payonce", "up", name="up", environment=environment)


def link_of(process: Child, environment: dict[str, str]) -> str:
    """What `./dev console` prints, since the process writes to a file."""
    [port] = re.findall(r"payonce console --port (\d+)", process.output)
    command = [sys.executable, "-m", "payonce", "console", "--port", port]
    asked = subprocess.run(command, env={**clean_environment(), **environment}, capture_output=True, check=True)
    return asked.stdout.decode().strip()


async def to_the_parked_message(page: Page) -> None:
    """As it stands in the document: by what stands out."""
    await page.get_by_role("link", name="Parked messages").click()
    await expect(page.locator("tbody tr")).to_contain_text("row 7 is not there yet")
    await expect(page.get_by_role("link", name="Redrive…")).to_be_in_viewport()


@asynccontextmanager
async def a_stranger(
    scratch: ScratchDatabase, browser: Browser, folder: Path, line: str
) -> AsyncIterator[tuple[Watched, dict[str, str]]]:
    """Whoever typed a command of the document that starts it, before its page; and the environment for the others."""
    urls = {"DATABASE_URL": scratch.service_url, "DATABASE_OWNER_URL": scratch.owner_url, "PAYONCE_PORT": "0"}
    needed = ("SUCCESS_URL_SIGNING_KEY", "TPS_HOSTPAY_SIGNING_KEY", "JWT_SECRET_KEY", "WEBHOOK_SIGNING_SECRET")
    keys = dict.fromkeys(needed, "a-key-of-the-tests-0123456789abcdef")
    # A worker that only stood still is not to be taken for a dead one.
    unhurried = {"QUEUE_POLICY__TALLY_CHANGES__LEASE_S": "60", "QUEUE_POLICY__TALLY_CHANGES__RUN_LIMIT_S": "300"}
    here = {**urls, **keys, **unhurried, "PAYONCE_DATA_DIR": str(folder / "data")}
    with upped(line, dict(here), folder) as process:
        await process.says("worker_started", within_s=90.0)
        link = await asyncio.to_thread(link_of, process, here)
        async with open_person(browser, link.partition("/console")[0]) as stranger:
            await stranger.page.goto(link)
            yield stranger, {**clean_environment(), **here}


async def test_a_stranger_finds_a_parked_message_its_reason_and_the_button_within_a_minute(
    scratch: ScratchDatabase, browser: Browser, tmp_path: Path
) -> None:
    up, put_change, add_row, *_ = commands()
    async with a_stranger(scratch, browser, tmp_path, up) as (stranger, environment):
        page = stranger.page
        await expect(page.locator("main")).to_contain_text(QUIET)
        began = time.monotonic()
        await typed(put_change, environment)
        # Nobody loads the page again: it renews itself.
        await expect(page.get_by_role("link", name="Parked messages")).to_be_visible()
        await to_the_parked_message(page)
        assert time.monotonic() - began < MINUTE_S
        await typed(add_row, environment)
        await page.get_by_role("link", name="Redrive…").click()
        await page.get_by_label("Why").fill("the row is there now")
        await page.get_by_role("button", name="Redrive 1 message").click()
        await expect(page.get_by_role("status")).to_contain_text("redriven")
        await page.get_by_role("link", name="Job log").click()
        await expect(page.locator("main")).to_contain_text("success")


async def test_the_transfer_of_the_document_is_followed_and_people_are_given_logins(
    scratch: ScratchDatabase, browser: Browser, tmp_path: Path
) -> None:
    up, _, _, put_transfer, _, _, *add_people = commands()
    async with a_stranger(scratch, browser, tmp_path, up) as (stranger, environment):
        page = stranger.page
        await typed(put_transfer, environment)
        await page.get_by_placeholder("Find an id").fill("t-1")
        await page.keyboard.press("Enter")
        await expect(page.locator(".timeline")).to_contain_text("southbank.pay_in")
        # An open page would ask once more while it is being left, and be sent to the login in between.
        await page.goto("about:blank")
        stranger.expected.add(401)
        adding = (typed(f"{add} --password-stdin", environment, stdin="correct horse battery\n") for add in add_people)
        await asyncio.gather(*adding)
        await page.goto("/console/queues")
        await expect(page.get_by_role("button", name="Log in")).to_be_visible()


async def test_the_transfer_that_nobody_knows_the_end_of_is_put_before_a_person(
    scratch: ScratchDatabase, browser: Browser, tmp_path: Path
) -> None:
    _, _, _, _, up_without_a_bank, put_transfer, *_ = commands()
    async with a_stranger(scratch, browser, tmp_path, up_without_a_bank) as (stranger, environment):
        page = stranger.page
        await typed(put_transfer, environment)
        await expect(page.get_by_role("link", name="Effects in review")).to_be_visible()
        await page.get_by_role("link", name="Effects in review").click()
        await page.get_by_role("link", name="Answer").click()
        await expect(page.locator("#answer")).to_contain_text("Did southbank.pay_in for t-2/pay-in")
        await expect(page.locator("#answer")).to_contain_text("It did not happen")


def test_the_pictures_of_the_document_are_there() -> None:
    named = re.findall(r"!\[[^]]+\]\((pictures/[^)]+)\)", DOCUMENT.read_text(encoding="utf-8"))
    assert len(named) == 3
    assert all((DOCUMENT.parent / name).is_file() for name in named)
