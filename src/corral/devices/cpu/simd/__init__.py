"""A small language for kernels, embedded in Python: running the Python function emits the code.

A kernel is a Python function that is called once, at compile time. What it computes with are
`Value`s; each operator appends one LLVM instruction. Python's own loops unroll, Python lists hold
register tiles, Python conditions specialize. What shall loop or branch at run time says so:

    FIELDS = ("x", "out", "count", "factor")

    def scale(k: Kernel, record: Value, thread: Value, threads: Value) -> None:
        a = k.fields(record, FIELDS)              # 64-bit words: addresses, integers
        factor = low_word(a.factor, f32)          # an F32 parameter lies in a word's low half
        first, last = k.split(a.count, thread, threads)
        with k.range(first, last, 16) as n:       # n is an i64 value
            rest = last - n                       # tails: masked accesses touch nothing else
            v = k.load_first(f32.x(16), a.x + 4 * n, rest)
            k.store_first(a.out + 4 * n, v * factor, rest)

- Every kernel has the signature (record, thread, threads), all i64; it splits its work itself.
- Types: `i8 … u64`, `f32`, `f64`, and `f16`, `bf16` to load, store and `convert` (through f32);
  `f32.x(16)` is a vector. 16 lanes are natural on every processor: LLVM splits them where needed.
- Operands must agree in type. Numbers adapt to the other operand and scalars are splat; all else
  is said: `convert(v, f32)` by value, `v.bits(u32.x(16))` by bits. Constants: `k.constant`.
- Loop-carried state is a variable: `total = k.variable(f32.x(16), 0.0)`, then
  `total.value = fma(a, b, total.value)`. Variables become registers.
- Control flow: `k.range`, `k.repeat_while`, `k.when(c)`, `with k.branch(c) as (yes, no)`.
- Comparisons give masks for `select`; equality is `a.equals(b)`.
- Floating point is exactly what is written: nothing is contracted, reassociated or approximated;
  use `fma` where one rounding is wanted. `reduce_add` has a fixed order.
- Kernels allocate nothing and call nothing but their own subroutines; `k.stack(bytes)` is scratch.

`compile.py` turns kernels into machine code and keeps it.
"""

from corral.devices.cpu.simd.arithmetic import (
    absolute,
    exp,
    first_lanes,
    fma,
    look_up,
    low_word,
    maximum,
    minimum,
    reduce_add,
    reduce_maximum,
    round_half_even,
    select,
    sqrt,
)
from corral.devices.cpu.simd.convert import convert
from corral.devices.cpu.simd.dot import RunningDot, dot_u8_i8
from corral.devices.cpu.simd.kernel import Fields, Kernel, Module, Variable, build
from corral.devices.cpu.simd.types import (
    Type,
    bf16,
    boolean,
    f16,
    f32,
    f64,
    i8,
    i16,
    i32,
    i64,
    u8,
    u16,
    u32,
    u64,
)
from corral.devices.cpu.simd.value import Value, concatenate, part, shuffle, splat

__all__ = [
    "Fields",
    "Kernel",
    "Module",
    "RunningDot",
    "Type",
    "Value",
    "Variable",
    "absolute",
    "bf16",
    "boolean",
    "build",
    "concatenate",
    "convert",
    "dot_u8_i8",
    "exp",
    "f16",
    "f32",
    "f64",
    "first_lanes",
    "fma",
    "i8",
    "i16",
    "i32",
    "i64",
    "look_up",
    "low_word",
    "maximum",
    "minimum",
    "part",
    "reduce_add",
    "reduce_maximum",
    "round_half_even",
    "select",
    "shuffle",
    "splat",
    "sqrt",
    "u8",
    "u16",
    "u32",
    "u64",
]
