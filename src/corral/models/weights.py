"""The tensors of a file as a family asks for them: by name, with the shape it must have."""

from collections.abc import Mapping

from corral.errors import InvalidModelFile
from corral.gguf import TensorInfo
from corral.tensor.build import GraphBuilder
from corral.tensor.tensor import Tensor


class Weights:
    """Hands out weights of one file to one graph, each checked and each only once."""

    def __init__(self, builder: GraphBuilder, tensors: Mapping[str, TensorInfo]) -> None:
        self._builder = builder
        self._tensors = tensors
        self._made: dict[str, Tensor] = {}

    def has(self, name: str) -> bool:
        """Whether the file has a tensor of this name."""
        return name in self._tensors

    def get(self, name: str, *shape: int) -> Tensor:
        """Return a weight that must exist with this shape, slowest dimension first.

        Raises:
            InvalidModelFile: if it is missing or has another shape.
        """
        if name in self._made:
            return self._made[name]
        info = self._tensors.get(name)
        if info is None:
            raise InvalidModelFile(f"the file has no tensor {name}, which its architecture needs")
        if info.shape != shape:
            raise InvalidModelFile(
                f"tensor {name} has shape {'×'.join(map(str, info.shape))}, "
                f"expected {'×'.join(map(str, shape))}"
            )
        self._made[name] = self._builder.weight(name, info.dtype, shape)
        return self._made[name]

    def find(self, name: str, *shape: int) -> Tensor | None:
        """Return a weight that may be missing."""
        return self.get(name, *shape) if self.has(name) else None
