"""The function under construction: control flow, memory and calls, appended as LLVM text.

The text form of LLVM's language is written directly: it is short, stable and fast to produce.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

from corral.devices.cpu.features import Target
from corral.devices.cpu.simd.arithmetic import first_lanes
from corral.devices.cpu.simd.types import Type, boolean, i32, i64, u64
from corral.devices.cpu.simd.value import Value, splat

Body = Callable[..., Value | None]


class Variable:
    """A value that changes, such as an accumulator of a loop; it lives in a register."""

    __slots__ = ("_kernel", "_slot", "type")

    def __init__(self, kernel: "Kernel", of: Type, slot: str) -> None:
        self._kernel, self.type, self._slot = kernel, of, slot

    @property
    def value(self) -> Value:
        """The present value."""
        return self._kernel.emit(self.type, f"load {self.type.llvm}, ptr {self._slot}")

    @value.setter
    def value(self, value: Value | float) -> None:
        stored = Value(self._kernel, self.type, "").like(value)
        self._kernel.append(f"store {stored.typed}, ptr {self._slot}")


class Fields:
    """The words of a kernel's record, each an i64, read once at the start of the kernel."""

    def __init__(self, words: dict[str, Value]) -> None:
        self._words = words

    def __getattr__(self, name: str) -> Value:
        try:
            return self._words[name]
        except KeyError:
            raise AttributeError(f"the record has no field {name!r}") from None


class Module:
    """The functions and declarations that become one object file."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.functions: list[str] = []
        self.declarations: dict[str, str] = {}

    def function(
        self,
        name: str,
        arguments: Sequence[Type],
        result: Type | None,
        body: Body,
        *,
        private: bool = False,
    ) -> None:
        """Append a function; `body(kernel, *arguments)` emits it and returns its result."""
        kernel = Kernel(self)
        values = [Value(kernel, of, f"%a{n}") for n, of in enumerate(arguments)]
        returned = body(kernel, *values)
        if (returned is None) != (result is None):
            raise TypeError(f"{name} must return {result}, not {returned}")
        signature = ", ".join(value.typed for value in values)
        kind = result.llvm if result else "void"
        self.functions.append(
            f"define {'internal ' if private else ''}{kind} @{name}({signature}) "
            f"{'noinline ' if private else ''}#0 {{\nentry:\n"
            + "".join(f"  {line}\n" for line in kernel.slots)
            + "".join(kernel.lines)
            + f"  ret {returned.typed if returned is not None else 'void'}\n}}\n"
        )

    def text(self) -> str:
        """Return the module in LLVM's language."""
        bits = self.target.vector_bits
        attributes = (
            f'attributes #0 = {{ nounwind "target-cpu"="{self.target.cpu}" '
            f'"target-features"="{self.target.features}" "no-builtins" '
            f'"prefer-vector-width"="{bits}" "min-legal-vector-width"="{bits}" }}\n'
        )
        parts = [f'target triple = "{self.target.triple}"', *self.declarations.values()]
        return "\n".join([*parts, *self.functions, attributes])


