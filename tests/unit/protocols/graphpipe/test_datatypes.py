"""Tensors in the form of GraphPipe, which has no BOOL."""

import math

import pytest

from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import raw_tensor
from gateway.protocols.graphpipe.datatypes import NUMBERS, wire_tensor


def test_bool_is_written_as_0_or_1() -> None:
    """A byte other than 0 is true, and is written as 1."""
    tensor = raw_tensor("x", Datatype.BOOL, (4,), memoryview(b"\x00\x02\xff\x01"))
    found = wire_tensor(tensor)
    assert NUMBERS[Datatype.UINT8] == found.number
    assert b"\x00\x01\x01\x01" == bytes(found.data or b"")


@pytest.mark.parametrize("datatype", [Datatype.BOOL, Datatype.BF16])
@pytest.mark.parametrize("shape", [(), (6,), (2, 3), (3, 1, 2), (2, 0)])
def test_data_of_substitutes_have_one_dimension_of_bytes(
    datatype: Datatype, shape: tuple[int, ...]
) -> None:
    """Transports take the length of a buffer as its size, whatever the shape of the tensor."""
    size_bytes = math.prod(shape) * datatype.size_bytes
    data = wire_tensor(raw_tensor("x", datatype, shape, memoryview(bytes(size_bytes)))).data
    assert data is not None
    assert data.nbytes == len(data)
