"""Rotary positions: the frequency of each pair of dimensions, with the known kinds of scaling.

Sources: RoFormer (arXiv 2104.09864); YaRN (arXiv 2309.00071), whose ramp between pairs that are
kept and pairs that are squeezed is in `_yarn`.
"""

import math

from corral.models.hyper import RopeScaling


def frequencies(dims: int, base: float, scaling: RopeScaling) -> tuple[float, ...]:
    """Return the radians a position of each of the dims/2 pairs."""
    plain = tuple(base ** (-2.0 * pair / dims) for pair in range(dims // 2))
    match scaling.kind:
        case "linear":
            return tuple(frequency / scaling.factor for frequency in plain)
        case "yarn":
            return _yarn(plain, dims, base, scaling)
        case _:
            return plain


def magnitude(scaling: RopeScaling) -> float:
    """Return the factor of cosines and sines."""
    if scaling.kind != "yarn":
        return 1.0
    return scaling.magnitude * (1.0 + 0.1 * math.log(scaling.factor))


def _yarn(
    plain: tuple[float, ...], dims: int, base: float, scaling: RopeScaling
) -> tuple[float, ...]:
    def pair_turning(times: float) -> float:
        """Return the pair that turns so often within the original context."""
        turns = scaling.original_context / (times * 2 * math.pi)
        return dims * math.log(turns) / (2 * math.log(base))

    low = max(0.0, math.floor(pair_turning(scaling.beta_fast)))
    high = min(dims - 1.0, math.ceil(pair_turning(scaling.beta_slow)))
    result = []
    for pair, frequency in enumerate(plain):
        squeezed = min(1.0, max(0.0, (pair - low) / max(0.001, high - low)))
        result.append(frequency * (1 - squeezed) + frequency / scaling.factor * squeezed)
    return tuple(result)