class Kernel:
    """One function being emitted. Addresses are i64 values; no access needs alignment."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.lines: list[str] = []
        self.slots: list[str] = []
        self._names = 0

    @property
    def target(self) -> Target:
        """The processor that code is emitted for."""
        return self.module.target

    # Instructions

    def _name(self, prefix: str) -> str:
        self._names += 1
        return f"{prefix}{self._names}"

    def append(self, line: str) -> None:
        """Append an instruction without a result."""
        self.lines.append(f"  {line}\n")

    def emit(self, result: Type, instruction: str) -> Value:
        """Append an instruction and return its result."""
        name = self._name("%v")
        self.lines.append(f"  {name} = {instruction}\n")
        return Value(self, result, name)

    def intrinsic(self, name: str, result: Type | None, arguments: Sequence[Value | str]) -> Value:
        """Append a call of an external function; strings are immediate arguments (`i32 3`)."""
        typed = [a.typed if isinstance(a, Value) else a for a in arguments]
        types = ", ".join(
            text[: text.index(">") + 1] if text[0] == "<" else text.split()[0] for text in typed
        )
        kind = result.llvm if result else "void"
        self.module.declarations.setdefault(name, f"declare {kind} @{name}({types})")
        call = f"call {kind} @{name}({', '.join(typed)})"
        if result is None:
            self.append(call)
            return Value(self, i64, "0")
        return self.emit(result, call)

    # Constants and variables

    def constant(self, of: Type, values: float | list[float]) -> Value:
        """Return a constant; one number fills every lane."""
        return Value(self, of, of.constant(values))

    def variable(self, of: Type, initial: Value | float = 0) -> Variable:
        """Return a variable that may change inside loops and branches."""
        slot = self._name("%s")
        self.slots.append(f"{slot} = alloca {of.llvm}")
        variable = Variable(self, of, slot)
        variable.value = initial
        return variable

    def stack(self, size: int) -> Value:
        """Return the address of `size` bytes that live as long as the call, 64-byte aligned."""
        slot = self._name("%s")
        self.slots.append(f"{slot} = alloca [{size} x i8], align 64")
        return self.emit(i64, f"ptrtoint ptr {slot} to i64")

    def fields(self, record: Value, names: Sequence[str]) -> Fields:
        """Read the 64-bit words of a record under their names."""
        return Fields({name: self.load(i64, record + 8 * n) for n, name in enumerate(names)})

    # Memory

    def pointer(self, address: Value) -> str:
        """Return an address as an operand of LLVM's intrinsics."""
        return f"ptr {self._pointer(address)}"

    def _pointer(self, address: Value) -> str:
        """Name the pointer: LLVM understands loops better if it sees a base and offsets."""
        base, *offsets = address.addends
        pointer = self.emit(i64, f"inttoptr {base.typed} to ptr").text
        constant = 0
        for offset in offsets:
            if offset.text.lstrip("-").isdigit():
                constant += int(offset.text)
            else:
                pointer = self.emit(i64, f"getelementptr i8, ptr {pointer}, {offset.typed}").text
        if constant:
            pointer = self.emit(i64, f"getelementptr i8, ptr {pointer}, i64 {constant}").text
        return pointer

    def load(self, of: Type, address: Value) -> Value:
        """Load a scalar or a vector."""
        return self.emit(of, f"load {of.llvm}, ptr {self._pointer(address)}, align 1")

    def store(self, address: Value, value: Value) -> None:
        """Store a scalar or a vector."""
        self.append(f"store {value.typed}, ptr {self._pointer(address)}, align 1")

    def broadcast(self, of: Type, address: Value) -> Value:
        """Load one element and return it in every lane of a vector."""
        return splat(self.load(of.element, address), of.lanes)

    def load_first(self, of: Type, address: Value, count: Value) -> Value:
        """Load the first `count` (i64, may exceed the lanes) lanes; the others are 0, unread."""
        pointer, mask = self._pointer(address), first_lanes(count, of.lanes)
        zero = self.constant(of, 0)
        return self.intrinsic(
            f"llvm.masked.load.{of.mangled}.p0", of, [f"ptr {pointer}", "i32 1", mask, zero]
        )

    def store_first(self, address: Value, value: Value, count: Value) -> None:
        """Store the first `count` (i64, may exceed the lanes) lanes and touch nothing else."""
        pointer, mask = self._pointer(address), first_lanes(count, value.type.lanes)
        self.intrinsic(
            f"llvm.masked.store.{value.type.mangled}.p0",
            None,
            [value, f"ptr {pointer}", "i32 1", mask],
        )

    def prefetch(self, address: Value, locality: int = 3) -> None:
        """Ask for the cache line at an address: 3 into every cache, 0 to be used only once."""
        arguments = [f"ptr {self._pointer(address)}", "i32 0", f"i32 {locality}", "i32 1"]
        self.intrinsic("llvm.prefetch.p0", None, arguments)

    # Control flow

    def _label(self, label: str) -> None:
        self.lines.append(f"{label}:\n")

    @contextmanager
    def range(
        self, start: Value | int, stop: Value | int, step: Value | int = 1
    ) -> Iterator[Value]:
        """Repeat the body for each i64 from `start` up to `stop`, as Python's `range` does."""
        index = self.variable(i64, start)
        head, body, end = self._name("head"), self._name("body"), self._name("end")
        self.append(f"br label %{head}")
        self._label(head)
        current = index.value
        self.append(f"br {(current < stop).typed}, label %{body}, label %{end}")
        self._label(body)
        yield current
        advance = current.like(step)
        index.value = self.emit(i64, f"add nsw {current.typed}, {advance.text}")
        self.append(f"br label %{head}")
        self._label(end)

    @contextmanager
    def repeat_while(self, condition: Callable[[], Value]) -> Iterator[None]:
        """Repeat the body while `condition`, emitted before each turn, holds."""
        head, body, end = self._name("head"), self._name("body"), self._name("end")
        self.append(f"br label %{head}")
        self._label(head)
        self.append(f"br {condition().typed}, label %{body}, label %{end}")
        self._label(body)
        yield
        self.append(f"br label %{head}")
        self._label(end)

    @contextmanager
    def branch(
        self, condition: Value
    ) -> Iterator[tuple[AbstractContextManager[None], AbstractContextManager[None]]]:
        """Run one of two bodies: `with k.branch(c) as (yes, no):`, then `with yes:`, `with no:`."""
        labels = self._name("yes"), self._name("no")
        end = self._name("end")
        self.append(f"br {condition.typed}, label %{labels[0]}, label %{labels[1]}")
        yield self._block(labels[0], end), self._block(labels[1], end)
        self._label(end)

    @contextmanager
    def _block(self, label: str, end: str) -> Iterator[None]:
        self._label(label)
        yield
        self.append(f"br label %{end}")

    @contextmanager
    def when(self, condition: Value) -> Iterator[None]:
        """Run the body only if `condition` holds."""
        with self.branch(condition) as (yes, no):
            with yes:
                yield
            with no, nullcontext():
                pass

    # Calls

    def subroutine(
        self, name: str, arguments: Sequence[Type], result: Type | None, body: Body
    ) -> Callable[..., Value]:
        """Define a private function of the module and return what calls it.

        It is never inlined: large kernels compile several times faster in parts.
        """
        self.module.function(name, arguments, result, body, private=True)
        kind = result.llvm if result else "void"

        def call(kernel: "Kernel", *values: Value) -> Value:
            return kernel._call(f"@{name}", kind, result, values)

        return call

    def call_address(
        self, address: Value, arguments: Sequence[Value], result: Type | None = None
    ) -> Value:
        """Call a native function by its address."""
        kind = result.llvm if result else "void"
        return self._call(self._pointer(address), kind, result, arguments)

    def _call(
        self, callee: str, kind: str, result: Type | None, arguments: Sequence[Value]
    ) -> Value:
        call = f"call {kind} {callee}({', '.join(a.typed for a in arguments)})"
        if result is None:
            self.append(call)
            return Value(self, i64, "0")
        return self.emit(result, call)

    # Threads

    def split(self, count: Value, thread: Value, threads: Value) -> tuple[Value, Value]:
        """Return the first and the last+1 of `count` items that are `thread`'s share."""
        return (count * thread) // threads, (count * (thread + 1)) // threads

    def atomic_add(self, address: Value, value: Value) -> Value:
        """Add to a shared integer and return what it was (sequentially consistent)."""
        pointer = self._pointer(address)
        return self.emit(value.type, f"atomicrmw add ptr {pointer}, {value.typed} seq_cst")

    def atomic_exchange(self, address: Value, value: Value) -> Value:
        """Write a shared integer and return what it was (sequentially consistent)."""
        pointer = self._pointer(address)
        return self.emit(value.type, f"atomicrmw xchg ptr {pointer}, {value.typed} seq_cst")

    def compare_exchange(self, address: Value, old: Value, new: Value) -> Value:
        """Write a shared integer if it is `old`; return whether it was."""
        pointer, pair = self._pointer(address), f"{{ {old.type.llvm}, i1 }}"
        exchange = f"cmpxchg ptr {pointer}, {old.typed}, {new.typed} seq_cst seq_cst"
        both = self.emit(old.type, exchange)
        return self.emit(boolean, f"extractvalue {pair} {both.text}, 1")

    def load_acquire(self, of: Type, address: Value) -> Value:
        """Read a shared integer; what its writer wrote before is seen from here on."""
        pointer = self._pointer(address)
        size = of.bytes
        return self.emit(of, f"load atomic {of.llvm}, ptr {pointer} acquire, align {size}")

    def store_release(self, address: Value, value: Value) -> None:
        """Write a shared integer; whoever reads it sees everything written before."""
        pointer, size = self._pointer(address), value.type.bytes
        self.append(f"store atomic {value.typed}, ptr {pointer} release, align {size}")

    def ticks(self) -> Value:
        """Read a counter (u64) that runs at a steady rate, which differs between machines."""
        name = "readcyclecounter" if self.target.is_x86 else "readsteadycounter"
        return self.intrinsic(f"llvm.{name}", u64, [])

    def pause(self) -> None:
        """Tell the processor that this is a spinning wait."""
        if self.target.is_x86:
            self.intrinsic("llvm.x86.sse2.pause", None, [])
        elif self.target.is_arm:
            self.intrinsic("llvm.aarch64.hint", None, ["i32 1"])


def build(target: Target, name: str, body: Body) -> str:
    """Return the LLVM text of a kernel: `body(kernel, record, thread, threads)` emits it."""
    module = Module(target)
    module.function(name, (i64, i64, i64), None, body)
    return module.text()


__all__ = ["Fields", "Kernel", "Module", "Variable", "boolean", "build", "i32"]
