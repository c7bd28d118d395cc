"""Double-entry books of a simulated bank: accounts and the movements between them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from payonce.kit.money import Amount, Asset, well_known
from payonce.kit.outcomes import Invalid

VAULT: Final = "vault"
"""Source of opening balances, so that a bank's accounts add up to zero too."""


class Denied(Exception):
    """The bank refused the request and did nothing."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


@dataclass(frozen=True, slots=True)
class Movement:
    """One amount from one account to another."""

    number: int
    source: str
    target: str
    amount: Amount
    reference: str
    booked_at: datetime

    def change_of(self, account: str) -> Amount:
        return self.amount if account == self.target else -self.amount


@dataclass
class Books:
    """The state of the bank; its owner keeps the journal from which the state can be rebuilt."""

    movements: list[Movement] = field(default_factory=list)
    accounts: dict[str, bool] = field(default_factory=dict)
    """By account, whether it is open."""
    _balances: dict[tuple[str, Asset], int] = field(default_factory=dict)
    _of_account: dict[str, list[Movement]] = field(default_factory=dict)
    _by_reference: dict[str, list[Movement]] = field(default_factory=dict)

    def open(self, account: str) -> None:
        self.accounts[account] = True

    def shut(self, account: str) -> None:
        self.accounts[account] = False

    def check(self, source: str, target: str, amount: Amount) -> None:
        """Raises Denied if the movement is not allowed."""
        for account in (source, target):
            if account not in self.accounts:
                raise Denied("no_such_account", f"there is no account {account}")
            if not self.accounts[account]:
                raise Denied("account_closed", f"account {account} is closed")
        if source == target or amount.minor <= 0:
            raise Denied("bad_amount", "an amount above zero moves between two accounts")
        if self.balance(source, amount.asset) < amount:
            raise Denied("insufficient_funds", f"account {source} holds less than {amount}")

    def book(self, source: str, target: str, amount: Amount, reference: str, booked_at: datetime) -> Movement:
        movement = Movement(len(self.movements) + 1, source, target, amount, reference, booked_at)
        self.movements.append(movement)
        self._by_reference.setdefault(reference, []).append(movement)
        for account in (source, target):
            place = (account, amount.asset)
            self._balances[place] = self._balances.get(place, 0) + movement.change_of(account).minor
            self._of_account.setdefault(account, []).append(movement)
        return movement

    def balance(self, account: str, asset: Asset) -> Amount:
        return Amount(self._balances.get((account, asset), 0), asset)

    def balances(self, account: str) -> list[Amount]:
        return [Amount(minor, asset) for (name, asset), minor in self._balances.items() if name == account]

    def under(self, reference: str) -> Sequence[Movement]:
        return self._by_reference.get(reference, ())

    def statement(self, account: str, begin: datetime, end: datetime) -> list[Movement]:
        """Movements of an account booked from `begin` to before `end`, without opening balances."""
        booked = self._of_account.get(account, ())
        return [each for each in booked if begin <= each.booked_at < end and each.source != VAULT]


def amount_on_wire(value: object, currency: object) -> Amount:
    """Parses an amount as banks write it, a decimal string and a currency code; raises Denied."""
    if not isinstance(value, str) or not isinstance(currency, str):
        raise Denied("bad_request", "an amount is a decimal text with a currency")
    try:
        return Amount.from_decimal(value, well_known(currency))
    except Invalid as error:
        raise Denied("bad_amount", str(error)) from error


def moment_on_wire(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise Denied("bad_request", f"{text[:40]!r} is no moment such as 2026-01-31T12:00:00+00:00") from error
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def system_clock() -> datetime:
    """The default clock of a bank; tests pass their own."""
    return datetime.now(UTC)
