"""Every kernel compiles for every architecture, without a warning, within its registers."""

import re

import pytest

from corral.config import settings
from corral.devices.cuda.compile import Compiler
from corral.devices.cuda.kernel_sources import KERNELS
from corral.devices.cuda.nvrtc import nvrtc_version
from corral.errors import CompileError, DeviceUnavailable
from corral.paths import CacheTree
from kernel_table import ARCHITECTURES, instances, limit, rows, source_names

EMPTY_REGISTERS = 8
"""Of a kernel that does nothing."""


def pytest_generate_tests(metafunc):
    if "instance" in metafunc.fixturenames:
        cases = list(rows(metafunc.config.getoption("--all-architectures")))
        names = [f"{instance.name}-{arch}" for instance, arch in cases]
        metafunc.parametrize(("instance", "arch"), cases, ids=names)


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
            made.request([instance for instance, wanted in cases if wanted == arch], arch)
        except CompileError:
            continue  # the tests of its kernels will tell
    return made


def test_kernels_compile(compiler, instance, arch):
    """No warning, no more registers than planned, and nothing spilled that was not allowed."""
    cubin = compiler.request([instance], arch)[instance]
    assert cubin.code.startswith(b"\x7fELF")
    assert not cubin.warnings
    used, most = cubin.usage, limit(instance)
    assert 0 < used.registers <= most.registers
    assert used.spill_store_bytes + used.spill_load_bytes <= most.spill_bytes
    assert used.stack_bytes <= most.stack_bytes
    if instance.stem.endswith("_wgmma") and arch != "sm_90a":
        assert used.registers <= EMPTY_REGISTERS, "no other architecture has these instructions"


def test_every_source_is_compiled():
    """A file without a row in the table would be compiled for users first."""
    assert {instance.stem for instance in instances()} == set(source_names())


def test_few_files_hold_assembly():
    """Kernels run in an emulator too, which replaces those files and nothing else."""
    files = [*KERNELS.rglob("*.cu"), *KERNELS.rglob("*.cuh")]
    with_assembly = {path.name for path in files if re.search(r"\basm\b", path.read_text())}
    assert all(name.startswith("ptx") for name in with_assembly)
