"""Whole files quantized: the same bytes as tensor by tensor, or an error and no file."""

import os
import shutil
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest

import tiny
from corral.engine import quantizing
from corral.engine.quantizing import convert, plan_conversion
from corral.errors import InvalidArgument, InvalidModelFile, ResourceError, UnsupportedModel
from corral.gguf import Value, ValueType, Writer, open_model, read_header, write_model
from corral.models.mixture import mixture
from corral.quant.dequantize import dequantize
from corral.quant.quantize import quantize
from corral.quant.types import DType


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A tiny model in F32."""
    return tiny.write(tmp_path / "tiny.gguf")


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """Where the new file goes: a folder with nothing else in it."""
    (tmp_path / "new").mkdir()
    return tmp_path / "new" / "model.gguf"


def run(source: Path, target: Path, name: str = "Q4_K_M", **options) -> None:
    """Quantize a file; options are those of `plan_conversion` and `convert`."""
    planned = {key: options.pop(key) for key in ("is_pure", "may_requantize") if key in options}
    with open_model(source) as file:
        convert(file, target, plan_conversion(file, mixture(name), **planned), **options)


def contents(path: Path) -> dict[str, tuple[DType, np.ndarray]]:
    """Return type and values of every tensor."""
    with open_model(path) as file:
        found = {}
        for name, info in file.tensors.items():
            data = np.empty(info.size_bytes, np.uint8)
            file.read(name, data)
            found[name] = (info.dtype, dequantize(data, info.dtype, info.shape))
        return found


def write_one(path: Path, values: np.ndarray, dtype: DType = DType.F32, **keys) -> Path:
    """Write a model of one matrix."""
    data = values if dtype is DType.F32 else quantize(values, dtype)
    table = {"blk.0.ffn_up.weight": (dtype, values.shape, data)}
    write_model(path, {"general.architecture": "llama"} | keys, table)
    return path


@pytest.mark.parametrize("name", ["Q8_0", "Q4_0", "Q4_K_M", "Q5_K_M", "Q6_K", "F16", "BF16"])
def test_every_tensor_is_what_its_type_makes_of_it(source: Path, target: Path, name: str):
    """The types are the mixture's, the values those that quantizing each matrix gives."""
    run(source, target, name)
    with open_model(source) as file:
        expected = {c.name: c.dtype for c in plan_conversion(file, mixture(name)).changes}
    before, after = contents(source), contents(target)
    assert list(after) == list(expected)
    assert {dtype for dtype, _ in after.values()} > {DType.F32}
    for tensor, dtype in expected.items():
        found_type, found = after[tensor]
        assert found_type is dtype
        wanted = dequantize(quantize(before[tensor][1], dtype), dtype, found.shape)
        assert np.array_equal(found, wanted)


def test_metadata_is_kept(source: Path, target: Path):
    """Every key comes along as it was, but for two that tell the types."""
    run(source, target, "Q5_K_S")
    before, after = read_header(source).metadata, read_header(target).metadata
    assert list(after) == [*before, "general.quantization_version", "general.file_type"]
    assert all(after.value(key) == before.value(key) for key in before)
    assert after.value("general.quantization_version") == Value(ValueType.UINT32, 2)
    assert after.value("general.file_type") == Value(ValueType.UINT32, 16)
    run(target, source.with_name("again.gguf"), "Q8_0", may_requantize=True)
    again = read_header(source.with_name("again.gguf")).metadata
    assert list(again) == list(after)
    assert again.int("general.file_type") == 7


def test_pieces_and_threads_change_nothing(source: Path, target: Path, monkeypatch):
    """However a tensor is cut and whoever rounds it, the file is the same."""
    run(source, target)
    whole = target.read_bytes()
    monkeypatch.setattr(quantizing, "_PIECE_ELEMENTS", 3 * tiny.WIDTH)
    for threads in (1, 3):
        run(source, target, threads=threads)
        assert target.read_bytes() == whole


