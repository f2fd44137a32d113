"""The files that an ONNX model keeps its weights in: found, and confined to the model's folder.

ONNX Runtime before 1.24 follows links out of the folder. So the locations are read from the model
before it is loaded. Only the fields that lead to a location are read, and weights are skipped.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_TENSOR: Final = "TensorProto"
_ENTRY: Final = "StringStringEntryProto"
# The fields that lead to a tensor, by the message that has them.
# Source: ONNX, onnx.proto3.
_FIELDS: Final = {
    "ModelProto": {7: "GraphProto", 20: "TrainingInfoProto", 25: "FunctionProto"},
    "TrainingInfoProto": {1: "GraphProto", 2: "GraphProto"},
    "GraphProto": {1: "NodeProto", 5: _TENSOR, 15: "SparseTensorProto"},
    "FunctionProto": {7: "NodeProto", 11: "AttributeProto"},
    "NodeProto": {5: "AttributeProto"},
    "AttributeProto": {
        5: _TENSOR,
        6: "GraphProto",
        10: _TENSOR,
        11: "GraphProto",
        22: "SparseTensorProto",
        23: "SparseTensorProto",
    },
    "SparseTensorProto": {1: _TENSOR, 2: _TENSOR},
    _TENSOR: {13: _ENTRY},
}
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_VARINT_BYTES: Final = 10
_SHOWN: Final = 200


class MalformedModel(ValueError):
    """The file is no ONNX model."""

    def __init__(self) -> None:
        super().__init__("the file is no ONNX model")


def check_external_files(path: Path) -> None:
    """Check that all weights of a model are in its folder, with symbolic links resolved.

    Raises:
        OSError: The model cannot be read.
        MalformedModel: The locations cannot be read.
        ValueError: A file is elsewhere or missing.
    """
    folder = path.parent.resolve()
    for location in dict.fromkeys(external_locations(path)):
        # Not as a path that is absolute or empty, and not as the address in memory that ONNX
        # Runtime writes as a location: only a file counts.
        found = (folder / location).resolve()
        if not found.is_relative_to(folder):
            raise ValueError(f"its weights are in {location[:_SHOWN]!r}: outside of its folder")
        if not found.is_file():
            raise ValueError(f"its weights are in {location[:_SHOWN]!r}: there is no such file")


def external_locations(path: Path) -> Iterator[str]:
    """Yield the locations of weights that are not in the model itself.

    Raises:
        OSError: The model cannot be read.
        MalformedModel: It is malformed.
    """
    with path.open("rb") as file:
        if path.stat().st_size == 0:
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            waiting = [("ModelProto", 0, len(data))]
            while waiting:
                kind, start, end = waiting.pop()
                for number, begin, stop in _byte_fields(data, start, end):
                    inner = _FIELDS[kind].get(number)
                    if inner == _ENTRY:
                        yield from _location(data, begin, stop)
                    elif inner is not None:
                        waiting.append((inner, begin, stop))


def _location(data: mmap.mmap, start: int, end: int) -> Iterator[str]:
    """Yield the value of an entry, if it is a location."""
    fields = {number: data[begin:stop] for number, begin, stop in _byte_fields(data, start, end)}
    if fields.get(1) == b"location":
        yield fields.get(2, b"").decode()


def _byte_fields(data: mmap.mmap, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield number, begin and end of each field of a message that has a length."""
    at = start
    while at < end:
        tag, at = _varint(data, at, end)
        wire_type = tag & 7
        if wire_type == _BYTES:
            size, at = _varint(data, at, end)
            if size > end - at:
                raise MalformedModel
            yield tag >> 3, at, at + size
            at += size
        elif wire_type == _VARINT:
            _, at = _varint(data, at, end)
        elif wire_type in {_FIXED32, _FIXED64}:
            at += 4 if wire_type == _FIXED32 else 8
        else:
            raise MalformedModel
    if at != end:
        raise MalformedModel


def _varint(data: mmap.mmap, at: int, end: int) -> tuple[int, int]:
    """Return a number and where it ends."""
    value = 0
    for index in range(min(_VARINT_BYTES, end - at)):
        byte = data[at + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:  # noqa: PLR2004  # the last byte
            return value, at + index + 1
    raise MalformedModel
