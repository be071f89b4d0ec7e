"""How slow work tells how far it is. Knows no terminal."""

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Takes (stage, done, total): bytes or items of one stage; total is 0 where it is not known.

It is called often and from the thread that does the work. Stages here are "wait" (another process
fetches the same file), "download" and "unpack".
"""


def silent(stage: str, done: int, total: int) -> None:
    """Report to nobody."""
