"""Taking a safeguard out, and seeing that a named test notices. A check that cannot fail is none."""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
from _pytest.mark import ParameterSet

from payonce.testing import OpenStage

Check = Callable[[OpenStage], Awaitable[None]]
Ablation = Callable[[], AbstractContextManager[None]]
Ablations = Mapping[str, tuple[Ablation, Sequence[Check]]]
"""By the safeguard's name: how it is taken out, and the tests that must miss it."""


def given(check: Callable[..., Awaitable[None]], *arguments: Any) -> Check:
    return lambda stage: check(stage, *arguments)


def patched(target: object, name: str, replacement: Any) -> Ablation:
    @contextmanager
    def patching() -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(target, name, replacement)
            yield

    return patching


def cases(ablations: Ablations) -> list[ParameterSet]:
    """For each safeguard the first test that misses it; the others with --full."""
    return [
        pytest.param(name, number, marks=[pytest.mark.full] if number else [])
        for name, (_, checks) in ablations.items()
        for number in range(len(checks))
    ]


async def missed(ablations: Ablations, name: str, number: int, stage: OpenStage, *also: type[Exception]) -> None:
    """Fails when the test passes without the safeguard. `also` names errors that count as noticing it."""
    take_out, checks = ablations[name]
    noticed: tuple[type[BaseException], ...] = (AssertionError, pytest.fail.Exception, *also)
    with take_out():
        try:
            await checks[number](stage)
        except noticed:
            return
    raise AssertionError(f"without {name} the test passes all the same")
