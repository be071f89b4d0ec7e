"""The writer: what it writes is read back the same, by us and by the reference package."""

import errno
import math
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.errors import Closed, InvalidArgument, ResourceError
from corral.gguf import Metadata, Value, ValueType, Writer, open_model, read_header, write_model
from corral.gguf.values import FORMS, Array, make_value
from corral.quant.types import DType
from source_tree import SOURCE

SCALARS = {
    ValueType.UINT8: 255,
    ValueType.INT8: -128,
    ValueType.UINT16: 65535,
    ValueType.INT16: -32768,
    ValueType.UINT32: 4294967295,
    ValueType.INT32: -2147483648,
    ValueType.FLOAT32: 0.5,
    ValueType.BOOL: True,
    ValueType.STRING: "naïve",
    ValueType.UINT64: 2**64 - 1,
    ValueType.INT64: -(2**63),
    ValueType.FLOAT64: 0.1,
}


def test_every_type_comes_back(tmp_path: Path):
    """Scalars and arrays of all twelve types are read as they were written."""
    path = tmp_path / "model.gguf"
    with Writer(path) as writer:
        for kind, value in SCALARS.items():
            writer.add(f"one.{kind.name}", value, kind)
            writer.add(f"many.{kind.name}", [value, value], kind)
    metadata = read_header(path).metadata
    for kind, value in SCALARS.items():
        assert metadata.value(f"one.{kind.name}") == Value(kind, value)
        content = metadata.value(f"many.{kind.name}").content
        assert isinstance(content, Array)
        assert content.values() == [value, value]
    fields = gguf.GGUFReader(path).fields
    assert fields["one.STRING"].contents() == "naïve"
    assert fields["many.INT64"].contents() == [-(2**63)] * 2


def test_tensors_come_back(tmp_path: Path):
    """Tensor bytes written in pieces are read by us and by the reference package."""
    path = tmp_path / "model.gguf"
    values = np.arange(70, dtype=np.float32).reshape(7, 10)
    with Writer(path, alignment=64) as writer:
        writer.declare("a", DType.F32, (7, 10))
        writer.declare("none", DType.F32, (0, 10))
        writer.declare("b", DType.Q8_0, (2, 32))
        writer.write("a", values[:3])
        writer.write("a", values[3:])
        writer.write("b", bytes(range(68)))
    reference = {t.name: t for t in gguf.GGUFReader(path).tensors if t.name != "none"}
    assert np.array_equal(reference["a"].data, values)
    assert reference["b"].data.tobytes() == bytes(range(68))
    with open_model(path) as model:
        found = np.empty_like(values)
        model.read("a", found)
        assert np.array_equal(found, values)
        assert model.tensors["b"].offset % 64 == 0


@given(
    st.dictionaries(
        st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1, max_size=9),
        st.one_of(
            st.booleans(),
            st.integers(-(2**63), 2**64 - 1),
            st.floats(width=32, allow_nan=False),
            st.text(st.characters(codec="utf-8")),
            st.lists(st.integers(-(2**31), 2**31 - 1)),
            st.lists(st.text(st.characters(codec="utf-8"))),
            st.lists(st.floats(width=32, allow_nan=False)),
            st.lists(st.booleans()),
        ),
    )
)
def test_python_values_come_back(values: dict[str, object]):
    """Metadata built from Python values decode to equal values."""
    metadata = Metadata.of(values)  # type: ignore[arg-type]
    for key, expected in values.items():
        content = metadata.value(key).content
        assert (content.values() if isinstance(content, Array) else content) == expected


INTEGERS = {t: FORMS[t].size * 8 for t in ValueType if t.is_integer}


def integers(kind: ValueType) -> st.SearchStrategy[int]:
    """Return a strategy of everything that an integer type holds."""
    bits = INTEGERS[kind]
    if kind.name.startswith("U"):
        return st.integers(0, 2**bits - 1)
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


