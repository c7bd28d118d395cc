"""A queue in memory, with one worker and no faults: the promises in their simplest form."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from payonce.engine.messages.model import Claim, Ending, Message, SettleAnswer, State

KEY_RETENTION_S = 86_400.0


@dataclass
class Held:
    id: UUID
    state: State
    ready_at: float
    token: int = 0
    lease_until: float = 0.0
    attempts: int = 0
    crashes: int = 0
    running_alone: bool = False
    claimed_at: float = 0.0
    first_attempt_at: float | None = None


@dataclass
class Key:
    message_id: UUID
    expires_at: float | None = None


class Model:
    def __init__(self, lease_s: float, *, keys_end_at_once: bool = False) -> None:
        """A backend expires a key when its message is settled, or later, when a janitor finds the message gone."""
        self.lease_s = lease_s
        self.keys_end_at_once = keys_end_at_once
        self.now = 0.0
        self.lease_now = 0.0
        self.paused = False
        self.messages: dict[UUID, Held] = {}
        self.keys: dict[str, Key] = {}

    def content(self, state: State) -> dict[UUID, tuple[int, int]]:
        return {held.id: (held.attempts, held.crashes) for held in self.messages.values() if held.state is state}

    def put(self, messages: Sequence[Message], answered: Sequence[UUID]) -> None:
        for message, answer in zip(messages, answered, strict=True):
            assert answer == self._accept(message)

    def _accept(self, message: Message) -> UUID:
        if message.idempotency_key is not None:
            key = self.keys.get(message.idempotency_key)
            if key is not None and not (key.expires_at is not None and key.expires_at <= self.now):
                return key.message_id
            self.keys[message.idempotency_key] = Key(message.id)
        self.messages[message.id] = Held(message.id, State.READY, self.now + message.delay_s)
        return message.id

    def claim(self, claims: Sequence[Claim], limit: int) -> None:
        """The order of messages that became ready together is the backend's choice."""
        due = sorted(held.ready_at for held in self.messages.values() if self._claimable(held, State.READY))
        assert [self.messages[claim.message.id].ready_at for claim in claims] == due[:limit]
        for claim in claims:
            self._lease(claim, State.READY)

    def claim_alone(self, claim: Claim | None) -> None:
        due = [held for held in self.messages.values() if self._claimable(held, State.ALONE)]
        assert (claim is None) == (not due)
        if claim is not None:
            self._lease(claim, State.ALONE)

    def _claimable(self, held: Held, state: State) -> bool:
        return held.state is state and held.ready_at <= self.now and not self.paused

    def _lease(self, claim: Claim, expected: State) -> None:
        held = self.messages[claim.message.id]
        assert self._claimable(held, expected)
        assert claim.token != held.token, "a newer claim must have another token"
        assert (claim.message.attempts, claim.crashes) == (held.attempts, held.crashes)
        held.state, held.token, held.lease_until = State.LEASED, claim.token, self.lease_now + self.lease_s
        held.claimed_at = self.now
        held.first_attempt_at = self.now if held.first_attempt_at is None else held.first_attempt_at
        assert (claim.claimed_at - claim.first_attempt_at).total_seconds() == self.now - held.first_attempt_at

    def _of(self, claim: Claim) -> Held | None:
        """The message, if the claim still holds it."""
        held = self.messages.get(claim.message.id)
        return held if held is not None and held.state is State.LEASED and held.token == claim.token else None

    def mark_alone(self, claim: Claim) -> bool:
        if held := self._of(claim):
            held.running_alone = True
        return held is not None

    def extend(self, claim: Claim) -> bool:
        if held := self._of(claim):
            held.lease_until = self.lease_now + self.lease_s
        return held is not None

    def settle(self, claim: Claim, ending: Ending, delay_s: float) -> SettleAnswer:
        held = self._of(claim)
        if held is None:
            return SettleAnswer.STALE if claim.message.id in self.messages else SettleAnswer.ALREADY
        if ending in (Ending.SUCCESS, Ending.FAILED):
            self._forget(held.id)
            return SettleAnswer.SETTLED
        if ending is Ending.RELEASED:
            held.state = State.ALONE if held.crashes >= 2 else State.READY
            held.first_attempt_at = self._unaged(held, delay_s)
        else:
            held.state = State.PARKED if ending is Ending.PARKED else State.READY
            held.attempts, held.crashes = held.attempts + 1, 0
        held.ready_at, held.running_alone = self.now + delay_s, False
        return SettleAnswer.SETTLED

    def _unaged(self, held: Held, delay_s: float) -> float | None:
        """A release is no run, and the time until the message is ready again does not age it."""
        if held.first_attempt_at is None or (held.attempts, held.crashes) == (0, 0):
            return None
        return held.first_attempt_at + self.now - held.claimed_at + delay_s

    def reap(self) -> int:
        dead = [
            held for held in self.messages.values() if held.state is State.LEASED and held.lease_until <= self.lease_now
        ]
        for held in dead:
            held.crashes += 1
            held.state = State.PARKED if held.running_alone else State.ALONE if held.crashes >= 2 else State.READY
            held.running_alone, held.ready_at = False, self.now
        return len(dead)

    def redrive(self) -> int:
        parked = [held for held in self.messages.values() if held.state is State.PARKED]
        for held in parked:
            held.state, held.ready_at, held.attempts, held.crashes = State.READY, self.now, 0, 0
            held.first_attempt_at = None
        return len(parked)

    def purge(self, state: State) -> int:
        gone = [held.id for held in self.messages.values() if held.state is state]
        for message_id in gone:
            self._forget(message_id)
        return len(gone)

    def _forget(self, message_id: UUID) -> None:
        del self.messages[message_id]
        if self.keys_end_at_once:
            self.let_keys_end()

    def let_keys_end(self) -> None:
        for key in self.keys.values():
            if key.expires_at is None and key.message_id not in self.messages:
                key.expires_at = self.now + KEY_RETENTION_S
