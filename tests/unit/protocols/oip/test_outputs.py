"""Outputs asked for as classes: their values as C prints them."""

from __future__ import annotations

import pytest

from gateway.ir.calls import InferRequest, InferResponse
from gateway.ir.context import ModelRef
from gateway.ir.data import SharedMemoryData
from gateway.ir.errors import InvalidRequest
from gateway.ir.limits import DEFAULT_LIMITS
from gateway.ir.tensor import RequestedOutput, as_items, items_tensor
from gateway.protocols.oip.outputs import output_parameters, requested_output, with_c_values

M = ModelRef("m")
ASKED = InferRequest(model=M, outputs=(RequestedOutput("o", 1),))


@pytest.mark.parametrize(
    ("item", "printed"),
    [
        (b"0.10000000149011612:3:plum", b"0.100000:3:plum"),
        (b"123456792.0:1", b"123456792.000000:1"),
        (b"-1e-07:0", b"-0.000000:0"),
        (b"1e+20:0:1.5:x", b"100000000000000000000.000000:0:1.5:x"),
        (b"inf:2", b"inf:2"),
        (b"-inf:2", b"-inf:2"),
        (b"nan:2", b"nan:2"),
        (b"7:2:3.5:label", b"7:2:3.5:label"),
        (b"2.000000:2:plum", b"2.000000:2:plum"),
        (b"1.2.3:0", b"1.2.3:0"),
        (b"text", b"text"),
    ],
)
def test_values_are_printed_as_c_prints_them(item: bytes, printed: bytes) -> None:
    """Six decimals for floats, integers as they are, and nothing else is touched."""
    reply = InferResponse(model=M, outputs=(items_tensor("o", (1,), [item]),))
    assert [printed] == as_items(with_c_values(ASKED, reply).outputs[0])


def test_answers_without_classes_are_as_they_were() -> None:
    """Nobody looks at outputs that are values."""
    reply = InferResponse(model=M, outputs=(items_tensor("o", (1,), [b"1.5:0"]),))
    assert reply is with_c_values(InferRequest(model=M), reply)


def test_parameters_ask_for_it() -> None:
    """What was read of the parameters makes them again."""
    shared = SharedMemoryData("r", 4, 8)
    assert {
        "k": 1,
        "shared_memory_region": "r",
        "shared_memory_byte_size": 8,
        "shared_memory_offset": 4,
    } == output_parameters(RequestedOutput("o", 0, {"k": 1}, shared))
    assert {"classification": 2} == output_parameters(RequestedOutput("o", 2))


def test_classification_count_means_classification() -> None:
    """Either name asks for classes; both together are refused."""
    output = requested_output("o", {"classification_count": 3}, DEFAULT_LIMITS, least_classes=0)
    assert RequestedOutput("o", 3) == output
    both = {"classification_count": 3, "classification": 3}
    with pytest.raises(InvalidRequest, match="expected one of the two"):
        requested_output("o", both, DEFAULT_LIMITS, least_classes=0)
