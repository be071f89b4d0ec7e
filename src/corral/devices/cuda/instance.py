"""What a CUDA kernel is called and how it is cut up: all of a launch that no plan decides."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Instance:
    """One instance of a kernel template: what is compiled, kept and loaded by itself."""

    stem: str
    """The source is kernels/STEM.cu."""
    name: str
    """The name expression, as C++ writes it."""

    @classmethod
    def of(cls, stem: str, function: str, *arguments: int | bool | str) -> "Instance":
        """Return an instance of a kernel of namespace corral; without arguments it is no template.

        Strings name things of that namespace, numbers and truth values stand for themselves.
        """
        listed = f"<{', '.join(map(_argument, arguments))}>" if arguments else ""
        return cls(stem, f"corral::{function}{listed}")


def _argument(value: int | bool | str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"corral::{value}" if isinstance(value, str) else str(value)


@dataclass(frozen=True, slots=True)
class Kernel:
    """An instance and the shape of its launch; what is missing of a launch is its fields."""

    instance: Instance
    grid: tuple[int, int, int]
    threads: int
    """Of a block."""
    shared_bytes: int = 0
    """Dynamic shared memory of a block; more than 48 KiB must be asked for."""
