"""A redrive in batches that the command line follows while another process helps."""

from dataclasses import dataclass
from typing import Any

import pytest

from payonce.cli import operations
from payonce.engine.messages import bulk
from payonce.engine.messages.bulk import Kind, Status
from payonce.engine.messages.model import State
from payonce.engine.messages.ports import Filter
from payonce.testing import OpenStage, Stage
from tests.console.renewals import POLICY, park

QUEUE = POLICY.queue


@dataclass
class CountedLate:
    """The process' view, in which a helper counts what it has changed only after the last message is gone."""

    stage: Stage
    helped: int
    looks: int = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stage, name)

    @property
    def read(self) -> "CountedLate":
        return self

    async def fetchrow(self, sql: str, *arguments: Any) -> Any:
        self.looks += 1
        if self.looks == 2:
            await self.stage.owner.execute("update payonce.queue_operations set changed = changed + $1", self.helped)
        return await self.stage.read.fetchrow(sql, *arguments)


async def test_what_another_process_changed_last_is_counted_in_the_answer(
    stage: OpenStage, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(operations, "STALLED_S", 0.0)
    async with stage() as s:
        ids = await park(s, count=3)
        async with s.begin() as tx:
            begun = await bulk.start(tx, Kind.REDRIVE, QUEUE, State.PARKED, Filter(), 3, "ann", "it is back")
        await s.admin.redrive(QUEUE, Filter(ids=ids[:2]))
        ended = await operations.follow(CountedLate(s, helped=2), begun.id)  # type: ignore[arg-type]
    assert (ended.status, ended.changed, ended.total) == (Status.DONE, 3, 3)
    assert "3 messages" in capsys.readouterr().err
