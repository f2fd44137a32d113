"""Small ONNX models written by hand, field by field, so that tests need no `onnx` package."""

from __future__ import annotations

from collections.abc import Sequence

# TensorProto.DataType, onnx.proto.
ELEMENT_TYPES = {
    "FP32": 1,
    "UINT8": 2,
    "INT8": 3,
    "UINT16": 4,
    "INT16": 5,
    "INT32": 6,
    "INT64": 7,
    "BYTES": 8,
    "BOOL": 9,
    "FP16": 10,
    "FP64": 11,
    "UINT32": 12,
    "UINT64": 13,
    "BF16": 16,
}
COMPLEX64 = 14

Dims = Sequence[int | str]
Value = tuple[str, int, Dims]


def model(
    nodes: Sequence[tuple[str, Sequence[str], Sequence[str]]],
    inputs: Sequence[Value],
    outputs: Sequence[Value],
) -> bytes:
    """Write a model of *nodes*, each an operator with its inputs and outputs."""
    graph = b"".join(_bytes(1, _node(*node)) for node in nodes) + _bytes(2, b"graph")
    graph += b"".join(_bytes(11, _value(*value)) for value in inputs)
    graph += b"".join(_bytes(12, _value(*value)) for value in outputs)
    opset = _bytes(1, b"") + _integer(2, 17)
    return _integer(1, 8) + _bytes(7, graph) + _bytes(8, opset)


def identity(element_type: int, dims: Dims = ("n",)) -> bytes:
    """Write a model that returns its input X as Y."""
    return model(
        [("Identity", ["X"], ["Y"])], [("X", element_type, dims)], [("Y", element_type, dims)]
    )


def external_sum(location: str, *, of_node: bool = False) -> bytes:
    """Write a model that adds two FP32 of another file to X and returns them as Y.

    Args:
        location: The other file.
        of_node: Whether a constant node has the weights, not the graph.
    """
    entries = {"location": location, "offset": "0", "length": "8"}
    weights = _integer(1, 2) + _integer(2, 1) + _bytes(8, b"W")
    for key, value in entries.items():
        weights += _bytes(13, _bytes(1, key.encode()) + _bytes(2, value.encode()))
    weights += _integer(14, 1)
    add = _bytes(1, _node("Add", ["X", "W"], ["Y"]))
    if of_node:
        constant = _bytes(5, _bytes(1, b"value") + _bytes(5, weights) + _integer(20, 4))
        graph = _bytes(1, _node("Constant", [], ["W"]) + constant) + add
    else:
        graph = add + _bytes(5, weights)
    graph += (
        _bytes(2, b"graph") + _bytes(11, _value("X", 1, (2,))) + _bytes(12, _value("Y", 1, (2,)))
    )
    return _integer(1, 8) + _bytes(7, graph) + _bytes(8, _bytes(1, b"") + _integer(2, 17))


def sum_of_two(dims: Dims = ("n", 2)) -> bytes:
    """Write a model that returns the sum of A and B, FP32, as C."""
    return model([("Add", ["A", "B"], ["C"])], [("A", 1, dims), ("B", 1, dims)], [("C", 1, dims)])


def _node(operator: str, inputs: Sequence[str], outputs: Sequence[str]) -> bytes:
    return (
        b"".join(_bytes(1, name.encode()) for name in inputs)
        + b"".join(_bytes(2, name.encode()) for name in outputs)
        + _bytes(4, operator.encode())
    )


def _value(name: str, element_type: int, dims: Dims) -> bytes:
    shape = b"".join(
        _bytes(1, _integer(1, dim) if isinstance(dim, int) else _bytes(2, dim.encode()))
        for dim in dims
    )
    tensor = _integer(1, element_type) + _bytes(2, shape)
    return _bytes(1, name.encode()) + _bytes(2, _bytes(1, tensor))


def _integer(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _bytes(field: int, data: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])