CONTENTS = {
    **{kind: integers(kind) for kind in INTEGERS},
    ValueType.FLOAT32: st.floats(width=32, allow_nan=False),
    ValueType.FLOAT64: st.floats(allow_nan=False),
    ValueType.BOOL: st.booleans(),
    ValueType.STRING: st.text(st.characters(codec="utf-8")),
}
NAMES = st.text("abcdefghij._0123456789", min_size=1, max_size=12)
TYPED = st.sampled_from(sorted(CONTENTS)).flatmap(
    lambda kind: st.tuples(st.just(kind), CONTENTS[kind] | st.lists(CONTENTS[kind], max_size=5))
)
TENSORS = st.tuples(
    st.sampled_from([DType.F32, DType.F16, DType.Q4_0, DType.Q6_K, DType.I8, DType.F64]),
    st.lists(st.integers(1, 3), min_size=1, max_size=4),
)


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(NAMES, TYPED, max_size=6),
    st.dictionaries(NAMES, TENSORS, max_size=5),
    st.sampled_from([1, 8, 32, 4096]),
    st.integers(1, 700),
)
def test_whole_files_come_back(tmp_path_factory, typed, table, alignment: int, piece: int):
    """Values of every type and tensors of any shape are read as written, by gguf-py as well."""
    path = tmp_path_factory.getbasetemp() / "any.gguf"
    sizes = {
        name: (dtype, (*shape[:-1], shape[-1] * dtype.block_elements))
        for name, (dtype, shape) in table.items()
    }
    data = {
        name: np.random.default_rng(n).bytes(dtype.row_bytes(shape[-1]) * math.prod(shape[:-1]))
        for n, (name, (dtype, shape)) in enumerate(sizes.items())
    }
    with Writer(path, alignment=alignment) as writer:
        for key, (kind, value) in typed.items():
            writer.add(key, value, kind)
        for name, (dtype, shape) in sizes.items():
            writer.declare(name, dtype, shape)
        for name, content in data.items():
            for at in range(0, len(content), piece):
                writer.write(name, content[at : at + piece])
    assert_values(path, typed)
    assert_tensors(path, sizes, data)


def assert_values(path: Path, typed: dict) -> None:
    """Compare the metadata of a file with what was written."""
    metadata = read_header(path).metadata
    for key, (kind, value) in typed.items():
        assert metadata.value(key) == make_value(value, kind)
    found = gguf.GGUFReader(path).fields
    for key, (kind, value) in typed.items():
        if isinstance(value, list):
            assert [found[key].contents(n) for n in range(len(value))] == value
        else:
            assert found[key].types == [gguf.GGUFValueType(kind)]
            assert found[key].contents() == value


def assert_tensors(path: Path, sizes: dict, data: dict) -> None:
    """Compare the tensors of a file with what was written."""
    with open_model(path) as model:
        for name, (dtype, shape) in sizes.items():
            info = model.tensors[name]
            assert (info.dtype, info.shape) == (dtype, shape)
            read = bytearray(info.size_bytes)
            model.read(name, read)
            assert read == data[name]
    for tensor in gguf.GGUFReader(path).tensors:
        dtype, shape = sizes[tensor.name]
        assert tensor.tensor_type.value == dtype.value.ggml_id
        assert tensor.shape.tolist() == list(reversed(shape))
        assert tensor.data.tobytes() == data[tensor.name]


@pytest.fixture
def nameless_files(tmp_path: Path) -> None:
    """Skip where the file system knows no files without a name."""
    try:
        os.close(os.open(tmp_path, os.O_TMPFILE | os.O_WRONLY))
    except OSError as error:
        pytest.skip(f"files without a name cannot be made here: {error.strerror}")


@pytest.fixture(params=["without a name", "with a hidden name"])
def while_written(request, monkeypatch) -> str:
    """How an unfinished file lies in its folder: as the file system lets it."""
    if request.param == "with a hidden name":
        monkeypatch.delattr(os, "O_TMPFILE")
    else:
        request.getfixturevalue("nameless_files")
    return request.param


def begin(path: Path) -> Writer:
    """Return a writer with half of a tensor written."""
    writer = Writer(path)
    writer.declare("t", DType.F32, (4096,))
    writer.write("t", bytes(8192))
    return writer


def test_nothing_appears_before_the_end(tmp_path: Path, while_written: str):
    """Until it is finished the file has no name of its own, and another keeps its place."""
    path = tmp_path / "a.gguf"
    path.write_bytes(b"before")
    writer = begin(path)
    hidden = [p.name for p in tmp_path.iterdir() if p != path]
    assert bool(hidden) == (while_written == "with a hidden name")
    assert path.read_bytes() == b"before"
    writer.write("t", bytes(8192))
    writer.close()
    assert list(tmp_path.iterdir()) == [path]
    assert read_header(path).tensors["t"].size_bytes == 16384