def test_few_pieces_are_held_at_a_time(source: Path, target: Path, monkeypatch):
    """Threads begin no more pieces than a few before the first of them is written."""
    begun = []
    monkeypatch.setattr(quantizing, "_PIECE_ELEMENTS", tiny.WIDTH)

    def encode(values, dtype):
        begun.append(len(values))
        return quantize(values, dtype)

    def watch(stage, done, total):
        begun.pop()  # one is written; encoding one more may have begun meanwhile
        assert len(begun) <= 4 + 1

    with open_model(source) as file:
        conversion = plan_conversion(file, mixture("F16"))
        changed = [c for c in conversion.changes if not c.is_copy]
        only = quantizing.Conversion(conversion.to, tuple(changed))
        convert(file, target, only, threads=2, encode=encode, progress=watch)
    assert not begun


def test_progress_ends_at_the_bytes_that_are_read(source: Path, target: Path):
    """Progress grows to the bytes of all tensors."""
    heard = []
    run(source, target, progress=lambda *told: heard.append(told))
    done = [told[1] for told in heard]
    total = sum(t.size_bytes for t in read_header(source).tensors.values())
    assert {told[0] for told in heard} == {"quantize"}
    assert done == sorted(set(done)) and done[-1] == total
    assert {told[2] for told in heard} == {total}


@pytest.mark.parametrize("dtype", [DType.F16, DType.BF16])
def test_other_floats_are_sources(tmp_path: Path, target: Path, dtype: DType):
    """F16 and BF16 files are rounded from the values that they hold."""
    source = tiny.write(tmp_path / "half.gguf", table=tiny.tensors(dtype=dtype))
    run(source, target, "Q8_0")
    held, found = contents(source), contents(target)
    expected = quantize(held["output.weight"][1], DType.Q8_0)
    shape = held["output.weight"][1].shape
    assert np.array_equal(found["output.weight"][1], dequantize(expected, DType.Q8_0, shape))


def test_quantized_files_are_sources_only_if_that_is_said(tmp_path: Path, target: Path):
    """To round twice is refused, unless allowed; what has its type already is copied."""
    table = tiny.tensors(dtype=DType.Q8_0)
    source = tiny.write(tmp_path / "eight.gguf", table=table)
    with pytest.raises(InvalidArgument, match=r"Q8_0 already.*--allow-requantize"):
        run(source, target, "Q4_0")
    assert not target.exists()
    run(source, target, "Q8_0")
    held, found = contents(source), contents(target)
    assert all(np.array_equal(found[name][1], values) for name, (_, values) in held.items())
    run(source, target, "Q4_0", may_requantize=True)
    assert read_header(target).tensors["blk.0.attn_q.weight"].dtype is DType.Q4_0


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("is_copied", [False, True])
def test_values_that_are_no_numbers_are_refused(
    tmp_path: Path, target: Path, bad: float, is_copied: bool
):
    """NaN and infinity are refused with the tensor's name, also where bytes are only copied."""
    values = np.ones((8, 64), np.float32)
    values[5, 7] = bad
    source = write_one(tmp_path / "bad.gguf", values)
    with pytest.raises(InvalidModelFile, match=r"bad\.gguf: tensor 'blk\.0\.ffn_up\.weight' holds"):
        run(source, target, "F32" if is_copied else "Q8_0")
    assert list(target.parent.iterdir()) == []


def test_values_beyond_their_type_are_refused(tmp_path: Path, target: Path):
    """A weight that F16 cannot hold is no reason for a file with infinities."""
    source = write_one(tmp_path / "large.gguf", np.full((4, 32), 1e6, np.float32))
    with pytest.raises(InvalidModelFile, match=r"cannot become F16: .*65504"):
        run(source, target, "F16")
    assert list(target.parent.iterdir()) == []


def test_a_file_is_not_written_onto_itself(source: Path):
    """The model that is read stays, whatever name it is given."""
    before = source.read_bytes()
    link, other = source.with_name("link.gguf"), source.with_name("other.gguf")
    link.symlink_to(source)
    os.link(source, other)
    for name in (source, link, other):
        with pytest.raises(InvalidArgument, match="name another file"):
            run(source, name)
    assert source.read_bytes() == before


