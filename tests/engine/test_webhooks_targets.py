"""Where deliveries never go: private addresses in any spelling, names that change their answer, redirects."""

from collections.abc import Sequence

import pytest
from structlog.testing import capture_logs

from payonce.engine.webhooks import DELIVERIES, attempts
from payonce.kit.http import HttpClient
from payonce.testing import OpenStage
from tests.engine.webhooks_stage import Say, open_post

NOT_SENT = "not sent: the host is not at a public address"
NOT_PUBLIC = {
    "127.0.0.1": "loopback",
    "10.0.0.8": "private",
    "172.16.3.4": "private",
    "192.168.1.1": "private",
    "100.64.0.1": "shared by carriers",
    "169.254.169.254": "link-local",
    "0.0.0.1": "unspecified",
    "::1": "loopback",
    "::": "unspecified",
    "fd00:ec2::254": "private",
    "fe80::1": "link-local",
    "fe80::1%1": "link-local",
    "::ffff:127.0.0.1": "loopback",
    "::ffff:7f00:1": "loopback",
    "::127.0.0.1": "reserved",
    "64:ff9b::7f00:1": "loopback",
    "64:ff9b:1::7f00:1": "private",
    "2002:7f00:1::1": "loopback",
    "2002:a9fe:a9fe::": "link-local",
    "2001:0:4136:e378:8000:63bf:3fff:fdd2": "reserved",
}


class Names:
    """Answers in order; the last one for ever."""

    def __init__(self, *answers: Sequence[str] | OSError) -> None:
        self.answers = list(answers)
        self.asked = 0

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, OSError):
            raise answer
        return answer


def guarded(names: Names) -> HttpClient:
    return HttpClient("webhooks", None, timeout_s=5, resolve=names)


@pytest.mark.parametrize(("address", "kind"), NOT_PUBLIC.items())
async def test_a_name_that_leads_to_a_private_address_is_not_told(stage: OpenStage, address: str, kind: str) -> None:
    """The shop listens on the loopback, on this very port: if anything were sent, it would receive it."""
    async with open_post(stage, http=guarded(Names([address]))) as post:
        await post.add(url=post.url.replace("127.0.0.1", "shop.example"))
        await post.announce()
        with capture_logs() as said:
            await post.run()
        [told] = await post.deliveries()
        [tried] = await attempts(post.s.read, told.id)
        assert (told.state, tried.status, post.shop.arrived) == ("pending", None, [])
        # The owner of the endpoint learns nothing about our network; the operator does.
        assert tried.error == NOT_SENT
        [line] = [line for line in said if line["event"] == "webhook_not_public"]
        assert f"which is {kind}: requests go to public addresses only" in line["reason"]


async def test_a_name_that_changes_its_answer_between_attempts_is_judged_each_time(stage: OpenStage) -> None:
    answers = (OSError("not known"), ["2606:4700::1111", "127.0.0.1"], ["127.0.0.1"], ["::ffff:127.0.0.1"])
    async with open_post(stage, http=guarded(names := Names(*answers))) as post:
        await post.add(url=post.url.replace("127.0.0.1", "rebind.example"))
        await post.announce()
        await post.run(3 * 86_400)
        assert post.shop.arrived == []
        [told] = await post.deliveries()
        assert (told.state, told.attempts, names.asked) == ("failed", DELIVERIES.max_attempts, DELIVERIES.max_attempts)
        errors = [tried.error or "" for tried in await attempts(post.s.read, told.id)]
        assert "name is not known" in errors[0]
        assert errors[1:3] == [NOT_SENT, NOT_SENT]


@pytest.mark.parametrize("place", ["127.0.0.1", "[::ffff:127.0.0.1]"])
async def test_an_address_that_is_on_record_is_judged_again_when_its_turn_comes(stage: OpenStage, place: str) -> None:
    """The setting may have changed since the endpoint was added."""
    async with open_post(stage, http=guarded(Names(["127.0.0.1"]))) as post:
        await post.add(url=post.url.replace("127.0.0.1", place))
        await post.announce()
        await post.run()
        [told] = await post.deliveries()
        assert (told.state, post.shop.arrived) == ("pending", [])


@pytest.mark.parametrize(
    "location", ["/inside", "http://169.254.169.254/latest/meta-data/", "http://[::1]/", "//10.0.0.1"]
)
async def test_a_redirect_leads_nowhere(stage: OpenStage, location: str) -> None:
    async with open_post(stage) as post:
        await post.add()
        post.shop.usual = Say(307, {"location": location})
        await post.announce()
        await post.run(60)
        assert {request.path for request in post.shop.arrived} == {"/hook"}
        [told] = await post.deliveries()
        assert {tried.status for tried in await attempts(post.s.read, told.id)} == {307}
