"""Headers: what is read, how lazily, and that random damage only ever gives typed errors."""

import contextlib
import subprocess
import sys
import tracemalloc
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from corral.errors import CorralError, InternalError
from corral.gguf import ValueType, read_header
from corral.quant.types import DType
from unit.gguf.raw_file import ARCHITECTURE, STRING, RawFile, array, key, string, tensor, u32


def official_file(path: Path) -> None:
    """Write a file with the `gguf` package."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(3)
    writer.add_rope_freq_base(10_000.5)
    writer.add_name("naïve")
    writer.add_token_list(["a", "Ġb", "<|end|>"])
    writer.add_token_scores([0.0, -1.5, 2.0])
    writer.add_bool("llama.flag", True)
    writer.add_tensor("token_embd.weight", np.arange(12, dtype=np.float32).reshape(3, 4))
    writer.add_tensor("half", np.ones((2, 3, 4), dtype=np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_reads_what_the_reference_package_writes(tmp_path: Path):
    """Values, shapes and offsets are those that the `gguf` package reads."""
    path = tmp_path / "model.gguf"
    official_file(path)
    header = read_header(path)
    assert header.version == 3
    assert header.metadata.architecture == "llama"
    assert header.metadata.int("llama.block_count") == 3
    assert header.metadata.str("general.name") == "naïve"
    assert header.metadata.strings("tokenizer.ggml.tokens") == ["a", "Ġb", "<|end|>"]
    assert header.metadata.floats("tokenizer.ggml.scores") == (0.0, -1.5, 2.0)
    assert header.metadata.bool("llama.flag") is True
    for expected in gguf.GGUFReader(path).tensors:
        found = header.tensors[expected.name]
        assert found.shape == tuple(reversed(expected.shape.tolist()))
        assert found.offset == expected.data_offset
        assert found.size_bytes == expected.n_bytes
    assert header.tensors["half"].dtype is DType.F16
    assert header.tensors["half"].num_elements == 24


def test_tensors_keep_the_order_of_the_file(tmp_path: Path):
    """Tensors are listed as the file lists them, not by offset or name."""
    path = tmp_path / "model.gguf"
    path.write_bytes(
        RawFile(tensors=(tensor(b"z", offset=32), tensor(b"a")), data=bytes(64)).build()
    )
    assert list(read_header(path).tensors) == ["z", "a"]


def vocabulary(size: int) -> bytes:
    tokens = b"".join(string(b"token%d" % i) for i in range(size))
    keys = (ARCHITECTURE, array(b"tokens", STRING, size, tokens), u32(b"after", 7))
    return RawFile(keys=keys).build()


@pytest.mark.parametrize("size", [1_024, 1_025, 100_000])
def test_skipping_arrays_keeps_type_and_length(tmp_path: Path, size: int):
    """With skip_arrays, short arrays are kept, long ones keep only type and length."""
    path = tmp_path / "model.gguf"
    path.write_bytes(vocabulary(size))
    full, light = read_header(path).metadata, read_header(path, skip_arrays=True).metadata
    assert full.strings("tokens")[-1] == f"token{size - 1}"
    assert light.length("tokens") == size
    assert light.int("after") == 7
    if size > 1_024:
        with pytest.raises(InternalError, match="skipped"):
            light.strings("tokens")
    else:
        assert light.strings("tokens") == full.strings("tokens")


@pytest.mark.parametrize(("skip_arrays", "limit"), [(True, 1 << 20), (False, 24 << 20)])
def test_large_vocabularies_take_little_memory(tmp_path: Path, skip_arrays: bool, limit: int):
    """A vocabulary of 262,144 tokens costs about its bytes, and a window when skipped."""
    path = tmp_path / "model.gguf"
    path.write_bytes(vocabulary(262_144))
    tracemalloc.start()
    header = read_header(path, skip_arrays=skip_arrays)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert header.metadata.length("tokens") == 262_144
    assert peak < limit


def test_strings_across_windows(tmp_path: Path):
    """Strings that straddle or exceed the reading window come out whole."""
    texts = [b"x" * n for n in (0, 262_100, 70, 262_144 * 3, 1, 0, 262_136, 262_137)]
    keys = (array(b"texts", STRING, len(texts), b"".join(map(string, texts))), u32(b"after", 7))
    path = tmp_path / "model.gguf"
    path.write_bytes(RawFile(keys=keys).build())
    metadata = read_header(path).metadata
    assert [len(t) for t in metadata.strings("texts")] == [len(t) for t in texts]
    assert metadata.int("after") == 7


def test_bytes_that_are_no_utf8(tmp_path: Path):
    """Array strings keep odd bytes recoverable, scalar strings become printable."""
    keys = (array(b"tokens", STRING, 1, string(b"a\xff")), key(b"name", STRING, string(b"a\xff")))
    path = tmp_path / "model.gguf"
    path.write_bytes(RawFile(keys=keys).build())
    metadata = read_header(path).metadata
    assert metadata.strings("tokens")[0].encode("utf-8", "surrogateescape") == b"a\xff"
    assert metadata.str("name") == "a\ufffd"


GOOD = RawFile(
    keys=(
        ARCHITECTURE,
        u32(b"general.alignment", 32),
        array(b"tokens", STRING, 3, string(b"a") + string(b"bc") + string(b"")),
        array(b"types", ValueType.INT32, 3, bytes(12)),
        key(b"flag", ValueType.BOOL, b"\x01"),
        key(b"base", ValueType.FLOAT32, bytes(4)),
    ),
    tensors=(tensor(b"t", (4, 2)), tensor(b"u", (32,), kind=2, offset=32)),
    data=bytes(64),
).build()


@given(
    changes=st.lists(
        st.tuples(st.integers(0, len(GOOD) - 1), st.binary(min_size=1, max_size=8)), max_size=6
    ),
    cut=st.none() | st.integers(0, len(GOOD)),
)
@settings(
    max_examples=400, deadline=2000, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_damage_gives_typed_errors_only(
    tmp_path: Path, changes: list[tuple[int, bytes]], cut: int | None
):
    """Whatever bytes are overwritten or cut, reading gives a header or a CorralError."""
    data = bytearray(GOOD)
    for at, new in changes:
        data[at : at + len(new)] = new
    path = tmp_path / "damaged.gguf"
    path.write_bytes(data[:cut])
    with contextlib.suppress(CorralError):
        header = read_header(path)
        for name in header.metadata:
            value = header.metadata.value(name)
            value.describe()
            if value.type is ValueType.ARRAY:
                value.content.values()


def test_every_byte_flipped(tmp_path: Path):
    """Each byte of a header set to 0, 255 or inverted gives a header or a CorralError."""
    path = tmp_path / "flipped.gguf"
    for at in range(len(GOOD) - 64):
        for byte in (0, 255, GOOD[at] ^ 255):
            data = bytearray(GOOD)
            data[at] = byte
            path.write_bytes(data)
            with contextlib.suppress(CorralError):
                read_header(path)


def test_imports_are_light():
    """Reading headers loads no NumPy."""
    code = "import sys, corral.gguf; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
