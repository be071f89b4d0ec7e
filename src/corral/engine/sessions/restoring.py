"""From files to a cache: the newest conversations that fit, each of them proven to be found."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from corral.contract.sessions import SessionsRestored
from corral.engine.sessions.blocks import Blocks
from corral.engine.sessions.store import Kept, SessionStore
from corral.errors import InvalidSession
from corral.kv.chains import Chain, Piece, newest_first, num_tokens
from corral.kv.prefix import PrefixPool
from corral.log import logger

_log = logger(__name__)


@dataclass(frozen=True, slots=True)
class Restored:
    """What a cache knows again, and what is to be told of it."""

    chains: tuple[Chain, ...]
    report: SessionsRestored


def restore(
    prefixes: PrefixPool, blocks: Blocks, store: SessionStore, is_over: Callable[[], bool]
) -> Restored:
    """Read as many conversations as there is room for; nothing may run meanwhile.

    Args:
        is_over: whether to stop before the next conversation.
    """
    began = time.monotonic()
    kept = store.pieces()
    chains = newest_first(kept, lambda piece: kept[piece].used_ns)
    reading = _Reading(prefixes, blocks, store, kept)
    read = [chain for chain in _fitting(chains, prefixes) if not is_over() and reading.chain(chain)]
    for chain in reversed(read):  # those used last go last when room is needed
        _refresh(prefixes, chain)
    found = [chain for chain in read if _count(prefixes, chain) == chain.num_tokens]
    for chain in read:
        if chain not in found:
            _log.error(
                "a conversation of %d tokens was restored, but only %d of them are found",
                chain.num_tokens,
                _count(prefixes, chain),
            )
    report = SessionsRestored(
        sessions=len(found),
        tokens=num_tokens(found),
        skipped_sessions=len(chains) - len(read),
        refused_files=store.num_refused,
        lost_sessions=len(read) - len(found),
        seconds=time.monotonic() - began,
    )
    return Restored(tuple(found), report)


def _fitting(chains: Iterable[Chain], prefixes: PrefixPool) -> Iterable[Chain]:
    """Yield chains while there are blocks that hold nothing for all of them."""
    free = prefixes.statistics().num_free
    counted: set[Piece] = set()
    for chain in chains:
        new = {*chain.pieces} - counted
        needed = sum(len(piece.links) for piece in new)
        if needed <= free:
            free -= needed
            counted |= new
            yield chain


@dataclass(slots=True)
class _Reading:
    """One pass over the files."""

    prefixes: PrefixPool
    blocks: Blocks
    store: SessionStore
    kept: dict[Piece, Kept]
    done: set[Piece] = field(default_factory=set)

    def chain(self, chain: Chain) -> bool:
        """Read what is not there of a chain, from its beginning on; return whether all is."""
        for piece in chain.pieces:
            if piece not in self.done:
                if not self._piece(piece):
                    return False
                self.done.add(piece)
        return True

    def _piece(self, piece: Piece) -> bool:
        prefixes, kept = self.prefixes, self.kept[piece]
        new = [place for place, link in enumerate(piece.links) if not prefixes.knows(link)]
        taken = [prefixes.take() for _ in new]
        try:
            is_whole = len(new) == len(piece.links)
            for layer, data in enumerate(self.store.read(kept)):
                self.blocks.write(layer, taken, data if is_whole else data[new])
            for place, block in zip(new, taken, strict=True):
                prefixes.keep(block, piece.links[place])
        except InvalidSession as error:
            self.store.refuse(kept.path, error)
            return False
        except OSError as error:  # others may have removed it
            _log.warning("saved conversation %s: %s", kept.path.name, error.strerror)
            return False
        finally:
            for block in taken:
                prefixes.give_back(block)
        return True


def _count(prefixes: PrefixPool, chain: Chain) -> int:
    """Return how many tokens of a chain the search finds that prompts go through."""
    links = chain.links
    *full, last = links
    if not last.is_tail:
        full = [*links]
    found = sum(links[place].num_tokens for place in range(len(prefixes.find(full))))
    if last.is_tail and prefixes.find_tail(last.parent, last.tokens) is not None:
        found += last.num_tokens
    return found


def _refresh(prefixes: PrefixPool, chain: Chain) -> None:
    """Have the blocks of a chain be the last to go, the first of them after all others."""
    for block in reversed([prefixes.block_of(link) for link in chain.links]):
        prefixes.share(block)
        prefixes.give_back(block)
