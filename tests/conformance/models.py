"""Models of the gateway's own process for its certification, as those of `faulty_server.py`."""

from __future__ import annotations

from typing import Any

from gateway.backends.python import declares
from gateway.ir.metadata import TensorMetadata
from gateway.ir.tensors.datatypes import Datatype
from tests.conformance.faulty_server import TYPED


def _identity(shape: tuple[int, ...], *datatypes: Datatype) -> Any:
    def ports(name: str) -> tuple[TensorMetadata, ...]:
        return tuple(TensorMetadata(f"{name}_{each.name}", each, shape) for each in datatypes)

    @declares(inputs=ports("IN"), outputs=ports("OUT"))
    def identity(inputs: dict[str, Any]) -> dict[str, Any]:
        return {f"OUT{name[2:]}": array for name, array in inputs.items()}

    return identity


copy = _identity((-1,), *map(Datatype, TYPED))
halves = _identity((-1,), Datatype.FP16, Datatype.BF16)
matrix = _identity((-1, -1), Datatype.FP32)
doubles = _identity((-1, -1), Datatype.FP64)
integers = _identity((-1, -1), Datatype.INT32)
