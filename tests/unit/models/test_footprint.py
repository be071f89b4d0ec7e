"""Planning: every byte of a large model is known from its header, soon, and without NumPy."""

import os
import subprocess
import sys
import time

import pytest

import tiny
from corral.devices.cpu.traits import CPU_TRAITS
from corral.devices.reference.device import reference_traits
from corral.errors import InvalidArgument, UnsupportedModel
from corral.gguf import open_model
from corral.memory.lifetime import Lifetime
from corral.models.architecture import architecture, architectures
from corral.models.footprint import Limits, choose_limits, design_model
from headers import LLAMA_8B, LLAMA_70B, write_sparse

PAGE = CPU_TRAITS.granularity


KV_BYTES = {"f32": (4, 1), "f16": (2, 1), "bf16": (2, 1), "q8_0": (34, 32)}
"""Bytes of so many elements."""


def pages(size):
    return -(-size // PAGE) * PAGE


def lines(size):
    return -(-size // 64) * 64


def by_hand(sizes, limits):
    """Return the bytes of each lifetime on the CPU, from sizes alone."""
    s, rows, outputs = sizes, limits.chunk, min(limits.outputs, limits.chunk)
    kv = s.kv_heads * s.head_dim
    # A span of 256 columns: Q4_K is 128 bytes of codes, 8 scales, 8 minima, two F16; Q6_K is 192
    # bytes of codes, 16 scales, one F16.
    four, six = 128 + 8 + 8 + 4, 192 + 16 + 2
    layer = (
        (2 * s.width * s.width + kv * s.width + 2 * s.ffn * s.width) // 256 * four
        + (kv * s.width + s.width * s.ffn) // 256 * six
        + 2 * s.width * 4
    )
    ends = s.vocabulary * s.width // 256 * (four + six) + s.width * 4
    frequencies = s.head_dim // 2 * 8
    blocks = -(-limits.context // 32)
    kv_bytes, kv_elements = KV_BYTES[limits.kv_type]
    position = 2 * kv // kv_elements * kv_bytes
    # The arena is fullest when the feed-forward block is gated: the residual, the rotations, gate
    # and up in F32, and their product as 8-bit codes with a scale and a sum for each 32; or, when
    # rows are few, at the logits, which are made of 16-bit codes.
    gated = rows * (4 * s.width + 4 * s.head_dim + 8 * s.ffn + s.ffn + s.ffn // 32 * 8)
    logits = outputs * (4 * s.vocabulary + 2 * s.width + s.width // 32 * 8)
    # Beside the values lie each worker's columns of the widest product, and for each sequence and
    # head the sums of attention over each segment of blocks.
    workspace = CPU_TRAITS.workers * (128 * 1024 + 32 * s.ffn)
    segments = limits.parallel * -(-blocks // CPU_TRAITS.segment_blocks)
    sums = segments * s.heads * (64 + 4 * s.head_dim)
    tables = limits.parallel * blocks * 4
    staging = 64 + 3 * lines(rows * 4) + lines(tables) + lines(outputs * 4)
    # norm, q, k, v, two ropes, append, attention (two), codes, output; norm, gate, up, gated, down;
    # rotations and embedding before, selection, norm and logits after.
    records = 16 * s.layers + 5
    return {
        Lifetime.WEIGHTS: pages(s.layers * layer + ends + frequencies),
        Lifetime.STATE: pages(s.layers * limits.parallel * blocks * 32 * position),
        Lifetime.SCRATCH: pages(max(gated, logits) + workspace + sums),
        Lifetime.STAGING: pages(staging),
        Lifetime.RECORDS: pages(records * 256),
        Lifetime.CONTEXT: 0,
    }


@pytest.mark.parametrize(
    ("sizes", "limits"),
    [
        (LLAMA_70B, Limits(4096)),
        (LLAMA_70B, Limits(131_072, parallel=16)),
        (LLAMA_8B, Limits(1000, parallel=3, kv_type="q8_0", chunk=100, outputs=10)),
        (LLAMA_8B, Limits(33, kv_type="f32", chunk=33)),
    ],
    ids=["70B", "70B long", "8B q8_0", "8B short"],
)
def test_every_lifetime_is_what_a_person_computes(sizes, limits):
    """Planned bytes equal a computation that knows nothing of graphs and planners."""
    design = design_model(*sizes.header, limits, CPU_TRAITS)
    assert by_hand(sizes, limits) == design.plan.footprint()


def test_a_70b_model_is_planned_within_a_second():
    """Planning is quick enough to try many settings."""
    header = LLAMA_70B.header
    started = time.process_time()
    design_model(*header, Limits(8192), CPU_TRAITS)
    assert time.process_time() - started < 1


PLAN = """
import sys
from corral.devices.cpu.traits import CPU_TRAITS
from corral.gguf import open_model
from corral.models.footprint import choose_limits, design_model
with open_model(sys.argv[1]) as file:
    limits = choose_limits(file.metadata, context=4096)
    design = design_model(file.metadata, file.tensors, limits, CPU_TRAITS)
print(sum(design.plan.footprint().values()))
print(*sorted({name.split(".")[0] for name in sys.modules} & {"numpy", "llvmlite", "psutil"}))
"""


def test_a_file_is_planned_without_numpy(tmp_path):
    """A process that only plans loads neither NumPy nor a compiler."""
    path = tmp_path / "70b.gguf"
    write_sparse(path, LLAMA_70B)
    done = subprocess.run(
        [sys.executable, "-c", PLAN, path],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    total, modules = done.stdout.split("\n")[:2]
    assert int(total) == sum(by_hand(LLAMA_70B, Limits(4096)).values())
    assert modules == ""


def test_a_header_and_its_file_plan_alike(tmp_path):
    """What is planned depends on the header alone."""
    for family in tiny.FAMILIES:
        with open_model(tiny.write(tmp_path / f"{family}.gguf", family)) as file:
            read = design_model(file.metadata, file.tensors, Limits(64), CPU_TRAITS)
        made = design_model(*tiny.header(family), Limits(64), CPU_TRAITS)
        assert made.plan.footprint() == read.plan.footprint()


def test_windowed_layers_keep_a_window():
    """Layers with a window hold its blocks, others the whole context."""
    limits = Limits(256, parallel=2, chunk=40)
    design = design_model(*tiny.header("gemma3"), limits, CPU_TRAITS)
    # A chunk of 40 sees 19 positions before it: 59 positions touch at most 3 blocks of 32.
    assert [(g.window, g.num_blocks) for g in design.kv.groups] == [(20, 2 * 3), (None, 2 * 8)]
    block = 2 * tiny.KV_HEADS * 32 * tiny.HEAD_DIM * 2
    assert design.plan.footprint()[Lifetime.STATE] == pages((5 * 6 + 16) * block)


def test_windows_beyond_the_context_cost_no_more():
    """A window is never given more blocks than the context has."""
    header = tiny.header("gemma3", **{"attention.sliding_window": 1 << 40})
    design = design_model(*header, Limits(256), CPU_TRAITS)
    assert [group.num_blocks for group in design.kv.groups] == [8, 8]


def test_one_graph_is_planned_for_two_devices():
    """A plan belongs to a device, a graph to none: the same header serves both."""
    header = tiny.header()
    packed = design_model(*header, Limits(64), CPU_TRAITS).plan.footprint()
    plain = design_model(*header, Limits(64), reference_traits()).plan.footprint()
    assert packed[Lifetime.STATE] == plain[Lifetime.STATE]
    assert packed[Lifetime.RECORDS] != plain[Lifetime.RECORDS]


def test_quantized_caches_need_whole_blocks():
    """Heads that Q8_0 cannot hold are a wrong setting, not a wrong file."""
    with pytest.raises(InvalidArgument, match="KV type q8_0"):
        design_model(*tiny.header(), Limits(64, kv_type="q8_0"), CPU_TRAITS)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"context": 0}, "context is 0"),
        ({"context": tiny.CONTEXT + 1}, f"1 to {tiny.CONTEXT}"),
        ({"parallel": 0}, "parallel is 0"),
        ({"parallel": 257}, "parallel is 257"),
        ({"kv_type": "q3"}, "KV type is 'q3'"),
    ],
)
def test_settings_out_of_range_are_refused(settings, named):
    """A setting is refused with what it is and what it may be."""
    with pytest.raises(InvalidArgument, match=named):
        choose_limits(tiny.header()[0], **settings)


def test_default_limits():
    """The context is the model's own, at most 4096; a chunk no more than there can be."""
    assert choose_limits(tiny.header()[0]) == Limits(tiny.CONTEXT, chunk=tiny.CONTEXT)
    assert choose_limits(LLAMA_70B.header[0]) == Limits(4096, chunk=512)
    assert choose_limits(LLAMA_70B.header[0], parallel=64) == Limits(4096, 64, outputs=64)


def test_architectures_are_found_by_name():
    """Every family module is an architecture; anything else is refused."""
    assert set(tiny.FAMILIES) <= set(architectures())
    for name in architectures():
        assert architecture(name)
    with pytest.raises(UnsupportedModel):
        architecture("hyper")
