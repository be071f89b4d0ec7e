"""Functions that model files call to write a graph, one for each operation.

A `GraphBuilder` collects nodes in the order they are made and gives each a name with its layer, so
that any value can be dumped or compared. It applies no rule: `verify.py` does, on the whole graph.
"""

from corral.quant.types import DType
from corral.tensor.graph import Graph, ShapeClass, order
from corral.tensor.ops import (
    Activation,
    Attend,
    Attributes,
    Cap,
    Columns,
    Constant,
    Embed,
    Gate,
    Norm,
    Op,
    Product,
    Rope,
    Rotation,
)
from corral.tensor.tensor import Extent, Tensor


class GraphBuilder:
    """Collects the nodes of one graph for one shape class."""

    def __init__(self, shape_class: ShapeClass) -> None:
        self.shape_class = shape_class
        self.layer: int | None = None
        """Layer that new nodes belong to; the model file sets it."""
        self._nodes: list[Tensor] = []
        rows = shape_class.rows
        self.tokens = _input("tokens", (rows,), Extent.ROWS)
        self.positions = _input("positions", (rows,), Extent.ROWS)
        self.sequences = _input("sequences", (rows,), Extent.ROWS)
        self._tables: dict[str, Tensor] = {}
        self.output_rows = _input("output_rows", (shape_class.outputs,), Extent.OUTPUTS)

    def finish(self, *outputs: Tensor) -> Graph:
        """Return the graph of what the outputs need."""
        return Graph(order(outputs, self._nodes), outputs, self.shape_class)

    def weight(self, name: str, dtype: DType, shape: tuple[int, ...]) -> Tensor:
        """Name a tensor of the model file."""
        return Tensor(name, Op.WEIGHT, dtype, shape, layer=self.layer)

    def state(self, name: str, dtype: DType, shape: tuple[int, ...]) -> Tensor:
        """Name the keys and values of one layer: (blocks, K|V, kv heads, tokens, dim)."""
        return Tensor(name, Op.STATE, dtype, shape, layer=self.layer)

    def constant(self, name: str, values: tuple[float, ...]) -> Tensor:
        """Make a row of F64 numbers known now."""
        shape = (len(values),)
        return Tensor(name, Op.CONSTANT, DType.F64, shape, attributes=Constant(values))

    def embed(self, tokens: Tensor, table: Tensor, *, scale: float = 1.0) -> Tensor:
        """Look up a row of the table for each token: (rows,) → (rows, width)."""
        shape = (tokens.shape[0], table.columns)
        return self._node("embed", Op.EMBED, shape, (tokens, table), Embed(scale))

    def rms_norm(
        self, name: str, x: Tensor, weight: Tensor, epsilon: float, *, group: int | None = None
    ) -> Tensor:
        """Divide each run of `group` columns (default: the row) by its rms, times the weight."""
        attributes = Norm(epsilon, group or x.columns)
        return self._node(name, Op.RMS_NORM, x.shape, (x, weight), attributes)

    def matmul(
        self,
        name: str,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        *,
        is_precise: bool = False,
    ) -> Tensor:
        """Multiply rows by a matrix stored row by row: (rows, K) × (N, K) → (rows, N).

        A precise product asks devices that round activations to spend more bits on these.
        """
        sources = (x, weight) if bias is None else (x, weight, bias)
        shape = (x.shape[0], weight.shape[0])
        return self._node(name, Op.MATMUL, shape, sources, Product(is_precise))

    def add(self, name: str, a: Tensor, b: Tensor) -> Tensor:
        """Add two tensors of one shape."""
        return self._node(name, Op.ADD, a.shape, (a, b))

    def mul(self, name: str, a: Tensor, b: Tensor) -> Tensor:
        """Multiply two tensors of one shape."""
        return self._node(name, Op.MUL, a.shape, (a, b))

    def activate(self, name: str, x: Tensor, activation: Activation) -> Tensor:
        """Apply a non-linearity to each element."""
        return self._node(name, Op.ACTIVATE, x.shape, (x,), Gate(activation))

    def softcap(self, name: str, x: Tensor, limit: float) -> Tensor:
        """Bend each element to stay inside ±limit."""
        return self._node(name, Op.SOFTCAP, x.shape, (x,), Cap(limit))

    def rotations(
        self,
        name: str,
        frequencies: Tensor,
        factors: Tensor | None = None,
        *,
        magnitude: float = 1.0,
    ) -> Tensor:
        """Give each row the cosines, then the sines, of position · frequency / factor."""
        sources = (self.positions, frequencies, *(() if factors is None else (factors,)))
        shape = (self.shape_class.rows, 2 * frequencies.columns)
        return self._node(name, Op.ROTATIONS, shape, sources, Rotation(magnitude))

    def rope(self, name: str, x: Tensor, rotations: Tensor, attributes: Rope) -> Tensor:
        """Turn the first dimensions of each head of x."""
        return self._node(name, Op.ROPE, x.shape, (x, rotations), attributes)

    def tables(self, name: str) -> Tensor:
        """Name the block tables of one group of layers: (sequences, blocks)."""
        if name not in self._tables:
            shape = (self.shape_class.sequences, self.shape_class.blocks)
            self._tables[name] = _input(name, shape, Extent.FIXED)
        return self._tables[name]

    def kv_append(self, name: str, k: Tensor, v: Tensor, state: Tensor, tables: Tensor) -> Tensor:
        """Write keys and values to the blocks of each row's position; the result is the state."""
        sources = (k, v, state, self.positions, self.sequences, tables)
        return self._append(
            Tensor(name, Op.KV_APPEND, state.dtype, state.shape, sources, layer=self.layer)
        )

    def attention(self, name: str, q: Tensor, appended: Tensor, attributes: Attend) -> Tensor:
        """Attend from each row to the earlier positions of its sequence."""
        sources = (q, appended, self.positions, self.sequences, appended.sources[5])
        shape = (q.shape[0], attributes.heads * attributes.head_dim)
        return self._node(name, Op.ATTENTION, shape, sources, attributes)

    def select_rows(self, name: str, x: Tensor) -> Tensor:
        """Keep the rows whose logits are wanted."""
        shape = (self.shape_class.outputs, x.columns)
        sources = (x, self.output_rows)
        return self._append(
            Tensor(name, Op.SELECT_ROWS, x.dtype, shape, sources, None, Extent.OUTPUTS, self.layer)
        )

    def view(self, name: str, x: Tensor, first: int, columns: int) -> Tensor:
        """Name a run of columns; no bytes move."""
        return self._node(name, Op.VIEW, (x.shape[0], columns), (x,), Columns(first))

    def _node(
        self,
        name: str,
        op: Op,
        shape: tuple[int, ...],
        sources: tuple[Tensor, ...],
        attributes: Attributes = None,
    ) -> Tensor:
        extent = sources[0].extent
        return self._append(
            Tensor(name, op, DType.F32, shape, sources, attributes, extent, self.layer)
        )

    def _append(self, tensor: Tensor) -> Tensor:
        self._nodes.append(tensor)
        return tensor


def _input(name: str, shape: tuple[int, ...], extent: Extent) -> Tensor:
    return Tensor(name, Op.INPUT, DType.I32, shape, extent=extent)
