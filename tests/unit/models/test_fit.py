"""What fits, compared with trying everything; and refusals that say what would help."""

import time
from functools import cache
from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tiny
from corral.devices.cpu.traits import CPU_TRAITS
from corral.devices.cuda.traits import cuda_traits
from corral.devices.reference.device import reference_traits
from corral.errors import InvalidArgument, OutOfMemory
from corral.gguf import Metadata, TensorInfo
from corral.memory.lifetime import Lifetime
from corral.models.fit import Room, Wish, fit_model, needs
from corral.models.footprint import choose_limits, write_graph
from corral.models.split import design_split
from corral.quant.types import DType
from headers import LLAMA_8B, LLAMA_70B

CONTEXT, LAYERS = 700, 3
"""A context that ends within a block, and lies beyond a whole chunk."""
GIB = 1 << 30
CUDA = cuda_traits(640 << 20)
KINDS = {"cpu": CPU_TRAITS, "reference": reference_traits()}


@cache
def header(family):
    layers = 6 if family == "gemma3" else LAYERS
    infos = {
        name: TensorInfo(name, DType.Q8_0 if len(shape) > 1 else DType.F32, shape, 0, 0)
        for name, shape in tiny.shapes(family, layers).items()
    }
    return Metadata.of(tiny.keys(family, block_count=layers, context_length=CONTEXT)), infos


