"""What a router learns of a header is what loading it would plan."""

import json
from dataclasses import replace

import pytest

import adapters
import tiny
from corral.devices.cuda.traits import cuda_traits
from corral.engine.model import Model
from corral.engine.planning import plan
from corral.gguf import fingerprint, open_model
from corral.memory.lifetime import is_elsewhere
from corral.models.footprint import choose_limits, write_graph
from corral.models.split import design_split, split_by_weights
from corral.router.entry import Preset, Unusable
from corral.router.footprints import plan_header
from corral.router.plan_job import PlanJob
from corral.router.planned_text import from_json, to_json
from corral.router.splitting import Splitter
from headers import LLAMA_8B, Sizes, write_sparse

KINDS = ("cpu", "cuda")


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    path = tmp_path_factory.mktemp("large") / "8B.gguf"
    write_sparse(path, LLAMA_8B)
    return path


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_a_whole_model_takes_what_is_planned_for_it(tmp_path, family):
    """By lifetime, on the CPU and on a card whose context is counted elsewhere."""
    path = tiny.write(tmp_path / "m.gguf", family)
    found = plan_header(
        PlanJob(path=str(path), kinds=KINDS, parallel=3, kv_type="bf16", context=64)
    )
    on_cpu = plan(path, parallel=3, kv_type="bf16", context=64, device="cpu")
    assert found.footprint("cpu").own == {r.lifetime: r.bytes for r in on_cpu.rows if r.bytes}
    assert found.footprint("cpu").host == {}
    on_card = plan(path, parallel=3, kv_type="bf16", context=64, device="cuda:0")
    own, host = ({r.lifetime: r.bytes for r in part.rows if r.bytes} for part in on_card.devices)
    own.pop("context")
    assert found.footprint("cuda").own == own
    assert found.footprint("cuda").host == host
    assert (found.context, found.trained_context) == (64, tiny.CONTEXT)
    assert found.num_layers == tiny.LAYERS[family]
    with open_model(path) as file:
        assert found.fingerprint == fingerprint(file)


def test_adapters_are_booked_to_the_byte(tmp_path):
    """All headers say what a model holds with its adapters; one that does not fit is told."""
    path = tiny.write(tmp_path / "m.gguf")
    files = [adapters.write(tmp_path / f"{n}.gguf", n, rank=8 * n + 4) for n in range(3)]
    names = tuple(map(str, files))
    job = PlanJob(path=str(path), kinds=("cpu",), parallel=3, context=64, adapters=names)
    found = plan_header(PlanJob.from_json(json.loads(json.dumps(job.to_json()))))
    with Model.load(path, device="cpu", parallel=3, context=64) as model:
        for file in files:
            model.adapters.load(file)
        assert found.footprint("cpu").own_bytes == model.memory().total_bytes
    other = adapters.write(tmp_path / "other.gguf", family="qwen3")
    refused = plan_header(replace(job, adapters=(str(other),)))
    assert isinstance(refused, Unusable) and refused.code == "invalid_adapter"


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_layers_add_up_to_the_whole(tmp_path, family):
    """Weights and state of all layers are those of the model, up to the driver's granularity."""
    path = tiny.write(tmp_path / "m.gguf", family)
    for footprint in plan_header(PlanJob(path=str(path), kinds=KINDS)).footprints:
        layers = footprint.layers.run_bytes(0, tiny.LAYERS[family])
        whole = footprint.own["weights"] + footprint.own["state"]
        assert layers <= whole < layers + 2 * footprint.granularity


@pytest.mark.parametrize("shares", [(1.0, 1.0), (3.0, 1.0), (1.0, 2.0, 4.0)])
def test_a_split_takes_no_more_than_what_is_booked(large, shares):
    """A worker told the booked weights plans these layers, and little less than was booked."""
    job = PlanJob(path=str(large), kinds=("cuda",), parallel=2)
    (footprint,) = plan_header(job).footprints
    traits = [cuda_traits(0)] * len(shares)
    parts = Splitter([footprint] * len(shares)).by_shares(shares)
    with open_model(large, skip_arrays=True) as file:
        limits = choose_limits(file.metadata, parallel=2, chunk=traits[0].chunk_tokens)
        model = write_graph(file.metadata, file.tensors, limits)
    runs = split_by_weights(model, traits, [float(part.weights_bytes) for part in parts])
    assert [(run.start, run.stop) for run in runs] == [(part.first, part.end) for part in parts]
    design = design_split(model, traits, runs)
    for part, sizes, device in zip(parts, design.footprints(), traits, strict=True):
        own = sum(size for life, size in sizes.items() if not is_elsewhere(life, device))
        assert own <= part.own_bytes <= own * 1.2 + (64 << 20)


