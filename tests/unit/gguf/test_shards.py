"""Opening models: single files, sets of shards, and reading bytes of tensors."""

import shutil
import threading
from pathlib import Path

import pytest

from corral.errors import Closed, InvalidArgument, InvalidModelFile, ModelNotFound
from corral.gguf import Value, ValueType, open_model, write_model
from corral.gguf.shards import ShardName
from corral.quant.types import DType
from unit.gguf.raw_file import RawFile


def split_keys(number: int, count: int = 3, tensors: int = 4) -> dict[str, Value]:
    return {
        "split.no": Value(ValueType.UINT16, number),
        "split.count": Value(ValueType.UINT16, count),
        "split.tensors.count": Value(ValueType.INT32, tensors),
    }


def write_set(folder: Path, stem: str = "model") -> list[Path]:
    """Write three shards: metadata only, one tensor, three tensors."""
    paths = [folder / f"{stem}-{n:05}-of-00003.gguf" for n in (1, 2, 3)]
    row = (DType.F32, (4,))
    write_model(paths[0], {"general.architecture": "llama", **split_keys(0)}, {})
    write_model(paths[1], split_keys(1), {"a": (*row, bytes(range(16)))})
    write_model(paths[2], split_keys(2), {n: (*row, n.encode() * 16) for n in "bcd"})
    return paths


@pytest.mark.parametrize("named", [0, 2])
def test_a_set_is_one_model(tmp_path: Path, named: int):
    """Naming any shard opens the set: metadata of the first, tensors of all."""
    paths = write_set(tmp_path)
    with open_model(paths[named]) as model:
        assert model.paths == tuple(paths)
        assert model.path == paths[0]
        assert model.size_bytes == sum(p.stat().st_size for p in paths)
        assert model.metadata.architecture == "llama"
        assert {n: t.file for n, t in model.tensors.items()} == {"a": 1, "b": 2, "c": 2, "d": 2}
        found = bytearray(16)
        model.read("c", found)
        assert found == b"c" * 16


def test_wrong_number(tmp_path: Path):
    """G108: a shard under another shard's name is refused."""
    paths = write_set(tmp_path)
    shutil.copy(paths[2], paths[1])
    with pytest.raises(InvalidModelFile, match=r"00002-of-00003\.gguf: split\.no is 2, expected 1"):
        open_model(paths[0])


def test_wrong_count(tmp_path: Path):
    """G109: a count that contradicts the file names is refused."""
    paths = write_set(tmp_path)
    write_model(paths[1], split_keys(1, count=4), {"a": (DType.F32, (4,), bytes(16))})
    with pytest.raises(InvalidModelFile, match=r"split\.count is 4, expected 3"):
        open_model(paths[0])


def test_missing_shard(tmp_path: Path):
    """G110: a missing shard is named."""
    paths = write_set(tmp_path)
    paths[1].unlink()
    with pytest.raises(ModelNotFound, match=r"model-00002-of-00003\.gguf"):
        open_model(paths[0])


@pytest.mark.parametrize(
    ("keys", "names", "message"),
    [
        (split_keys(1, tensors=9), "a", r"split\.tensors\.count is 9"),
        (split_keys(1), "ae", "hold 5 tensors"),
        (split_keys(1), "b", "also in"),
        ({**split_keys(1), "general.architecture": "qwen2"}, "a", "differs"),
    ],
)
def test_shard_of_another_model(tmp_path: Path, keys: dict[str, Value], names: str, message: str):
    """G111: shards of different models are refused by counts, names or architecture."""
    paths = write_set(tmp_path)
    write_model(paths[1], keys, {n: (DType.F32, (4,), bytes(16)) for n in names})
    with pytest.raises(InvalidModelFile, match=message):
        open_model(paths[0])


@pytest.mark.parametrize("stem", ["%s%n%d", "..", "a b", "ä"])
def test_odd_stems(tmp_path: Path, stem: str):
    """G112: names are taken literally, siblings never leave the folder."""
    paths = write_set(tmp_path, stem)
    with open_model(paths[0]) as model:
        assert {p.parent for p in model.paths} == {tmp_path}


