"""What planning a header found, as JSON: for the pipe of the planning process, and for the index.

What is read back is checked: of a damaged text nothing is believed.
"""

from collections.abc import Mapping
from typing import Any

from corral.router.entry import Footprint, LayerBytes, Planned, Unusable

Header = Planned | Unusable


def to_json(header: Header) -> dict[str, Any]:
    """Return plain lists, numbers and texts."""
    if isinstance(header, Unusable):
        return {"code": header.code, "message": header.message}
    return {
        "fingerprint": header.fingerprint,
        "architecture": header.architecture,
        "context": header.context,
        "trained": header.trained_context,
        "layers": header.num_layers,
        "advice": dict(header.advice),
        "footprints": [_footprint(footprint) for footprint in header.footprints],
    }


def from_json(data: Any) -> Header:
    """Return what `to_json` took.

    Raises:
        ValueError: if it is anything else.
    """
    try:
        if "code" in data:
            return Unusable(_text(data["code"]), _text(data["message"]))
        return Planned(
            fingerprint=_text(data["fingerprint"]),
            architecture=_text(data["architecture"]),
            context=_whole(data["context"]),
            trained_context=_whole(data["trained"]),
            num_layers=_whole(data["layers"]),
            footprints=tuple(map(_footprint_of, data["footprints"])),
            advice={_text(key): _number(value) for key, value in data["advice"].items()},
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"no header: {type(error).__name__}: {error}") from error


def _footprint(footprint: Footprint) -> dict[str, Any]:
    layers = footprint.layers
    return {
        "kind": footprint.kind,
        "own": dict(footprint.own),
        "host": dict(footprint.host),
        "weights": layers.weights,
        "state": layers.state,
        "shared": layers.shared,
        "granularity": footprint.granularity,
    }


def _footprint_of(data: Any) -> Footprint:
    weights, state = _wholes(data["weights"]), _wholes(data["state"])
    if not weights or len(weights) != len(state):
        raise ValueError("a footprint without layers")
    shared = tuple((_whole(size), _wholes(layers)) for size, layers in data["shared"])
    return Footprint(
        kind=_text(data["kind"]),
        own=_sizes(data["own"]),
        host=_sizes(data["host"]),
        layers=LayerBytes(weights, state, shared),
        granularity=max(1, _whole(data["granularity"])),
    )


def _sizes(data: Mapping[str, Any]) -> dict[str, int]:
    return {_text(key): _whole(value) for key, value in data.items()}


def _wholes(data: Any) -> tuple[int, ...]:
    return tuple(map(_whole, data))


def _whole(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError("no number of bytes or tokens")
    return value


def _number(value: Any) -> float:
    if type(value) not in (int, float):
        raise ValueError("no number")
    return float(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("no text")
    return value
