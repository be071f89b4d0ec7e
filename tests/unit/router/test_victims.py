"""Which models go: compared with trying every set."""

from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from corral.router.victims import choose_victims
from machines import holder

MEMORIES = ("one", "two")


@st.composite
def holders(draw, most=8):
    found = []
    for number in range(draw(st.integers(0, most))):
        sizes = {memory: draw(st.integers(0, 20)) for memory in MEMORIES}
        used, priority = draw(st.integers(0, 3)), draw(st.integers(0, 2))
        found.append(holder(f"m{number}", sizes, used_s=used, priority=priority))
    return found


lacks = st.fixed_dictionaries({memory: st.integers(-5, 50) for memory in MEMORIES})


def merit(chosen, missing):
    wanted = sum(size for size in missing.values() if size > 0)
    freed = sum(sum(h.bytes.values()) for h in chosen)
    used = tuple(sorted((h.used_s for h in chosen), reverse=True))
    return max(h.priority for h in chosen), len(chosen), freed - wanted, used


def enough(chosen, missing):
    return all(sum(h.bytes.get(m, 0) for h in chosen) >= size for m, size in missing.items())


@settings(max_examples=400, deadline=None)
@given(lacks, holders())
def test_no_other_set_is_better(missing, candidates):
    """The set has the least merit of all that are enough; there is none only if none is."""
    if all(size <= 0 for size in missing.values()):
        assert choose_victims(missing, candidates) is None
        return
    sets = (c for n in range(1, 9) for c in combinations(candidates, n) if enough(c, missing))
    merits = [merit(chosen, missing) for chosen in sets]
    found = choose_victims(missing, candidates)
    if not merits:
        assert found is None
    else:
        assert enough(found.holders, missing)
        assert merit(found.holders, missing) == found.merit == min(merits)


def test_one_large_model_goes_rather_than_two_small_ones():
    """The fewest conversations are interrupted."""
    models = [holder("small", 5, used_s=1), holder("little", 6, used_s=2), holder("large", 40)]
    assert choose_victims({"GPU-0": 10}, models).names == ("large",)


def test_a_small_model_goes_if_it_is_enough():
    """Of single models the one whose bytes are least too many."""
    models = [holder("large", 40, used_s=1), holder("small", 5, used_s=2)]
    assert choose_victims({"GPU-0": 4}, models).names == ("small",)


def test_of_equal_models_the_one_used_longest_ago_goes():
    """Least recently used decides last."""
    models = [holder("fresh", 5, used_s=9), holder("stale", 5, used_s=1)]
    assert choose_victims({"GPU-0": 5}, models).names == ("stale",)


def test_a_higher_priority_stays_even_if_more_models_go():
    """Priority is looked at first."""
    models = [holder("a", 5), holder("b", 5), holder("kept", 10, priority=1)]
    assert set(choose_victims({"GPU-0": 10}, models).names) == {"a", "b"}
    assert choose_victims({"GPU-0": 16}, models).merit[0] == 1


def test_what_lies_elsewhere_helps_nobody():
    """Only models on the memory that lacks bytes go."""
    models = [holder("other", {1: 100}), holder("here", 10)]
    found = choose_victims({"GPU-0": 10}, models)
    assert found.names == ("here",)
    assert found.frees() == {"GPU-0": 10}
    assert choose_victims({"GPU-0": 11}, models) is None


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(1, 1000), min_size=40, max_size=60), st.integers(1, 10_000))
def test_of_many_models_no_more_go_than_must(sizes, missing):
    """Where not every set is looked at, the number is still the least."""
    models = [holder(f"m{n}", size) for n, size in enumerate(sizes)]
    found = choose_victims({"GPU-0": missing}, models)
    if sum(sizes) < missing:
        assert found is None
        return
    largest, total = 0, 0
    while total < missing:
        total += sorted(sizes, reverse=True)[largest]
        largest += 1
    assert len(found.holders) == largest
    assert enough(found.holders, {"GPU-0": missing})
