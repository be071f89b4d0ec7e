"""Machine code from kernels: emitted, optimized, kept in a private cache, loaded.

It knows targets and kernels' names, not what kernels compute.
"""

import functools

import llvmlite.binding as llvm

from corral.devices.cpu.features import Target
from corral.errors import CompileError


@functools.cache
def _initialize() -> None:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()


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
            jit=True,
        )
    except RuntimeError as error:
        raise CompileError(f"LLVM has no code generator for {target.triple}: {error}") from error


def optimized(text: str, target: Target) -> tuple[llvm.ModuleRef, llvm.TargetMachine]:
    """Return the parsed and optimized module and the machine it was optimized for.

    Raises:
        CompileError: LLVM rejects the text; `ir` of the error keeps it.
    """
    machine = _machine(target)
    try:
        module = llvm.parse_assembly(text)
        module.verify()
    except RuntimeError as error:
        failure = CompileError(f"LLVM rejects a kernel for {target.path}: {error}")
        failure.add_note(text)
        raise failure from error
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    options.loop_vectorization = options.slp_vectorization = False
    options.loop_interleaving = options.loop_unrolling = False
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    return module, machine


def assembly(text: str, target: Target) -> str:
    """Return the assembly of LLVM text, to be looked at."""
    module, machine = optimized(text, target)
    return str(machine.emit_assembly(module))


def object_code(text: str, target: Target) -> bytes:
    """Return the object file of LLVM text."""
    module, machine = optimized(text, target)
    return bytes(machine.emit_object(module))


class Code:
    """Loaded machine code; addresses are valid until it is closed."""

    def __init__(self) -> None:
        _initialize()
        machine = llvm.Target.from_default_triple().create_target_machine(jit=True)
        self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)

    def add(self, object_file: bytes) -> None:
        """Load an object file."""
        self._engine.add_object_file(llvm.ObjectFileRef.from_data(object_file))

    def address(self, name: str) -> int:
        """Return the address of a function."""
        self._engine.finalize_object()
        return int(self._engine.get_function_address(name))

    def close(self) -> None:
        """Unload the code."""
        self._engine.close()
