"""What keeps runs of one transaction from each other's rows.

Row locks keep transactions apart, not runs of one. A row that one run has locked is kept from the others here: who asks
for it waits until that run has ended its part, and asks again then, as PostgreSQL would have it.
"""

from collections import deque
from typing import Any

from payonce.engine.company.apart import Apart
from payonce.engine.company.asking import Question
from payonce.engine.company.telling import Answer, Shape

Lock = object
"""The id of a row; of one without, its table: it stands for all of them."""
Run = object
Asked = tuple[Any, Question]
"""A run, and what it asks."""


class Locks:
    def __init__(self) -> None:
        self._holders: dict[Lock, Run] = {}
        self._held: dict[Run, list[Lock]] = {}
        self._behind: dict[Lock, deque[Asked]] = {}
        """Who waits for a row, in the order of asking."""
        self._named: dict[str, bool] = {}
        """Of each table, whether its rows are locked by their ids."""
        self._lockers: dict[str, set[Run]] = {}
        self._changers: dict[str, set[Run]] = {}
        """Of each table, who has changed rows of it without saying which."""

    @property
    def waiting(self) -> list[Asked]:
        return [each for waiting in self._behind.values() for each in waiting]

    def take(self, run: Run, question: Question, lock: Lock) -> bool:
        """Whether it may go on; if not, it asks again when it is its turn."""
        if self._holds(run, lock):
            return True
        self._behind.setdefault(lock, deque()).append((run, question))
        return False

    def may_have(self, run: Run, question: Question, shape: Shape, answer: Answer) -> bool:
        """Whether it may see the answer now; if not, it asks again when it is its turn. Raises Apart when it is too
        late for that."""
        if shape.changes:
            for row in answer:
                if (name := row.get("id")) is not None and not self._holds(run, name):
                    raise Apart("one run changed a row that another has")
            if shape.table and (not shape.answers or any("id" not in row for row in answer)):
                _meet(run, shape.table, self._changers, self._lockers)
            return True
        if not (shape.locks and answer):
            return True
        takes = all(self.take(run, question, self._lock_of(shape, row)) for row in answer)
        if takes:
            _meet(run, shape.table, self._lockers, self._changers)
        return takes

    def let_go(self, run: Run) -> list[Asked]:
        """Of everything, as its part has ended. Those whose turn it is."""
        for runs in (*self._lockers.values(), *self._changers.values()):
            runs.discard(run)
        return [following for lock in self._held.pop(run, []) if (following := self._pass_on(lock)) is not None]

    def _lock_of(self, shape: Shape, row: Any) -> Lock:
        named = "id" in row
        if self._named.setdefault(shape.table, named) != named:
            # These two would not see each other.
            raise Apart(f"rows of {shape.table} are locked with their ids and without")
        return row["id"] if named else shape.table

    def _holds(self, run: Run, lock: Lock) -> bool:
        holder = self._holders.get(lock)
        if holder is None:
            self._give(run, lock)
            return True
        return holder is run

    def _give(self, run: Run, lock: Lock) -> None:
        self._holders[lock] = run
        self._held.setdefault(run, []).append(lock)

    def _pass_on(self, lock: Lock) -> Asked | None:
        waiting = self._behind.get(lock)
        if not waiting:
            del self._holders[lock]
            return None
        following = waiting.popleft()
        if not waiting:
            del self._behind[lock]
        self._give(following[0], lock)
        return following


def _meet(run: Run, table: str, ours: dict[str, set[Run]], theirs: dict[str, set[Run]]) -> None:
    """Between those who lock rows of a table and those who change rows of it and do not say which."""
    if not theirs.get(table, set()) <= {run}:
        raise Apart(f"rows of {table} are locked by one run, and another may have changed them")
    ours.setdefault(table, set()).add(run)
