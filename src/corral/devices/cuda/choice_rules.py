"""Launches that belong to no node: the token of each row of logits, chosen on the device."""

from corral.devices.cuda.instance import Instance
from corral.devices.cuda.launch import Launch
from corral.memory.choices import choice_parts

_THREADS = 512


def choose(
    logits: int, count: int, rows: int, vocabulary: int, *, draws: int, scratch: int, tokens: int
) -> tuple[Launch, Launch]:
    """Return the launches that write the token of each row, as I32; −1 where there is none.

    All but sizes are addresses: of rows of logits side by side, of how many there are, of `DRAW`s
    as `devices/staging.py` has them, of `partials_bytes` of scratch, and of the tokens.
    """
    stride, parts = vocabulary * 4, choice_parts(vocabulary)
    fields = {
        "logits": logits,
        "count": count,
        "draws": draws,
        "partials": scratch,
        "tokens": tokens,
        "logits_stride": stride,
        "vocabulary": vocabulary,
        "parts": parts,
    }
    is_aligned = (logits | stride) % 16 == 0
    first = Instance.of("choose", "choose_parts", is_aligned)
    second = Instance.of("choose", "choose_token")
    return (
        Launch(first, (parts, rows, 1), (_THREADS, 1, 1), fields),
        Launch(second, (rows, 1, 1), (_THREADS, 1, 1), fields),
    )