def every_context():
    return [min(32 * n, CONTEXT) for n in range(1, -(-CONTEXT // 32) + 1)]


def every_way(num_layers, num_devices):
    for inner in combinations(range(1, num_layers), num_devices - 1):
        yield tuple(range(*pair) for pair in pairwise((0, *inner, num_layers)))


@cache
def footprints(family, kinds, layers, context, parallel, kv_type="f16"):
    metadata, tensors = header(family)
    limits = choose_limits(metadata, context=context, parallel=parallel, kv_type=kv_type)
    model = write_graph(metadata, tensors, limits)
    return design_split(model, [KINDS[kind] for kind in kinds], layers).footprints()


def rooms_of(kinds, sizes):
    pairs = zip(kinds, sizes, strict=True)
    return tuple(Room(f"{kind}{n}", KINDS[kind], size) for n, (kind, size) in enumerate(pairs))


def fits(taken, rooms):
    return all(
        need <= room.usable_bytes for need, room in zip(needs(taken, rooms), rooms, strict=True)
    )


FAMILY = st.sampled_from(["llama", "gemma3"])


@settings(max_examples=60, deadline=None)
@given(FAMILY, st.sampled_from(list(KINDS)), st.integers(1, 3), st.data())
def test_the_largest_context_on_one_device_is_found(family, kind, parallel, data):
    """Neither a block more nor a block less than trying every context gives."""
    layers = (range(6 if family == "gemma3" else LAYERS),)
    takes = {c: footprints(family, (kind,), layers, c, parallel) for c in every_context()}
    sizes = [sum(taken[0].values()) for taken in takes.values()]
    size = data.draw(st.sampled_from(sizes)) + data.draw(st.sampled_from([-1, 0, 1, 4096]))
    rooms = rooms_of([kind], [size])
    possible = [context for context, taken in takes.items() if fits(taken, rooms)]
    if not possible:
        with pytest.raises(OutOfMemory):
            fit_model(*header(family), rooms, Wish(parallel))
        return
    proposal = fit_model(*header(family), rooms, Wish(parallel))
    assert proposal.design.model.limits.context == max(possible)
    assert fits(proposal.design.footprints(), rooms)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([("cpu", "cpu"), ("reference", "cpu"), ("cpu",) * 3]),
    st.integers(1, 3),
    st.data(),
)
def test_a_split_that_is_proposed_fits_and_is_nearly_the_best(kinds, parallel, data):
    """No way to cut gives a longer context, but for what scratch is overestimated."""
    ways = [(chosen, way) for chosen in choices(kinds) for way in every_way(LAYERS, len(chosen))]
    taken = {
        (chosen, way, context): footprints(
            "llama", tuple(kinds[n] for n in chosen), way, context, parallel
        )
        for chosen, way in ways
        for context in every_context()
    }
    alone = sum(footprints("llama", kinds[:1], (range(LAYERS),), CONTEXT, parallel)[0].values())
    sizes = [data.draw(st.integers(alone // 4, alone + alone // 4)) for _ in kinds]
    rooms = rooms_of(kinds, sizes)
    possible = best(taken, rooms)
    try:
        proposal = fit_model(*header("llama"), rooms, Wish(parallel))
    except OutOfMemory:
        found = 0
    else:
        found = proposal.design.model.limits.context
        assert fits(proposal.design.footprints(), proposal.rooms)
    assert found <= possible
    assert found >= best(taken, rooms_of(kinds, [size - size // 4 for size in sizes]))


def choices(kinds):
    numbers = range(len(kinds))
    return [c for count in range(1, len(kinds) + 1) for c in combinations(numbers, count)]


def best(taken, rooms):
    """Return the longest context of all ways to cut, 0 for none."""
    return max(
        (
            context
            for (chosen, _, context), footprint in taken.items()
            if fits(footprint, tuple(rooms[n] for n in chosen))
        ),
        default=0,
    )


def propose(sizes, header=LLAMA_70B.header, **wish):
    rooms = tuple(Room(f"cuda:{n}", CUDA, int(size * GIB)) for n, size in enumerate(sizes))
    return fit_model(*header, rooms, Wish(**wish))


def context_of(proposal):
    return proposal.design.model.limits.context


def test_a_70b_model_is_fitted_within_two_seconds():
    """A machine that is not here is searched quickly, for one device or several."""
    for sizes in [(48,), (24, 24), (24,) * 4]:
        started = time.process_time()
        propose(sizes)
        assert time.process_time() - started < 2


def test_what_is_proposed_fits_and_a_block_more_does_not():
    """Context, scratch and records are in the plan, so that no layer is left over (39, 32)."""
    proposal = propose([48])
    (need,) = needs(proposal.design.footprints(), proposal.rooms)
    assert 48 * GIB - 12 * CUDA.granularity < need <= 48 * GIB
    more = choose_limits(LLAMA_70B.header[0], context=context_of(proposal) + 32)
    (need,) = needs(proposal.design.footprints(more), proposal.rooms)
    assert need > 48 * GIB
    assert context_of(proposal) % 32 == 0


def test_the_model_is_whole_or_refused():
    """No layer is left to another device in silence: all of them are planned, in order (34)."""
    for sizes in [(141,), (24, 26), (80, 10, 24)]:
        proposal = propose(sizes)
        assert [n for run in proposal.design.layers for n in run] == list(range(80))
        assert len(proposal.design.layers) == len(proposal.rooms)


def test_one_device_is_enough_where_it_is():
    """More devices are used only for a longer context, the freest first."""
    assert [room.device for room in propose([48, 141, 48]).rooms] == ["cuda:1"]
    assert [room.device for room in propose([24, 24]).rooms] == ["cuda:0", "cuda:1"]
    small = propose([8, 20, 16], LLAMA_8B.header, context=4096)
    assert [room.device for room in small.rooms] == ["cuda:1"]


def test_a_wished_context_is_kept():
    """With a context, only the devices are searched."""
    proposal = propose([80, 24], context=131_072)
    assert context_of(proposal) == 131_072
    assert len(proposal.rooms) == 2


def test_shares_are_kept():
    """With shares, every device named is used and only the context is searched."""
    proposal = propose([141, 141], shares=(3.0, 1.0))
    first, second = map(len, proposal.design.layers)
    assert (first, second) == (61, 19)
    assert context_of(proposal) == 131_072


def test_parallel_sequences_share_what_there_is():
    """Twice the sequences have half the context each; their number is never raised (35)."""
    one, four = context_of(propose([60])), context_of(propose([60], parallel=4))
    assert one // 4 - 32 <= four <= one // 4


def test_the_end_with_the_output_matrix_gets_fewer_layers():
    """What lies at the ends is planned where it lies, not beside the devices (33)."""
    proposal = propose([20, 20, 20])
    *_, plan = proposal.design.plans
    assert "output.weight" in plan.weights.slots
    assert len(proposal.design.layers[-1]) < len(proposal.design.layers[1])


def test_fitting_again_gives_the_same():
    """Nothing is added to what was planned before (25)."""
    contexts = {context_of(propose([24, 26])) for _ in range(3)}
    assert len(contexts) == 1


def test_staging_and_records_are_on_the_host():
    """A device with memory of its own pays neither; the CPU, if it takes part, does."""
    rooms = (Room("cuda:0", CUDA, 24 * GIB), Room("cpu", CPU_TRAITS, 64 * GIB))
    proposal = fit_model(*LLAMA_70B.header, rooms, Wish(context=8192, shares=(1.0, 2.0)))
    first, second = proposal.design.footprints()
    taken = needs((first, second), rooms)
    on_host = first[Lifetime.STAGING] + first[Lifetime.RECORDS]
    assert taken[0] == sum(first.values()) - on_host
    assert taken[1] == sum(second.values()) + on_host


def test_a_refusal_has_its_numbers():
    """What is missing is said in bytes, by device and by lifetime, and can be read by a program."""
    with pytest.raises(OutOfMemory) as caught:
        propose([24])
    error = caught.value
    assert error.available_bytes == 24 * GIB
    assert error.needed_bytes > 42 * GIB
    text = str(error)
    assert text.startswith("with a context of 32 × 1 19.3 GiB are missing: cuda:0 needs 43.3 GiB (")
    for part in ("weights 42.6 GiB", "context 640.0 MiB", "has 24.0 GiB", "fewer bits a weight"):
        assert part in text


@pytest.mark.parametrize(
    ("sizes", "wish", "advice"),
    [
        ((48,), {"context": 131_072}, "it fits with --context 12000"),
        ((48,), {"context": 22_000}, "--context 12000 or --kv-type q8_0"),
        ((48,), {"context": 8192, "parallel": 8}, "--context 1472 or --parallel 1"),
        ((44,), {"parallel": 256, "context": 8192}, "use a file with fewer bits"),
        ((20, 20), {}, "the weights alone take 42.6 GiB"),
        ((24, 24, 24), {"shares": (3.0, 1.0, 1.0)}, "use a file with fewer bits"),
    ],
)
def test_a_refusal_says_what_would_fit(sizes, wish, advice):
    """Advice was tried: with it, the model fits."""
    with pytest.raises(OutOfMemory, match=advice):
        propose(sizes, **wish)


def test_more_devices_than_layers():
    """Devices that no layer is left for are not used; with shares they must be."""
    rooms = rooms_of(["cpu"] * 5, [GIB] * 5)
    assert len(fit_model(*header("llama"), rooms, Wish()).rooms) == 1
    with pytest.raises(InvalidArgument, match="3 layers, which cannot be split over 5"):
        fit_model(*header("llama"), rooms, Wish(shares=(1.0,) * 5))


def test_no_room_at_all():
    """A full device is refused with what it lacks."""
    with pytest.raises(OutOfMemory, match=r"has 0 B beside the margin"):
        propose([-1])
