"""Sizes as people write them: 24GiB, 512 M, 1000."""

import re

from corral.errors import InvalidArgument

_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?) ?(?:([KMGTkmgt])(iB|B)?|B)?")


def parse_size(text: str) -> int:
    """Return the bytes of a size; units are powers of 1024, but GB and MB are not.

    Raises:
        InvalidArgument: if it is no size.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise InvalidArgument(f"{text[:40]!r} is no size such as 24GiB or 512MiB")
    number, unit, kind = match.groups()
    base = 1000 if kind == "B" else 1024
    return int(float(number) * base ** (1 + "kmgt".index(unit.lower()) if unit else 0))