@pytest.mark.parametrize(
    "name", ["m-00000-of-00002.gguf", "m-00003-of-00002.gguf", "m-00001-of-99999.gguf"]
)
def test_impossible_names(tmp_path: Path, name: str):
    """A name whose number does not fit its count, or that asks for too many files, is refused."""
    (tmp_path / name).write_bytes(RawFile().build())
    with pytest.raises(InvalidModelFile, match="the name tells shard"):
        open_model(tmp_path / name)


def test_renamed_set(tmp_path: Path):
    """A shard without a shard's name says how it should be called."""
    paths = write_set(tmp_path)
    with pytest.raises(InvalidModelFile, match="-00001-of-00003"):
        open_model(paths[0].rename(tmp_path / "renamed.gguf"))


def test_a_single_file_may_be_called_like_a_shard(tmp_path: Path):
    """A whole model whose name looks like a shard's opens alone."""
    path = tmp_path / "model-00001-of-00002.gguf"
    path.write_bytes(RawFile().build())
    with open_model(path) as model:
        assert model.paths == (path,)


def test_shard_names():
    """File names of shards are parsed and printed."""
    name = ShardName.parse("a-00002-of-00010.gguf")
    assert name == ShardName("a", 2, 10)
    assert str(name) == "a-00002-of-00010.gguf"
    assert ShardName.parse("a-2-of-10.gguf") is None


@pytest.fixture
def model_path(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(RawFile().build())
    return path


def test_reads_ranges(model_path: Path):
    """Any range of a tensor can be read; ranges outside are refused."""
    with open_model(model_path) as model:
        part = bytearray(5)
        model.read("t", part, start=27)
        assert part == bytes(range(27, 32))
        model.read("t", bytearray(0), start=32)
        for size, start in ((6, 27), (1, -1), (33, 0)):
            with pytest.raises(InvalidArgument, match="it has 32"):
                model.read("t", bytearray(size), start)
        with pytest.raises(InvalidArgument, match="no tensor"):
            model.read("u", bytearray(1))
        with pytest.raises(InvalidArgument, match="writable"):
            model.read("t", bytes(4))  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument, match="contiguous"):
            model.read("t", memoryview(bytearray(8))[::2])


def test_reading_a_file_that_shrank(model_path: Path):
    """A file truncated after opening gives an error, where a mapping would kill the process."""
    with open_model(model_path) as model:
        model_path.write_bytes(b"")
        with pytest.raises(InvalidModelFile, match="ends at byte"):
            model.read("t", bytearray(32))


def test_use_after_close(model_path: Path):
    """Closing twice is fine, reading afterwards is an error, the header stays readable."""
    model = open_model(model_path)
    model.close()
    model.close()
    assert list(model.tensors) == ["t"]
    with pytest.raises(Closed):
        model.read("t", bytearray(1))


def test_collected_open_warns(model_path: Path):
    """A model that nobody closed warns when it is collected."""
    with pytest.warns(ResourceWarning, match=r"model\.gguf"):
        open_model(model_path)


def test_failed_opening_leaves_nothing_open(tmp_path: Path):
    """After a refused set no descriptor stays open."""
    paths = write_set(tmp_path)
    paths[2].write_bytes(b"bad")
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(InvalidModelFile):
        open_model(paths[0])
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_threads_read_at_once(tmp_path: Path):
    """Several threads read different parts at the same time."""
    path = tmp_path / "model.gguf"
    data = bytes(range(256)) * 4096
    write_model(path, {}, {"t": (DType.I8, (len(data),), data)})
    found = bytearray(len(data))
    with open_model(path) as model:
        step = len(data) // 4
        threads = [
            threading.Thread(
                target=model.read,
                args=("t", memoryview(found)[i * step : (i + 1) * step], i * step),
            )
            for i in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == data
