"""The size of the inputs of an inference, as rules and quotas count it."""

from __future__ import annotations

import pytest

from gateway.ir.calls import InferRequest
from gateway.ir.context import ModelRef
from gateway.ir.tensors.data import RawData
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import Shape, Tensor
from gateway.policies.access.rules import Size
from gateway.policies.access.sizes import size_of


@pytest.mark.parametrize(
    ("datatype", "shape", "rows", "data", "expected"),
    [
        (Datatype.FP32, (2, 3), None, bytes(24), Size(6, 24)),
        (Datatype.FP32, (3,), 2, bytes(24), Size(6, 24)),
        (Datatype.FP32, None, 2, bytes(24), Size(6, 24)),
        (None, (3,), 2, bytes(24), Size(6, 24)),
        (None, None, 2, bytes(24), Size(24, 24)),
        (Datatype.BYTES, (2,), None, b"\x01\0\0\0a\x03\0\0\0bcd", Size(2, 4)),
    ],
)
def test_inputs_count_as_they_were_sent(
    datatype: Datatype | None, shape: Shape | None, rows: int | None, data: bytes, expected: Size
) -> None:
    """Without a datatype the bytes of the body count, and without a shape as elements too."""
    tensor = Tensor("x", datatype, shape, RawData(memoryview(data)))
    call = InferRequest(model=ModelRef("m"), inputs=(tensor,), batch_size=rows)
    assert expected == size_of(call)
