"""Every kernel compiles for every architecture, without a warning, within its registers."""

import pytest

from corral.config import settings
from corral.devices.cuda.compile import Compiler
from corral.devices.cuda.kernel_sources import KernelSources
from corral.devices.cuda.nvrtc import nvrtc_version
from corral.errors import CompileError, DeviceUnavailable
from corral.paths import CacheTree
from kernel_table import ARCHITECTURES, TABLE, fields, rows, source_names

WIDEST_FIELDS = 30
WORDS = ("int64_t ", "Float ")
"""Types of fields beside pointers; all are 8 bytes, so that nothing lies between them."""


def pytest_generate_tests(metafunc):
    if "row" in metafunc.fixturenames:
        cases = list(rows(metafunc.config.getoption("--all-architectures")))
        names = [f"{row.instance.expression}-{arch}" for row, arch in cases]
        metafunc.parametrize(("row", "arch"), cases, ids=names)


@pytest.fixture(scope="module")
def compiler(request):
    """Return a compiler that has already compiled what it can, side by side."""
    try:
        nvrtc_version()
    except DeviceUnavailable as missing:
        pytest.skip(str(missing))
    made = Compiler(CacheTree(settings().cache).kernels())
    cases = list(rows(request.config.getoption("--all-architectures")))
    for arch in ARCHITECTURES:
        try:
            made.request([row.instance for row, wanted in cases if wanted == arch], arch)
        except CompileError:
            continue  # the tests of its kernels will tell
    return made


def test_kernels_compile(compiler, row, arch):
    """No warning, no more registers than planned, and nothing spilled that was not allowed."""
    cubin = compiler.request([row.instance], arch)[row.instance]
    assert cubin.code.startswith(b"\x7fELF")
    assert not cubin.warnings
    used = cubin.usage
    assert 0 < used.registers <= row.registers
    assert used.spill_store_bytes + used.spill_load_bytes <= row.spill_bytes
    assert used.stack_bytes <= row.stack_bytes


def test_every_source_is_compiled():
    """A file without a row in the table would be compiled for users first."""
    assert {row.instance.source for row in TABLE} == set(source_names())


@pytest.mark.parametrize("name", source_names())
def test_fields_are_words(name):
    """Python writes fields as 64-bit words, so each is a pointer or a word."""
    found = fields(KernelSources().source(name).decode())
    assert found
    for members in found.values():
        assert 0 < len(members) <= WIDEST_FIELDS
        assert all(kind.endswith("*") or kind in WORDS for kind, _ in members), members


@pytest.mark.parametrize("name", [*source_names(), None])
def test_only_one_file_holds_assembly(name):
    """Kernels run in an emulator too, which replaces ptx.cuh and nothing else."""
    sources = KernelSources()
    texts = [sources.source(name)] if name else [*sources.headers.values()]
    assert sum(b"asm" in text.replace(b"assembl", b"") for text in texts) <= (not name)