def test_nothing_appears_after_an_error(tmp_path: Path, while_written: str):
    """A file that is not finished leaves no trace."""
    with pytest.raises(RuntimeError), begin(tmp_path / "a.gguf"):
        raise RuntimeError
    with pytest.raises(InvalidArgument, match="'t' are missing"), begin(tmp_path / "b.gguf"):
        pass
    assert list(tmp_path.iterdir()) == []


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Have the system refuse longer files, as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_leaves_nothing(tmp_path: Path, while_written: str):
    """Bytes that find no room end in a typed error, and what was there stays."""
    path = tmp_path / "a.gguf"
    path.write_bytes(b"before")
    with files_of_at_most(4096), pytest.raises(ResourceError, match="cannot be written"):
        begin(path).close()
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_bytes() == b"before"


def test_a_disk_that_fails_at_the_end_leaves_nothing(tmp_path: Path, while_written, monkeypatch):
    """Bytes that were taken and cannot be kept are an error, too."""

    def fail(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    writer = begin(tmp_path / "a.gguf")
    writer.write("t", bytes(8192))
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(ResourceError, match="No space left"):
        writer.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("nameless_files")
def test_a_killed_process_leaves_nothing(tmp_path: Path):
    """What has no name is gone with the process that wrote it."""
    code = (
        "import os, signal, sys\n"
        "from corral.gguf import Writer\n"
        "from corral.quant.types import DType\n"
        "writer = Writer(sys.argv[1])\n"
        "writer.declare('t', DType.F32, (1 << 20,))\n"
        "writer.write('t', bytes(1 << 20))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "a.gguf")]
    ended = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(SOURCE)}, check=False)
    assert ended.returncode == -signal.SIGKILL
    assert list(tmp_path.iterdir()) == []


def test_misuse_is_refused(tmp_path: Path):
    """Wrong order, sizes, names and late metadata are errors."""
    writer = Writer(tmp_path / "a.gguf")
    writer.add("k", 1)
    writer.declare("t", DType.F32, (4,))
    for call in (
        lambda: writer.add("k", 2),
        lambda: writer.add("", 2),
        lambda: writer.add("general.alignment", 8),
        lambda: writer.declare("t", DType.F32, (4,)),
        lambda: writer.declare("n" * 64, DType.F32, (4,)),
        lambda: writer.declare("u", DType.Q4_0, (31,)),
        lambda: writer.declare("u", DType.A8, (32,)),
        lambda: writer.declare("u", DType.F32, (1,) * 5),
        lambda: writer.write("u", bytes(4)),
        lambda: writer.write("t", bytes(17)),
        lambda: writer.add("late", 1),
        lambda: Writer(tmp_path / "b", alignment=3),
    ):
        with pytest.raises(InvalidArgument):
            call()
    writer.write("t", bytes(16))
    writer.close()
    writer.close()
    with pytest.raises(Closed):
        writer.write("t", bytes(4))
    assert read_header(tmp_path / "a.gguf").metadata.int("k") == 1


@pytest.mark.parametrize(
    ("value", "kind"), [(300, ValueType.UINT8), ("x", ValueType.UINT8), (1, ValueType.STRING)]
)
def test_values_must_fit_their_type(value, kind: ValueType):
    """A value that its type cannot hold is refused."""
    with pytest.raises(InvalidArgument, match=kind.name):
        make_value(value, kind)


def test_unwritable_places_are_reported(tmp_path: Path):
    """A folder that does not exist gives a typed error."""
    with pytest.raises(ResourceError, match="cannot be written"):
        write_model(tmp_path / "none" / "a.gguf", {}, {})


def test_only_files_are_replaced(tmp_path: Path):
    """A pipe and a folder stay what they are, and are named."""
    pipe, folder = tmp_path / "pipe.gguf", tmp_path / "folder.gguf"
    os.mkfifo(pipe)
    folder.mkdir()
    with pytest.raises(ResourceError, match=r"pipe\.gguf: cannot be written: it is a device"):
        write_model(pipe, {}, {})
    with pytest.raises(ResourceError, match=r"folder\.gguf: cannot be written: it is a folder"):
        write_model(folder, {}, {})
    assert pipe.is_fifo()
    assert sorted(tmp_path.iterdir()) == [folder, pipe]


@pytest.mark.parametrize("is_there", [True, False])
def test_links_are_followed(tmp_path: Path, while_written: str, is_there: bool):
    """The bytes lie where the link says, and the link stays one."""
    target, link = tmp_path / "disk" / "a.gguf", tmp_path / "a.gguf"
    target.parent.mkdir()
    if is_there:
        target.write_bytes(b"before")
    link.symlink_to(target)
    write_model(link, {}, {})
    assert link.is_symlink()
    assert read_header(target).tensors == read_header(link).tensors == {}
    assert list(target.parent.iterdir()) == [target]
