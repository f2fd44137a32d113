"""Tensors in the form of GraphPipe, which has no BOOL."""

from gateway.ir.datatypes import Datatype
from gateway.ir.tensor import raw_tensor
from gateway.protocols.graphpipe.datatypes import NUMBERS, wire_tensor


def test_a_bool_is_the_number_0_or_1() -> None:
    """Any other byte is true, and 1 as a number."""
    tensor = raw_tensor("x", Datatype.BOOL, (4,), memoryview(b"\x00\x02\xff\x01"))
    found = wire_tensor(tensor)
    assert NUMBERS[Datatype.UINT8] == found.number
    assert b"\x00\x01\x01\x01" == bytes(found.data or b"")
