"""Bad GGUF files: each is refused with a typed error, quickly and without taking memory.

The ids are those of the project's list of bad inputs (container rows).
"""

import os
import time
import tracemalloc
from pathlib import Path
from struct import pack

import pytest

from corral.errors import InvalidModelFile, ModelNotFound
from corral.gguf import open_model, read_header
from unit.gguf.raw_file import (
    ARCHITECTURE,
    ARRAY,
    BOOL,
    GGML_Q4_0,
    I32,
    STRING,
    U32,
    UINT64,
    RawFile,
    array,
    key,
    string,
    tensor,
    text,
    u32,
)

TOP = 1 << 64
SECONDS = 2.0
"""Of the processor: what else the machine does is not the file's fault."""
MEBIBYTE = 1 << 20


def with_key(*keys: bytes) -> bytes:
    """A good file with further keys."""
    return RawFile(keys=(ARCHITECTURE, *keys)).build()


def with_tensors(*tensors: bytes, data: bytes = bytes(64)) -> bytes:
    """A good file with these tensors instead."""
    return RawFile(tensors=tensors, data=data).build()


def cut_key(*keys: bytes) -> bytes:
    """A file that ends with its last key."""
    return RawFile(keys=(ARCHITECTURE, *keys), tensors=(), data=b"").header


def big_endian() -> bytes:
    """A file as a big-endian machine writes it."""
    return b"GGUF" + pack(">IQQ", 3, 0, 0) + bytes(64)


def nested(depth: int) -> bytes:
    """An array of arrays of arrays …"""
    return with_key(key(b"a", ARRAY, pack("<IQ", ARRAY, 1) * depth + pack("<IQI", U32, 1, 0)))


def write_sparse(path: Path, keys: list[bytes], gap: int) -> None:
    """Write a file whose keys are each followed by `gap` zeros that take no room on disk."""
    with path.open("wb") as file:
        file.write(RawFile(keys=(), num_keys=len(keys), tensors=(), data=b"").header)
        for entry in keys:
            file.write(entry)
            file.truncate(file.seek(gap, os.SEEK_CUR))


def alignment(number: int) -> bytes:
    return with_key(u32(b"general.alignment", number))


