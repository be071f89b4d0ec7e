"""Known blocks as chains from their first token on, cut into pieces that can be kept apart.

        ┌────────────┐   ┌────────────┐
        │ piece 0–31 ├──▶│ piece 32–40├──▶ piece 41–44, tail     one chain
        └────────────┘   └──────┬─────┘
                                └────────▶ piece 41, tail        another that begins alike

A piece ends where chains part, and before every block whose number is a multiple of PIECE_BLOCKS,
so that a conversation that goes on leaves the pieces at its beginning as they are. It is named by
all tokens up to its end: pieces of one name hold the same.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b

from corral.errors import InvalidArgument
from corral.kv.prefix import TOKEN_BYTES, Link
from corral.kv.spec import BLOCK_TOKENS

PIECE_BLOCKS = 32
"""Full blocks of a piece at most."""
_NAME_BYTES = 20


@dataclass(frozen=True, slots=True)
class Piece:
    """Blocks that follow each other: full ones, and perhaps a tail at the end."""

    links: tuple[Link, ...]

    @classmethod
    def of(cls, number: int, parent: bytes, tokens: bytes) -> "Piece":
        """Return the piece of some tokens behind a parent that `number` full blocks lead to.

        Raises:
            InvalidArgument: if there are no whole tokens, or more than a piece holds.
        """
        most = PIECE_BLOCKS * BLOCK_TOKENS * TOKEN_BYTES
        if not 0 < len(tokens) <= most or len(tokens) % TOKEN_BYTES:
            raise InvalidArgument(
                f"a piece has {len(tokens)} bytes of tokens, expected {TOKEN_BYTES} to {most}"
            )
        links: list[Link] = []
        size = BLOCK_TOKENS * TOKEN_BYTES
        for first in range(0, len(tokens), size):
            links.append(Link.after(number + len(links), parent, tokens[first : first + size]))
            parent = links[-1].digest
        return cls(tuple(links))

    @property
    def number(self) -> int:
        """How many full blocks come before it."""
        return self.links[0].number

    @property
    def parent(self) -> bytes:
        """Name of all that comes before it."""
        return self.links[0].parent

    @property
    def tail(self) -> Link | None:
        """Its part-filled block, if it ends with one."""
        return self.links[-1] if self.links[-1].is_tail else None

    @property
    def end(self) -> bytes:
        """What its children have as parent."""
        return self.links[-1].parent if self.links[-1].is_tail else self.links[-1].digest

    @property
    def tokens(self) -> bytes:
        """Its tokens, as links have them."""
        return b"".join(link.tokens for link in self.links)

    @property
    def num_tokens(self) -> int:
        """How many they are."""
        return sum(link.num_tokens for link in self.links)

    @property
    def name(self) -> str:
        """What no other piece is called, in hexadecimal."""
        named = self.parent + self.links[-1].digest
        return blake2b(named, digest_size=_NAME_BYTES, person=b"piece").hexdigest()


@dataclass(frozen=True, slots=True)
class Chain:
    """One conversation: all its pieces, the first one first."""

    pieces: tuple[Piece, ...]

    @property
    def links(self) -> tuple[Link, ...]:
        """The links of all its blocks."""
        return tuple(link for piece in self.pieces for link in piece.links)

    @property
    def num_tokens(self) -> int:
        """Its tokens."""
        return sum(piece.num_tokens for piece in self.pieces)


def num_tokens(chains: Iterable[Chain]) -> int:
    """Return the tokens of some chains, what several have in common counted once."""
    return sum(piece.num_tokens for piece in {piece for one in chains for piece in one.pieces})


def cut(links: Iterable[Link]) -> list[Piece]:
    """Return the pieces of all known blocks that can be reached from a first one."""
    children: dict[bytes, list[Link]] = {}
    beginning: list[Link] = []
    for link in links:
        children.setdefault(link.parent, []).append(link)
        if link.number == 0:
            beginning.append(link)
    pieces = []
    while beginning:
        run = [beginning.pop()]
        while True:
            after = [] if run[-1].is_tail else children.get(run[-1].digest, [])
            if len(after) != 1 or after[0].number % PIECE_BLOCKS == 0:
                break
            run.append(after[0])
        beginning += after
        pieces.append(Piece(tuple(run)))
    return pieces


def newest_first(pieces: Iterable[Piece], when: Callable[[Piece], int]) -> list[Chain]:
    """Return the chains that pieces make, those whose last piece is newest first.

    Pieces whose beginning is missing are in none of them.
    """
    ended = _Ends(pieces)
    chains = [(when(leaf), Chain(ended.path(leaf))) for leaf in ended.leaves()]
    return [chain for _, chain in sorted(chains, key=lambda one: one[0], reverse=True)]


class _Ends:
    """Pieces by what they end with."""

    def __init__(self, pieces: Iterable[Piece]) -> None:
        self._pieces = tuple(pieces)
        self._by_end: dict[bytes, Piece] = {}
        for piece in self._pieces:
            if not piece.links[0].is_tail:
                self._by_end.setdefault(piece.end, piece)

    def path(self, leaf: Piece) -> tuple[Piece, ...]:
        """Return the pieces that lead to a leaf, itself the last."""
        return (*reversed([*self._before(leaf)]), leaf)

    def leaves(self) -> Iterator[Piece]:
        """Yield the pieces that a first one leads to and behind which there is nothing."""
        reached = [piece for piece in self._pieces if self._is_reached(piece)]
        inner = {piece.parent for piece in reached}
        for piece in reached:
            if piece.tail is not None or piece.end not in inner:
                yield piece

    def _is_reached(self, piece: Piece) -> bool:
        return min(one.number for one in (piece, *self._before(piece))) == 0

    def _before(self, piece: Piece) -> Iterator[Piece]:
        """Yield the pieces before one, the nearest first."""
        while piece.number and (before := self._by_end.get(piece.parent)) is not None:
            if before.number >= piece.number:  # no honest piece says so
                return
            yield before
            piece = before