def test_a_disk_without_room_is_told_before(source: Path, target: Path, monkeypatch):
    """What does not fit is refused before anything is computed."""
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(2000, 1000, 1000))
    with pytest.raises(ResourceError, match=r"needs .* KiB, 1000 B are free in"):
        run(source, target, encode=None)
    monkeypatch.undo()
    with pytest.raises(ResourceError, match="cannot be written"):
        run(source, target.parent / "none" / "model.gguf", encode=None)


def test_whatever_stops_it_leaves_nothing(source: Path, target: Path):
    """Ctrl-C in the middle, or a fault of the encoder, leaves no file."""

    def interrupt(stage, done, total):
        raise KeyboardInterrupt

    def fail(values, dtype):
        raise MemoryError

    with pytest.raises(KeyboardInterrupt):
        run(source, target, progress=interrupt)
    with pytest.raises(MemoryError):
        run(source, target, encode=fail, threads=2)
    assert list(target.parent.iterdir()) == []


def test_shards_become_one_file(tmp_path: Path, target: Path):
    """A set of shards is read as one model; the new file says nothing of shards."""
    table = tiny.tensors()
    names = list(table)
    for number, part in enumerate((names[:7], names[7:])):
        keys = {"split.no": number, "split.count": 2, "split.tensors.count": len(names)}
        if number == 0:
            keys = tiny.keys() | tiny.vocabulary() | keys
        path = tmp_path / f"m-{number + 1:05}-of-00002.gguf"
        write_model(path, keys, {name: table[name] for name in part})
    run(path, target)
    single = tiny.write(tmp_path / "single.gguf")
    run(single, tmp_path / "expected.gguf")
    assert target.read_bytes() == (tmp_path / "expected.gguf").read_bytes()


def test_the_alignment_stays(tmp_path: Path, target: Path):
    """A file with another alignment keeps it."""
    source = tmp_path / "wide.gguf"
    with Writer(source, alignment=256) as writer:
        writer.add("general.architecture", "llama")
        for name in ("a.weight", "b.weight"):
            writer.declare(name, DType.F32, (3, 32))
        for name in ("a.weight", "b.weight"):
            writer.write(name, np.ones((3, 32), np.float32))
    run(source, target, "Q8_0")
    header = read_header(target)
    assert header.metadata.int("general.alignment") == 256
    assert all(tensor.offset % 256 == 0 for tensor in header.tensors.values())


def test_what_is_no_model_is_refused(tmp_path: Path, target: Path):
    """Adapters, and types that nothing here can decode, are refused by name."""
    values = np.ones((8, 256), np.float32)
    adapter = write_one(tmp_path / "a.gguf", values, **{"general.type": "adapter"})
    with pytest.raises(UnsupportedModel, match="is an adapter"):
        run(adapter, target)
    odd = tmp_path / "odd.gguf"
    table = {"x.weight": (DType.IQ2_XXS, (2, 256), bytes(132))}
    write_model(odd, {"general.architecture": "llama"}, table)
    with pytest.raises(UnsupportedModel, match="IQ2_XXS, which cannot be decoded"):
        run(odd, target, may_requantize=True)


def test_numbers_are_copied(tmp_path: Path, target: Path):
    """Tensors of integers are no weights; their bytes come along."""
    source = tmp_path / "m.gguf"
    numbers = np.arange(64, dtype=np.int32).reshape(8, 8)
    table = {"blk.0.ffn_gate_tid2eid.weight": (DType.I32, (8, 8), numbers)}
    write_model(source, {"general.architecture": "llama"}, table)
    run(source, target)
    with open_model(target) as file:
        found = np.empty((8, 8), np.int32)
        file.read("blk.0.ffn_gate_tid2eid.weight", found)
    assert np.array_equal(found, numbers)


def test_a_conversion_tells_its_size(source: Path, target: Path):
    """The bytes of all tensors are known before, and are what the file has."""
    with open_model(source) as file:
        conversion = plan_conversion(file, mixture("Q4_K_M"))
    run(source, target)
    header = read_header(target)
    assert conversion.size_bytes == sum(t.size_bytes for t in header.tensors.values())
    elements = sum(t.num_elements for t in header.tensors.values())
    assert conversion.bits_per_weight == pytest.approx(8 * conversion.size_bytes / elements)
