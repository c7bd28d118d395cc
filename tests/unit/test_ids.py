"""Ids sort by birth and are unique in every process."""

import os
import time
from uuid import UUID

from payonce.kit.ids import new_id

MANY = 20_000


def test_ids_are_unique_and_sort_by_birth() -> None:
    made = [new_id() for _ in range(MANY)]
    assert len(set(made)) == MANY
    assert made == sorted(made)


def test_ids_are_version_7_of_the_standard_variant() -> None:
    assert {(made.version, made.variant) for made in (new_id() for _ in range(1_000))} == {(7, "specified in RFC 4122")}


def test_an_id_holds_the_time_of_its_birth() -> None:
    before_ms = time.time_ns() // 1_000_000
    born_ms = new_id().int >> 80
    # Ids of one millisecond that run out of room borrow from the next.
    assert before_ms <= born_ms <= time.time_ns() // 1_000_000 + 1


def test_forked_processes_make_different_ids() -> None:
    new_id()
    seen = {new_id() for _ in range(100)}
    for _ in range(4):
        seen |= set(made_in_a_fork(100))
    assert len(seen) == 500


def made_in_a_fork(count: int) -> list[UUID]:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, b"".join(new_id().bytes for _ in range(count)))
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        data = pipe.read()
    os.waitpid(child, 0)
    return [UUID(bytes=data[start : start + 16]) for start in range(0, len(data), 16)]
