"""Parallel processes that take tasks from a shared pipe, so that every core stays busy until the end."""

import os
import selectors
import signal
import socket
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Final

import msgspec

from payonce.testing.crash.children import die_with

TASKS_MAX: Final = 15_000
"""Capacity of the pipe of task numbers."""
_NUMBER_BYTES: Final = 4
_READ_BYTES: Final = 1 << 16

Work = Callable[[int], bytes]
OpenWork = Callable[[int], AbstractContextManager[Work]]
"""Opens the work of a process, by its number."""


class _TaskResult(msgspec.Struct, frozen=True):
    task: int
    answer: bytes
    error: str = ""


def in_parallel(tasks: int, processes: int, open_work: OpenWork) -> Iterator[tuple[int, bytes]]:
    """Forks processes that open their work by number, and yields each task's answer as it arrives. Work is closed after
    the last task, but not in a process that is killed because another one failed.

    No thread may run here: a fork copies none.
    """
    if tasks > TASKS_MAX:
        raise ValueError(f"{tasks:,} tasks are more than {TASKS_MAX:,}; explore fewer scenarios at a time")
    task_pipe, top = os.pipe()
    os.write(top, b"".join(task.to_bytes(_NUMBER_BYTES, "big") for task in range(tasks)))
    os.close(top)
    with ExitStack() as stack:
        stack.callback(os.close, task_pipe)
        selector = stack.enter_context(selectors.DefaultSelector())
        for number in range(max(1, min(processes, tasks))):
            driver = stack.enter_context(_driver(task_pipe, number, open_work))
            selector.register(driver, selectors.EVENT_READ, bytearray())
        yield from _answers(selector, tasks)


def _answers(selector: selectors.BaseSelector, tasks: int) -> Iterator[tuple[int, bytes]]:
    answered = 0
    while selector.get_map():
        for key, _ in selector.select():
            connection, buffer = key.fileobj, key.data
            assert isinstance(connection, socket.socket)
            part = connection.recv(_READ_BYTES)
            if not part:
                selector.unregister(connection)
            buffer += part
            for result in _frames(buffer):
                if result.error:
                    raise RuntimeError(f"the crash explorer itself failed:\n{result.error}")
                answered += 1
                yield result.task, result.answer
    if answered != tasks:
        raise RuntimeError(f"{tasks - answered} of {tasks} tasks were not answered: a driver was killed")


def _frames(buffer: bytearray) -> Iterator[_TaskResult]:
    while len(buffer) >= _NUMBER_BYTES:
        end = _NUMBER_BYTES + int.from_bytes(buffer[:_NUMBER_BYTES], "big")
        if len(buffer) < end:
            return
        yield msgspec.msgpack.decode(buffer[_NUMBER_BYTES:end], type=_TaskResult)
        del buffer[:end]


@contextmanager
def _driver(task_pipe: int, number: int, open_work: OpenWork) -> Iterator[socket.socket]:
    ours, theirs = socket.socketpair()
    parent, pid = os.getpid(), os.fork()
    if pid == 0:
        try:
            die_with(parent)
            ours.close()
            _drive(task_pipe, theirs, lambda: open_work(number))
        finally:
            os._exit(0)
    theirs.close()
    try:
        yield ours
    finally:
        ours.close()
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _drive(task_pipe: int, connection: socket.socket, open_work: Callable[[], AbstractContextManager[Work]]) -> None:
    task = 0
    try:
        with open_work() as work:
            while number := os.read(task_pipe, _NUMBER_BYTES):
                task = int.from_bytes(number, "big")
                _send(connection, _TaskResult(task, work(task)))
    except BaseException:
        _send(connection, _TaskResult(task, b"", traceback.format_exc()))


def _send(connection: socket.socket, result: _TaskResult) -> None:
    body = msgspec.msgpack.encode(result)
    connection.sendall(len(body).to_bytes(_NUMBER_BYTES, "big") + body)
