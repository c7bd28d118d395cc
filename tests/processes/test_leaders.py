"""Leaders that are killed and stopped: one at a time, and no line of an old one behind a new one's."""

import sys
from typing import Any

from payonce.testing import eventually
from payonce.testing.processes import Child
from tests.processes.testbed import ROOT, ProcessTestbed


async def test_a_killed_leader_is_replaced(testbed: ProcessTestbed) -> None:
    candidates = await started(testbed, 3)
    for _ in range(2):
        epoch, leader = await leading(testbed)
        candidates[leader].kill()
        following, successor = await leading(testbed, above=epoch)
        assert following == epoch + 1
        assert candidates[successor].running
    await in_order(testbed)


async def test_a_stopped_leader_is_replaced_and_writes_nothing_when_it_wakes(testbed: ProcessTestbed) -> None:
    """Guards the fence in the leader's transactions."""
    candidates = await started(testbed, 2)
    epoch, leader = await leading(testbed)
    # One that was stopped behind its commit has nothing left to write as it wakes.
    for turn in range(20):
        if turn >= 3 and testbed.journal.notes("Stale"):
            break
        candidates[leader].stop()
        following, successor = await leading(testbed, above=epoch)
        assert successor != leader
        candidates[leader].resume()
        await more_lines(testbed, following)
        epoch, leader = following, successor
    await in_order(testbed)
    assert testbed.journal.notes("Stale"), "no woken leader tried to write, so the test shows nothing"


async def started(testbed: ProcessTestbed, count: int) -> dict[int, Child]:
    command = (sys.executable, "-m", "tests.processes.leader", testbed.scratch.service_url, str(testbed.journal.folder))
    children = [testbed.processes.start(*command, name="leader", cwd=ROOT) for _ in range(count)]
    await testbed.serving(*children)
    return {child.pid: child for child in children}


async def leading(testbed: ProcessTestbed, above: int = 0) -> tuple[int, int]:
    """Epoch and process of a line with a higher epoch."""

    async def newest() -> Any:
        return await testbed.ask(
            "select array[row_id, pid] from books.lines where row_id > $1 order by number desc limit 1", above
        )

    epoch, pid = await eventually(newest, what=f"a leader of an epoch above {above}")
    return epoch, pid


async def more_lines(testbed: ProcessTestbed, epoch: int) -> None:
    async def written() -> int:
        count: int = await testbed.ask("select count(*) from books.lines where row_id = $1", epoch)
        return count

    before = await written()

    async def enough() -> bool:
        return await written() >= before + 20

    await eventually(enough, what="the new leader goes on writing")


async def in_order(testbed: ProcessTestbed) -> None:
    """Lines are numbered under the fence, so a number of an old epoch behind a new one's is a leader too many."""
    assert not await testbed.ask(
        """
        select count(*) from (
            select row_id, lag(row_id) over (order by number) as previous from books.lines) lines
        where row_id < previous
        """
    )
    assert not await testbed.ask(
        "select count(*) from (select from books.lines group by row_id having count(distinct pid) > 1) shared"
    )
