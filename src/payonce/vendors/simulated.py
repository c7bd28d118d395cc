"""Vendors simulated in the process because no address is set: the accounts they begin with, and their books."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from payonce.kit.money import Amount, well_known
from payonce.kit.outcomes import Invalid
from payonce.vendors.changenow.simulator import ChangeNowSimulator
from payonce.vendors.gateway.simulator import GatewaySimulator
from payonce.vendors.northbank.simulator import NorthbankSimulator
from payonce.vendors.southbank.simulator import SouthbankSimulator

Simulator = NorthbankSimulator | SouthbankSimulator | ChangeNowSimulator | GatewaySimulator

OPENING: Final = (Amount(1_000_000, well_known("EUR")), Amount(1_000_000, well_known("JPY")))


@contextmanager
def open_simulator(name: str, journal: Path) -> Iterator[Simulator]:
    """Opens the books anew, or as they were left."""
    if name not in _SIMULATORS:
        raise Invalid(f"there is no simulator of {name!r}; there are: {', '.join(_SIMULATORS)}")
    simulator = _SIMULATORS[name](journal)
    try:
        yield simulator
    finally:
        simulator.close()


def _northbank(journal: Path) -> NorthbankSimulator:
    bank = NorthbankSimulator(journal)
    bank.open_account("house")
    bank.open_account("ann", *OPENING)
    return bank


def _southbank(journal: Path) -> SouthbankSimulator:
    bank = SouthbankSimulator(journal)
    bank.open_account("house", *OPENING)
    bank.open_account("bob")
    return bank


_SIMULATORS: Final[dict[str, Callable[[Path], Simulator]]] = {
    "northbank": _northbank,
    "southbank": _southbank,
    "changenow": ChangeNowSimulator,
    "gateway": GatewaySimulator,
}
