"""A kernel that stores a number, in a module that other processes can import too."""

from corral.devices.cpu.simd import Kernel, Value, i64


def store_number(k: Kernel, record: Value, thread: Value, threads: Value, number: int) -> None:
    """Store `number` where the record is."""
    k.store(record, k.constant(i64, number))
