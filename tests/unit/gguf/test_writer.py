"""The writer: what it writes is read back the same, by us and by the reference package."""

from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.errors import Closed, InvalidArgument, ResourceError
from corral.gguf import Metadata, Value, ValueType, Writer, open_model, read_header, write_model
from corral.gguf.values import Array, make_value
from corral.quant.types import DType

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


def test_nothing_appears_after_an_error(tmp_path: Path):
    """A file that is not finished leaves no trace."""
    with pytest.raises(RuntimeError), Writer(tmp_path / "a.gguf") as writer:
        writer.declare("t", DType.F32, (4,))
        writer.write("t", bytes(8))
        raise RuntimeError
    with pytest.raises(InvalidArgument, match="'t' are missing"), Writer(tmp_path / "b") as writer:
        writer.declare("t", DType.F32, (4,))
        writer.write("t", bytes(8))
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
