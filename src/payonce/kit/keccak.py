"""Keccak-256 as Ethereum uses it. hashlib has SHA3-256 alone, which differs in the byte that ends the message."""

from typing import Final

_RATE_BYTES: Final = 136
_ROUNDS: Final = 24
_LANES: Final = 25
_MASK: Final = (1 << 64) - 1
_ENDS_KECCAK: Final = 0x01
_ENDS_SHA3: Final = 0x06


def keccak_256(data: bytes) -> bytes:
    return sponge(data, _ENDS_KECCAK)


def sha3_256(data: bytes) -> bytes:
    """What hashlib has too: the same permutation, so that one can be held against the other."""
    return sponge(data, _ENDS_SHA3)


def sponge(data: bytes, ending: int) -> bytes:
    """Takes in the padded message block by block; 32 bytes of the state are the digest."""
    padded = bytearray(data)
    padded.append(ending)
    padded.extend(bytes(-len(padded) % _RATE_BYTES))
    padded[-1] |= 0x80
    state = [0] * _LANES
    for start in range(0, len(padded), _RATE_BYTES):
        for lane in range(_RATE_BYTES // 8):
            at = start + 8 * lane
            state[lane] ^= int.from_bytes(padded[at : at + 8], "little")
        state = _permuted(state)
    return b"".join(lane.to_bytes(8, "little") for lane in state[:4])


def _permuted(state: list[int]) -> list[int]:
    """Keccak-f[1600] of FIPS 202; the lane at column x and row y is number x + 5y."""
    for constant in _CONSTANTS:
        parity = [state[x] ^ state[x + 5] ^ state[x + 10] ^ state[x + 15] ^ state[x + 20] for x in range(5)]
        mixed = [parity[(x - 1) % 5] ^ _rotated(parity[(x + 1) % 5], 1) for x in range(5)]
        moved = [0] * _LANES
        for lane, column, target, offset in _MOVES:
            moved[target] = _rotated(state[lane] ^ mixed[column], offset)
        state = [moved[lane] ^ (~moved[second] & moved[third]) for lane, second, third in _ROWS]
        state[0] ^= constant
    return state


def _rotated(lane: int, by: int) -> int:
    return ((lane << by) | (lane >> (64 - by))) & _MASK


def _offsets() -> list[int]:
    """How far each lane is turned: triangular numbers along the walk that moves the lanes."""
    offsets, x, y = [0] * _LANES, 1, 0
    for step in range(1, _LANES):
        offsets[x + 5 * y] = step * (step + 1) // 2 % 64
        x, y = y, (2 * x + 3 * y) % 5
    return offsets


def _constants() -> list[int]:
    """One for each round, its bits from a shift register of eight."""
    constants, register = [], 1
    for _ in range(_ROUNDS):
        constant = 0
        for power in range(7):
            if register & 1:
                constant |= 1 << ((1 << power) - 1)
            register = (register << 1) ^ (0x171 if register & 0x80 else 0)
        constants.append(constant)
    return constants


_CONSTANTS: Final = _constants()
_MOVES: Final = [
    (x + 5 * y, x, y + 5 * ((2 * x + 3 * y) % 5), offset)
    for (y, x), offset in zip(((y, x) for y in range(5) for x in range(5)), _offsets(), strict=True)
]
"""Each lane with its column, where it goes, and how far it is turned."""
_ROWS: Final = [(x + y, (x + 1) % 5 + y, (x + 2) % 5 + y) for y in range(0, _LANES, 5) for x in range(5)]
"""Each lane with the two that follow it in its row."""
