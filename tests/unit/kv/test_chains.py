"""Known blocks are cut into pieces that lead from first tokens to ends, and are put together so."""

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.errors import InvalidArgument
from corral.kv.chains import PIECE_BLOCKS, Piece, cut, newest_first, num_tokens
from corral.kv.prefix import as_bytes, extend, root, tail


def known(tokens, namespace=""):
    """Return the links of some tokens, the tail's included."""
    links = []
    extend(links, tokens, len(tokens) // 32, namespace=namespace)
    last = tail(links, tokens, len(tokens), namespace=namespace)
    return links + ([] if last is None else [last])


def told(chain):
    """Return the tokens of a chain."""
    tokens = array("i")
    for piece in chain.pieces:
        tokens.frombytes(piece.tokens)
    return tokens.tolist()


def lengths(pieces):
    return sorted((piece.number, len(piece.links)) for piece in pieces)


def test_a_conversation_is_cut_at_fixed_places():
    """What goes on later leaves the pieces at its beginning as they are."""
    tokens = list(range(32 * 70 + 5))
    pieces = cut(known(tokens))
    assert lengths(pieces) == [(0, 32), (32, 32), (64, 7)]
    later = cut(known([*tokens, *range(50)]))
    assert len({piece.name for piece in pieces} & {piece.name for piece in later}) == 2


def test_where_chains_part_a_piece_ends():
    """What two conversations have in common is kept once."""
    common = [1] * 96
    one, two = known([*common, *[2] * 40]), known([*common, *[3] * 7])
    pieces = cut({link.digest: link for link in [*one, *two]}.values())
    assert lengths(pieces) == [(0, 3), (3, 1), (3, 2)]
    chains = newest_first(pieces, lambda piece: piece.num_tokens)
    assert [told(chain) for chain in chains] == [[*common, *[2] * 40], [*common, *[3] * 7]]
    assert num_tokens(chains) == 96 + 40 + 7


def test_what_no_first_block_leads_to_is_left_out():
    """Where a block in the middle is forgotten, those behind it are of no use."""
    links = known([5] * 200)
    del links[2]
    (piece,) = cut(links)
    assert piece.number == 0
    assert len(piece.links) == 2
    assert newest_first([Piece(tuple(links[3:]))], lambda _: 0) == []


def test_a_conversation_that_ends_inside_another_is_one_of_its_own():
    """Its tail belongs to no other."""
    long, short = known([1] * 100), known([1] * 70)
    chains = newest_first(cut({x.digest: x for x in long + short}.values()), lambda p: p.num_tokens)
    assert sorted(map(told, chains), key=len) == [[1] * 70, [1] * 100]


def test_newest_first_is_by_the_last_piece():
    """When a beginning was used last says nothing of what goes on from it."""
    pieces = {}
    for age, token in enumerate((3, 1, 2)):
        for piece in cut(known([9] * 32 * PIECE_BLOCKS + [token] * 3)):
            pieces[piece] = -age
    found = newest_first(pieces, pieces.__getitem__)
    assert [told(chain)[-1] for chain in found] == [3, 1, 2]


def test_a_piece_is_made_of_its_tokens():
    """Number, parent and tokens say everything, names included."""
    (piece,) = cut(known([7] * 75, "somebody"))
    assert Piece.of(piece.number, piece.parent, piece.tokens) == piece
    assert piece.parent == root("somebody")
    assert Piece.of(0, root("else"), piece.tokens).name != piece.name
    assert piece.tail.num_tokens == 11
    assert piece.end == piece.links[1].digest


@pytest.mark.parametrize("size", [0, 3, 32 * PIECE_BLOCKS * 4 + 4])
def test_impossible_tokens_are_refused(size):
    """None, parts of one, and more than a piece holds."""
    with pytest.raises(InvalidArgument, match="expected 4 to 4096"):
        Piece.of(0, b"", bytes(size))


def test_a_circle_ends():
    """Pieces that claim to come before each other lead nowhere, and do not hold up anybody."""
    one = Piece.of(5, b"x" * 32, as_bytes([1] * 32))
    two = Piece.of(5, one.end, as_bytes([2] * 32))
    assert newest_first([one, two], lambda _: 0) == []


conversations = st.lists(
    st.lists(st.integers(0, 1), min_size=1, max_size=4).flatmap(
        lambda blocks: st.integers(0, 31).map(
            lambda rest: [b for b in blocks for _ in range(32)] + [7] * rest
        )
    ),
    min_size=1,
    max_size=6,
)


@given(conversations)
def test_every_conversation_comes_back(given):
    """Whatever they have in common, each is a chain, or the beginning of one."""
    links = {link.digest: link for tokens in given for link in known(tokens)}
    pieces = cut(links.values())
    assert sum(len(piece.links) for piece in pieces) == len(links)
    chains = [told(chain) for chain in newest_first(pieces, lambda piece: piece.number)]
    for tokens in given:
        if len(tokens) % 32:
            assert tokens in chains
        else:
            assert any(chain[: len(tokens)] == tokens for chain in chains)
    assert all(any(tokens[: len(c)] == c for tokens in given) for c in chains)
