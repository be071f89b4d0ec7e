"""From a cache to files: the conversations used last first, as many as time and quota allow."""

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from corral.contract.sessions import SessionCounts, SessionsSaved
from corral.engine.sessions.blocks import Blocks
from corral.engine.sessions.store import Kept, SessionStore
from corral.kv.chains import Chain, Piece, cut, newest_first, num_tokens
from corral.kv.prefix import Link, PrefixPool

_STEP_NS = 1_000_000
"""Between the times that two conversations are said to have been used last."""


def save(
    prefixes: PrefixPool,
    blocks: Blocks,
    store: SessionStore,
    is_over: Callable[[], bool],
    *,
    counts: SessionCounts,
) -> SessionsSaved:
    """Write what a cache knows and what is not on disk yet; nothing may run meanwhile.

    Args:
        is_over: whether to stop before the next conversation.
        counts: of those that were restored before, to be told with the others.
    """
    began = time.monotonic()
    known = prefixes.links
    links = tuple(known.values())
    saving = _Saving({link.digest: block for block, link in known.items()}, blocks, store)
    rank = {link.digest: place for place, link in enumerate(links)}
    chains = newest_first(cut(links), lambda piece: rank[piece.links[-1].digest])
    before, now = store.pieces(), time.time_ns()
    saved = 0
    for number, chain in enumerate(chains):
        if is_over():
            saving.reason = "there was no more time"
        if saving.reason or not saving.chain(chain, now - number * _STEP_NS):
            break
        saved += 1
    store.remove(_replaced(before, saving.done))
    store.settle()
    return SessionsSaved(
        sessions=saved,
        tokens=num_tokens(chains[:saved]),
        written_bytes=saving.written_bytes,
        unsaved_sessions=len(chains) - saved,
        seconds=time.monotonic() - began,
        reason=saving.reason,
        counts=counts,
    )


@dataclass(slots=True)
class _Saving:
    """One pass over what a cache knows."""

    where: dict[bytes, int]
    """The block of each link, by its digest."""
    blocks: Blocks
    store: SessionStore
    done: set[Piece] = field(default_factory=set)
    written_bytes: int = 0
    reason: str = ""
    """Why it cannot go on."""

    def chain(self, chain: Chain, at_ns: int) -> bool:
        """See that all pieces of a chain are on disk; return whether they are."""
        for depth, piece in enumerate(chain.pieces):
            if piece in self.done:
                continue
            # The deeper go before those that lead to them, should somebody need the room.
            used_ns = at_ns - depth
            if not self.store.touch(piece, used_ns):
                layers = self.blocks.read([self.where[link.digest] for link in piece.links])
                try:
                    size = self.store.write(piece, layers, used_ns)
                except OSError as error:
                    self.reason = f"the disk refused it: {error.strerror}"
                    return False
                if not size:
                    self.reason = "newer ones fill the quota"
                    return False
                self.written_bytes += size
            self.done.add(piece)
        return True


def _replaced(before: dict[Piece, Kept], done: Collection[Piece]) -> list[Kept]:
    """Return the files whose every token is in other files now."""
    held: dict[bytes, list[Link]] = {}
    for piece in done:
        for link in piece.links:
            held.setdefault(link.parent, []).append(link)

    def is_held(link: Link) -> bool:
        return any(other.tokens.startswith(link.tokens) for other in held.get(link.parent, ()))

    return [
        kept
        for piece, kept in before.items()
        if piece not in done and all(map(is_held, piece.links))
    ]