REFUSED = {
    "G001-empty-file": (b"", "the magic"),
    "G002-three-bytes": (b"GGU", "the magic"),
    "G003-bad-magic": (RawFile(magic=b"GGML").build(), "not a GGUF file"),
    "G005-version-0": (RawFile(version=0).build(), "version 0"),
    "G006-version-1": (RawFile(version=1).build(), "version 1"),
    "G007-version-4": (RawFile(version=4).build(), "version 4"),
    "G008-big-endian": (big_endian(), "big-endian"),
    "G009-version-high-half": (RawFile(version=3 + (1 << 16)).build(), "GGUF version 65539"),
    "G010-tensors-2^64-1": (RawFile(num_tensors=TOP - 1).build(), "claims"),
    "G011-tensors-2^63": (RawFile(num_tensors=1 << 63).build(), "claims"),
    "G012-tensors-2^32-1": (RawFile(num_tensors=(1 << 32) - 1).build(), "claims"),
    "G013-tensors-product-wraps": (RawFile(num_tensors=TOP // 368 + 1).build(), "claims"),
    "G014-keys-2^64-1": (RawFile(num_keys=TOP - 1).build(), "claims"),
    "G015-keys-2^32-1": (RawFile(num_keys=(1 << 32) - 1).build(), "claims"),
    "G016-key-without-bytes": (
        RawFile(num_keys=1, keys=(), tensors=(), data=b"").header,
        "claims 1 keys",
    ),
    "G025-key-length-2^64-1": (with_key(string(b"k", TOP - 1)), "expected at most"),
    "G026-key-past-end": (cut_key(string(b"k" * 9, 1000)), "needs 1000 bytes"),
    "G027-empty-key": (with_key(u32(b"", 1)), "empty"),
    "G028-key-with-nul": (with_key(u32(b"a\0b", 1)), "NUL"),
    "G029-key-not-utf8": (with_key(u32(b"a\xff", 1)), "not UTF-8"),
    "G030-key-64-KiB": (with_key(u32(b"k" * 65_536, 1)), "expected at most 65535"),
    "G031-value-type-13": (with_key(key(b"k", 13, bytes(8))), "unknown type 13"),
    "G032-value-type-minus-1": (with_key(key(b"k", -1, bytes(8))), "unknown type"),
    "G033-duplicate-key": (with_key(u32(b"k", 1), u32(b"k", 1)), "occurs twice"),
    "G034-string-2^63": (with_key(key(b"k", STRING, string(b"", 1 << 63))), "at most"),
    "G035-string-one-past-end": (cut_key(key(b"k", STRING, string(b"abc", 4))), "needs 4"),
    "G036-array-2^63": (cut_key(array(b"k", STRING, 1 << 63, b"")), "elements"),
    "G036-array-2^63-numbers": (cut_key(array(b"k", U32, 1 << 63, b"")), "elements"),
    "G036-array-past-end": (cut_key(array(b"k", U32, 1000, b"")), "needs 4000 bytes"),
    "G037-array-unknown-elements": (with_key(array(b"k", 99, 1, bytes(8))), "unknown type 99"),
    "G038-arrays-nested-1000": (nested(1_000), "array of arrays"),
    "G039-arrays-nested-100000": (nested(100_000), "array of arrays"),
    "G040-2^30-empty-strings": (cut_key(array(b"k", STRING, 1 << 30, bytes(800))), "elements"),
    "G041-alignment-0": (alignment(0), "power of two"),
    "G042-alignment-13": (alignment(13), "power of two"),
    "G043-alignment-2^31": (alignment(1 << 31), "power of two"),
    "G044-alignment-int32": (
        with_key(key(b"general.alignment", I32, pack("<i", 32))),
        "expected UINT32",
    ),
    "G046-bool-7": (with_key(key(b"k", BOOL, b"\x07")), "expected 0 or 1"),
    "G046-bool-array-7": (with_key(array(b"k", BOOL, 2, b"\x01\x07")), "other than 0 and 1"),
    "G072-name-64-bytes": (with_tensors(tensor(b"n" * 64)), "expected at most 63"),
    "G073-duplicate-name": (with_tensors(tensor(), tensor(offset=32)), "occurs twice"),
    "G074-empty-name": (with_tensors(tensor(b"")), "empty"),
    "G075-rank-0": (with_tensors(tensor(sizes=())), "0 dimensions"),
    "G076-rank-5": (with_tensors(tensor(sizes=(1,) * 5)), "5 dimensions"),
    "G077-rank-2^32-1": (with_tensors(tensor(rank=(1 << 32) - 1)), "dimensions"),
    "G078-dim-minus-1": (with_tensors(tensor(sizes=(-1,))), "exceeds"),
    "G080-dim-2^42+1": (with_tensors(tensor(sizes=(1 << 20, (1 << 42) + 1))), "truncated"),
    "G081-product-wraps-to-4": (
        with_tensors(tensor(sizes=(4194305, 4194305, 211106198978564))),
        "exceeds",
    ),
    "G082-padding-wraps": (with_tensors(tensor(sizes=((1 << 62) - 1,))), "truncated"),
    "G083-type-count": (with_tensors(tensor(kind=200)), "unknown type 200"),
    "G084-type-minus-1": (with_tensors(tensor(kind=-1)), "unknown type"),
    **{
        f"G085-removed-type-{kind}": (with_tensors(tensor(kind=kind)), "removed")
        for kind in (4, 5, 31, 32, 33, 36, 37, 38)
    },
    "G086-row-not-whole-blocks": (with_tensors(tensor(kind=GGML_Q4_0)), "multiple of 32"),
    "G088-offset-2^64-1": (with_tensors(tensor(offset=TOP - 1)), "no multiple"),
    "G088-offset-2^64-32": (with_tensors(tensor(offset=TOP - 32)), "truncated"),
    "G089-offset-unaligned": (with_tensors(tensor(offset=4)), "no multiple of 32"),
    "G090-overlap": (with_tensors(tensor(sizes=(9,)), tensor(b"u", offset=32)), "overlap"),
    "G093-one-byte-past-end": (with_tensors(tensor(), data=bytes(31)), "truncated"),
    "G094-far-past-end": (with_tensors(tensor(offset=1 << 40)), "truncated"),
    "G095-sizes-sum-to-2^64": (
        with_tensors(
            *(tensor(b"%d" % i, ((1 << 60) - 32,), offset=i * ((1 << 62) - 128)) for i in range(4))
        ),
        "truncated",
    ),
    "G096-data-short-by-one": (
        with_tensors(tensor(), tensor(b"u", offset=32), data=bytes(63)),
        "truncated",
    ),
    "G097-no-data": (with_tensors(tensor(), data=b""), "truncated"),
}


@pytest.mark.parametrize("skip_arrays", [False, True])
@pytest.mark.parametrize(("data", "message"), REFUSED.values(), ids=REFUSED)
def test_refused(tmp_path: Path, data: bytes, message: str, skip_arrays: bool):
    """A bad file is refused by name, within two seconds and a few times its own size."""
    path = tmp_path / "bad.gguf"
    path.write_bytes(data)
    tracemalloc.start()
    started = time.process_time()
    with pytest.raises(InvalidModelFile, match=message.replace("^", r"\^")) as caught:
        read_header(path, skip_arrays=skip_arrays)
    seconds = time.process_time() - started
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert str(caught.value).startswith("bad.gguf: ")
    assert str(tmp_path) not in str(caught.value)
    assert len(str(caught.value)) < 500
    assert seconds < SECONDS
    assert peak < MEBIBYTE + 4 * len(data)


ACCEPTED = {
    "G017-trailing-garbage": RawFile(data=bytes(32) + b"garbage").build(),
    "G030-key-65535-bytes": with_key(u32(b"k" * 65_535, 1)),
    "G045-alignment-1": RawFile(
        keys=(u32(b"general.alignment", 1),),
        tensors=(tensor(sizes=(1,)), tensor(b"u", (3,), offset=4)),
        alignment=1,
        data=bytes(16),
    ).build(),
    "G043-alignment-1-MiB": RawFile(
        keys=(u32(b"general.alignment", 1 << 20),), alignment=1 << 20
    ).build(),
    "G072-name-63-bytes": with_tensors(tensor(b"n" * 63)),
    "G079-dim-0": with_tensors(tensor(sizes=(8, 0)), tensor(b"u")),
    "G079-dim-0-at-end": with_tensors(tensor(sizes=(0,), offset=1 << 20), data=b""),
    "G087-legal-type-we-lack": with_tensors(tensor(sizes=(256,), kind=19)),
    "G091-gap": with_tensors(tensor(offset=32)),
    "G092-out-of-order": with_tensors(tensor(offset=32), tensor(b"u")),
    "version-2": RawFile(version=2).build(),
    "no-tensors": RawFile(tensors=(), data=b"").header,
    "no-keys": RawFile(keys=()).build(),
}


@pytest.mark.parametrize("data", ACCEPTED.values(), ids=ACCEPTED)
def test_accepted(tmp_path: Path, data: bytes):
    """An unusual file that the format allows is read, header and data."""
    path = tmp_path / "odd.gguf"
    path.write_bytes(data)
    with open_model(path) as model:
        for name, info in model.tensors.items():
            model.read(name, bytearray(info.size_bytes))


def test_every_truncation(tmp_path: Path):
    """G004: a file cut anywhere before its last tensor's last byte is called truncated."""
    keys = (
        ARCHITECTURE,
        array(b"tokens", STRING, 2, string(b"a") + string(b"")),
        array(b"scores", U32, 2, bytes(8)),
        key(b"flag", BOOL, b"\x01"),
    )
    data = RawFile(keys=keys, tensors=(tensor(), tensor(b"u", (4,), offset=32))).build()
    data += bytes(16)
    path = tmp_path / "cut.gguf"
    path.write_bytes(data)
    read_header(path)
    for length in range(len(data)):
        path.write_bytes(data[:length])
        with pytest.raises(InvalidModelFile, match=r"truncated.*fetch it again"):
            read_header(path)


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/random"], ids=["G018", "G019"])
def test_devices(device: str):
    """G018, G019: a device that never ends is refused."""
    if not Path(device).exists():
        pytest.skip(f"no {device} here")
    with pytest.raises(InvalidModelFile, match="not a regular file"):
        read_header(device)


def test_fifo(tmp_path: Path):
    """G020: a pipe is refused without waiting for a writer."""
    path = tmp_path / "pipe.gguf"
    os.mkfifo(path)
    started = time.process_time()
    with pytest.raises(InvalidModelFile, match="not a regular file"):
        open_model(path)
    assert time.process_time() - started < SECONDS


def test_directory(tmp_path: Path):
    """G021: a directory is refused."""
    with pytest.raises(InvalidModelFile, match="not a regular file"):
        read_header(tmp_path)


def test_symlinks(tmp_path: Path):
    """G022: a link is followed (caches are made of links), a loop of links is refused."""
    (tmp_path / "blob").write_bytes(RawFile().build())
    (tmp_path / "model.gguf").symlink_to("blob")
    (tmp_path / "loop.gguf").symlink_to("loop.gguf")
    assert read_header(tmp_path / "model.gguf").metadata.architecture == "llama"
    with pytest.raises(InvalidModelFile, match="cannot be opened"):
        read_header(tmp_path / "loop.gguf")


def test_sparse_file(tmp_path: Path):
    """G023: a file of 1 TiB with a small header costs only its header."""
    path = tmp_path / "sparse.gguf"
    path.write_bytes(RawFile().build())
    try:
        os.truncate(path, 1 << 40)
    except OSError:
        pytest.skip("the file system has no sparse files of 1 TiB")
    started = time.process_time()
    assert read_header(path).file_size == 1 << 40
    assert time.process_time() - started < SECONDS


def test_unreadable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """G024: a file that may not be read is refused by name."""

    def refuse(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(InvalidModelFile, match="Permission denied"):
        read_header(tmp_path / "secret.gguf")


def test_missing(tmp_path: Path):
    """A file that does not exist is a different error."""
    with pytest.raises(ModelNotFound, match=r"none\.gguf"):
        read_header(tmp_path / "none.gguf")


def test_nul_in_path():
    """A path that no file can have is refused."""
    with pytest.raises(InvalidModelFile):
        read_header("a\0b")


def test_empty_strings_in_a_sparse_file(tmp_path: Path):
    """G040: 2^30 empty strings that really are in the file are refused before any is read."""
    path = tmp_path / "zeros.gguf"
    path.write_bytes(cut_key(array(b"k", STRING, 1 << 30, b"")))
    os.truncate(path, 9 << 30)
    with pytest.raises(InvalidModelFile, match="elements"):
        read_header(path)


def test_strings_share_an_allowance(tmp_path: Path):
    """G040: many arrays of empty strings do not get around the limit of one."""
    path = tmp_path / "zeros.gguf"
    write_sparse(path, [array(b"k%d" % i, STRING, 3_000_000, b"") for i in range(2)], 24_000_000)
    started = time.process_time()
    with pytest.raises(InvalidModelFile, match="at most 4000000"):
        read_header(path, skip_arrays=True)
    assert time.process_time() - started < SECONDS


def test_long_metadata(tmp_path: Path):
    """Metadata beyond the limit of a header are refused."""
    path = tmp_path / "long.gguf"
    count = 15_999_999
    write_sparse(path, [array(b"k%d" % i, UINT64, count, b"") for i in range(5)], 8 * count)
    with pytest.raises(InvalidModelFile, match="longer than"):
        read_header(path, skip_arrays=True)


def test_architecture_is_safe_to_look_up(tmp_path: Path):
    """G050, G052, G053: an absent, path-like or huge architecture is refused."""
    path = tmp_path / "arch.gguf"
    for keys in ((), (text(b"general.architecture", b"../x"),)):
        path.write_bytes(RawFile(keys=keys).build())
        with pytest.raises(InvalidModelFile, match=r"general\.architecture"):
            _ = read_header(path).metadata.architecture
    path.write_bytes(RawFile(keys=(text(b"general.architecture", b"a" * MEBIBYTE),)).build())
    with pytest.raises(InvalidModelFile, match="expected a short name") as caught:
        _ = read_header(path).metadata.architecture
    assert len(str(caught.value)) < 300
