"""Random numbers without a state: each is a function of (seed, position, stream).

A token drawn at a position sees the same number whatever else is in its batch, however often the
position is computed again, and on every machine. The generator is Philox4x32-10 (Salmon, Moraes,
Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", 2011), which GPUs compute as cheaply.
"""

import enum
import secrets

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_WORD = 0xFFFFFFFF


class Stream(enum.IntEnum):
    """What a random number is for; two purposes at one position never share a number."""

    DRAW = 0
    XTC = 1


def fresh_seed() -> int:
    """Return a seed nobody can predict, 0…2**64−1."""
    return secrets.randbits(64)


def uniform(seed: int, position: int, stream: Stream = Stream.DRAW) -> float:
    """Return the number in [0, 1) of this seed, position and stream, with 53 random bits."""
    counter = (position & _WORD, position >> 32 & _WORD, int(stream), 0)
    high, low, _, _ = philox(counter, (seed & _WORD, seed >> 32 & _WORD))
    return ((high >> 5) * 2.0**26 + (low >> 6)) * 2.0**-53


def philox(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Return the four 32-bit words that Philox4x32-10 gives for a counter and a key."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        product0 = c0 * _MULTIPLIERS[0]
        product1 = c2 * _MULTIPLIERS[1]
        c0, c1 = (product1 >> 32) ^ c1 ^ k0, product1 & _WORD
        c2, c3 = (product0 >> 32) ^ c3 ^ k1, product0 & _WORD
        k0 = k0 + _KEY_STEPS[0] & _WORD
        k1 = k1 + _KEY_STEPS[1] & _WORD
    return c0, c1, c2, c3
