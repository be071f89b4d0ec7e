"""What a worker is told of its model's preset."""

from dataclasses import fields

from corral.contract.worker import AdapterSpec, WorkerSpec
from corral.router.children import Order, spec_of
from corral.router.entry import HOST, ModelEntry, Preset
from corral.router.placing import Need
from machines import machine


def test_everything_that_a_preset_says_of_loading_reaches_the_worker():
    """Each field that both have is passed on, changed from its default."""
    preset = Preset(
        name="named",
        context=100,
        parallel=3,
        kv_type="q8_0",
        kv_blocks=9,
        context_shift=True,
        keep=4,
        embeddings=True,
        threads=2,
        chunk_beside=32,
        template="{{ messages }}",
        adapters=(("style.gguf", 0.5),),
        drain_s=4.0,
    )
    need = Need(("cpu",), {HOST: 5})
    spec = spec_of(Order(ModelEntry(preset, ("m.gguf",)), need, machine(10)))
    theirs = set(WorkerSpec.__struct_fields__) - {"devices", "split"}
    assert spec.adapters == (AdapterSpec("style.gguf", 0.5),)
    theirs -= {"adapters"}
    shared = [field.name for field in fields(Preset) if field.name in theirs]
    assert {name: getattr(spec, name) for name in shared} == {
        name: getattr(preset, name) for name in shared
    }
    assert "template" in shared
    assert spec.model == "m.gguf"
