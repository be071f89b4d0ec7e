"""A graph as text, one line a node, for people and for golden tests."""

from corral.tensor.graph import Graph


def render(graph: Graph) -> str:
    """Return one line a node: name, operation, type, shape, sources."""
    lines = []
    for node in graph:
        shape = "×".join(map(str, node.shape))
        sources = ", ".join(source.name for source in node.sources)
        lines.append(f"{node.name:28} {node.op.name:14} {node.dtype.name:5} {shape:18} {sources}")
    return "\n".join(lines)
