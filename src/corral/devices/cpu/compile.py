"""Machine code from kernels: emitted, optimized, kept, loaded.

    KernelSpec ─▶ LLVM text (simd) ─▶ optimized ─▶ object file ─▶ cache ─▶ Code ─▶ address

It knows targets and the names of kernels, not what kernels compute.
"""

import functools
import hashlib
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import llvmlite
import llvmlite.binding as llvm

from corral.devices.cpu.features import Target, host
from corral.devices.cpu.simd import Kernel, Value, build
from corral.devices.object_cache import ObjectCache
from corral.errors import Closed, CompileError

Emit = Callable[..., None]
"""Emits a kernel: (kernel, record, thread, threads, **parameters)."""
Parameter = str | int | float | bool | None
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class KernelSpec:
    """One kernel, specialized: a module-level function that emits it, and its parameters."""

    emit: Emit
    parameters: tuple[tuple[str, Parameter], ...] = ()

    @classmethod
    def of(cls, emit: Emit, **parameters: Parameter) -> "KernelSpec":
        """Return the spec of a kernel with keyword parameters."""
        return cls(emit, tuple(sorted(parameters.items())))

    @property
    def identity(self) -> str:
        """The same text for the same kernel, in every process."""
        return f"{self.emit.__module__}:{self.emit.__qualname__}{self.parameters}"

    @property
    def name(self) -> str:
        """A short name for people."""
        values = ", ".join(f"{name}={value}" for name, value in self.parameters)
        return f"{self.emit.__qualname__}({values})"

    def text(self, target: Target, symbol: str) -> str:
        """Return the kernel in LLVM's language, as the function `symbol`."""

        def body(k: Kernel, record: Value, thread: Value, threads: Value) -> None:
            self.emit(k, record, thread, threads, **dict(self.parameters))

        return build(target, symbol, body)


@functools.cache
def _initialize() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    if host().vector_bits == 256:
        # Kernels are written in an order in which sixteen registers suffice. LLVM's scheduler would
        # fetch more at once, and spill it: full tiles of matrix products take a fourth longer.
        llvm.set_option("corral", "-enable-misched=false")


def _machine(target: Target) -> llvm.TargetMachine:
    _initialize()
    try:
        found = llvm.Target.from_triple(target.triple)
        return found.create_target_machine(
            cpu=target.cpu,
            features=target.features,
            opt=3,
            reloc="pic",
            codemodel="small",
        )
    except RuntimeError as error:
        raise CompileError(f"LLVM has no code generator for {target.triple}: {error}") from error


_PASSES = (
    "sroa",
    "aggressive_dce",
    "new_gvn",
    "loop_rotate",
    "instruction_combine",
    "simplify_cfg",
)
"""Kernels are vectorized and unrolled by hand; LLVM's usual passes take three times as long and
make the same code of them."""


def _optimized(text: str, target: Target) -> tuple[llvm.ModuleRef, llvm.TargetMachine]:
    machine = _machine(target)
    try:
        module = llvm.parse_assembly(text)
        module.verify()
    except RuntimeError as error:
        raise CompileError(f"LLVM rejects a kernel for {target.path}: {error}", ir=text) from error
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options())
    passes = llvm.create_new_module_pass_manager()
    for name in _PASSES:
        getattr(passes, f"add_{name}_pass")()
    passes.run(module, builder)
    return module, machine


def assembly(text: str, target: Target) -> str:
    """Return the assembly of LLVM text, to be looked at."""
    module, machine = _optimized(text, target)
    return str(machine.emit_assembly(module))


def object_code(text: str, target: Target) -> bytes:
    """Return the object file of LLVM text.

    Raises:
        CompileError: LLVM rejects it; the error keeps the text.
    """
    module, machine = _optimized(text, target)
    return bytes(machine.emit_object(module))


@functools.cache
def source_digest() -> str:
    """Return a digest of everything that decides what code a kernel becomes."""
    here = Path(__file__).parent
    sources = [*sorted(here.rglob("*.py")), here.parents[1] / "quant" / "packed.py"]
    digest = hashlib.sha256()
    for source in sources:
        digest.update(source.name.encode() + b"\0" + hashlib.sha256(source.read_bytes()).digest())
    return digest.hexdigest()