def test_mixed_devices_have_one_size_of_step(large):
    """The CPU beside a card computes chunks as large as the card's."""
    alone = plan_header(PlanJob(path=str(large), kinds=KINDS))
    mixed = plan_header(PlanJob(path=str(large), kinds=KINDS, are_mixed=True))
    assert mixed.footprint("cpu").own["scratch"] > alone.footprint("cpu").own["scratch"]
    assert mixed.footprint("cuda") == alone.footprint("cuda")


@pytest.mark.parametrize(
    ("content", "code"), [(None, "model_not_found"), (b"GGUF", "invalid_model_file")]
)
def test_a_bad_file_is_an_answer(tmp_path, content, code):
    """With the code of the error and its text."""
    path = tmp_path / "m.gguf"
    if content is not None:
        path.write_bytes(content)
    found = plan_header(PlanJob(path=str(path), kinds=KINDS))
    assert found.code == code
    assert "m.gguf" in found.message


def test_a_wrong_preset_is_an_answer(tmp_path):
    """A context that the model does not have is told before anything is loaded."""
    path = tiny.write(tmp_path / "m.gguf")
    found = plan_header(PlanJob(path=str(path), kinds=KINDS, context=10**6))
    assert found.code == "invalid_argument"
    assert "context is 1000000" in found.message


def test_a_model_of_an_unknown_family_is_an_answer(tmp_path):
    """It is named."""
    path = tmp_path / "m.gguf"
    sizes = Sizes(1, 256, 256, 1, 1, 256)
    write_sparse(path, sizes)
    path.write_bytes(
        path.read_bytes().replace(b"\x05\0\0\0\0\0\0\0llama", b"\x05\0\0\0\0\0\0\0alpha")
    )
    assert plan_header(PlanJob(path=str(path), kinds=KINDS)).code == "unsupported_model"


def test_what_was_found_survives_as_text(tmp_path):
    """To JSON and back."""
    found = plan_header(PlanJob(path=str(tiny.write(tmp_path / "m.gguf", "gemma3")), kinds=KINDS))
    assert from_json(json.loads(json.dumps(to_json(found)))) == found
    bad = Unusable("model", "it is bad")
    assert from_json(json.loads(json.dumps(to_json(bad)))) == bad


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.pop("fingerprint"),
        lambda d: d.update(context=-1),
        lambda d: d.update(layers="2"),
        lambda d: d.update(footprints=None),
        lambda d: d["footprints"][0].update(weights=[]),
        lambda d: d["footprints"][0]["own"].update(weights=1.5),
        lambda d: d["footprints"][0].update(shared=[[1]]),
        lambda d: d.update(advice={"temperature": "hot"}),
    ],
)
def test_damaged_text_is_not_believed(tmp_path, change):
    """None of it."""
    found = to_json(plan_header(PlanJob(path=str(tiny.write(tmp_path / "m.gguf")), kinds=KINDS)))
    data = json.loads(json.dumps(found))
    change(data)
    with pytest.raises(ValueError):
        from_json(data)


def test_a_job_follows_its_preset():
    """Kinds are those of the machine unless devices are named."""
    auto = PlanJob.of("m", Preset(name="m", parallel=2, context=7), ("cpu", "cuda"))
    assert (auto.kinds, auto.are_mixed, auto.parallel, auto.context) == (KINDS, False, 2, 7)
    mixed = PlanJob.of("m", Preset(name="m", devices=("cuda:0", "cpu")), ("cpu",))
    assert (mixed.kinds, mixed.are_mixed) == (KINDS, True)
    assert PlanJob.of("m", Preset(name="m", devices=("GPU-1",)), ("cpu",)).kinds == ("cuda",)
    assert PlanJob.from_json(json.loads(json.dumps(mixed.to_json()))) == mixed