def kernel_key(spec: KernelSpec, target: Target) -> str:
    """Return the name of a kernel's object file; it changes whenever the code could."""
    versions = f"llvmlite {llvmlite.__version__}, LLVM {llvm.llvm_version_info}"
    parts = (source_digest(), versions, repr(target), spec.identity)
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


class Code:
    """Loaded machine code; addresses are valid until it is closed."""

    def __init__(self) -> None:
        _initialize()
        machine = llvm.Target.from_default_triple().create_target_machine(jit=True)
        # llvmlite's memory manager keeps the sections of an object together. LLVM's own may put
        # constants more than 2 GiB from the code that reads them, which ends the process.
        self._engine: Any = llvm.create_mcjit_compiler(
            llvm.parse_assembly(""), machine, use_lmm=True
        )

    def add(self, object_file: bytes) -> None:
        """Load an object file."""
        self._require_open().add_object_file(llvm.ObjectFileRef.from_data(object_file))

    def address(self, name: str) -> int:
        """Return the address of a function of a loaded object file."""
        engine = self._require_open()
        engine.finalize_object()
        address = int(engine.get_function_address(name))
        if not address:
            raise CompileError(f"no function {name} in the loaded code")
        return address

    def _require_open(self) -> Any:
        if self._engine is None:
            raise Closed("code is used after close()")
        return self._engine

    def close(self) -> None:
        """Unload the code; a second call does nothing."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None


class Compiler:
    """Compiles kernels for one target and owns their code.

    Threads may share it, and processes may share a cache directory. Without one, nothing is kept.
    """

    def __init__(
        self, target: Target, cache_directory: Path | None = None, *, processes: int | None = None
    ) -> None:
        self.target = target
        self._cache = ObjectCache(cache_directory) if cache_directory else None
        self._processes = processes
        self._code = Code()
        self._addresses: dict[KernelSpec, int] = {}
        self._lock = threading.Lock()

    def request(
        self, specs: Iterable[KernelSpec], progress: Progress | None = None
    ) -> dict[KernelSpec, int]:
        """Return the addresses of kernels, compiling those that are not kept.

        `progress("kernels", done, total)` counts the kernels that must be compiled.

        Raises:
            CompileError: a kernel does not compile; `ir` holds its text.
        """
        wanted = list(dict.fromkeys(specs))
        with self._lock:
            fresh = [spec for spec in wanted if spec not in self._addresses]
            self._load(fresh, progress)
            return {spec: self._addresses[spec] for spec in wanted}

    def _load(self, fresh: Sequence[KernelSpec], progress: Progress | None) -> None:
        keys = {spec: kernel_key(spec, self.target) for spec in fresh}
        objects = {spec: self._kept(keys[spec]) for spec in fresh}
        missing = [spec for spec, found in objects.items() if found is None]
        for spec, compiled in self._compiled(missing, keys, progress):
            objects[spec] = compiled
            if self._cache:
                self._cache.store(keys[spec], compiled)
        for found in objects.values():
            assert found is not None
            self._code.add(found)
        self._addresses |= {spec: self._code.address(symbol(keys[spec])) for spec in fresh}

    def _kept(self, key: str) -> bytes | None:
        return self._cache.load(key) if self._cache else None

    def _compiled(
        self, specs: Sequence[KernelSpec], keys: dict[KernelSpec, str], progress: Progress | None
    ) -> Iterable[tuple[KernelSpec, bytes]]:
        # Imported late: it imports this module, and a warm start does not need it.
        from corral.devices.cpu.compile_pool import compile_all

        jobs = [(spec, symbol(keys[spec])) for spec in specs]
        if progress and jobs:
            progress("kernels", 0, len(jobs))
        for done, (spec, code) in enumerate(compile_all(jobs, self.target, self._processes), 1):
            yield spec, code
            if progress:
                progress("kernels", done, len(specs))

    def close(self) -> None:
        """Unload the code of all kernels; a second call does nothing."""
        self._addresses.clear()
        self._code.close()


def symbol(key: str) -> str:
    """Return the name of the function in the object file of a key."""
    return f"kernel_{key[:24]}"
