"""Outputs requested as classes, whose values have the format of C, and parameters of outputs."""

from __future__ import annotations

import pytest

from gateway.ir.calls import InferRequest, InferResponse
from gateway.ir.context import ModelRef
from gateway.ir.errors import InvalidRequest
from gateway.ir.limits import DEFAULT_LIMITS
from gateway.ir.tensors.data import SharedMemoryData
from gateway.ir.tensors.tensor import RequestedOutput, as_items, items_tensor
from gateway.protocols.oip.outputs import output_parameters, requested_output, with_c_values

M = ModelRef("m")
CALL = InferRequest(model=M, outputs=(RequestedOutput("o", 1),))


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
def test_class_values_have_the_format_of_c(item: bytes, printed: bytes) -> None:
    """Floats have six decimals; integers and other text are unchanged."""
    reply = InferResponse(model=M, outputs=(items_tensor("o", (1,), [item]),))
    assert [printed] == as_items(with_c_values(CALL, reply).outputs[0])


def test_replies_without_classes_are_unchanged() -> None:
    """The reply to a call without classes is returned as it is."""
    reply = InferResponse(model=M, outputs=(items_tensor("o", (1,), [b"1.5:0"]),))
    assert reply is with_c_values(InferRequest(model=M), reply)


def test_output_parameters_are_restored() -> None:
    """The parameters of a requested output are restored from its fields."""
    shared = SharedMemoryData("r", 4, 8)
    assert {
        "k": 1,
        "shared_memory_region": "r",
        "shared_memory_byte_size": 8,
        "shared_memory_offset": 4,
    } == output_parameters(RequestedOutput("o", 0, {"k": 1}, shared))
    assert {"classification": 2} == output_parameters(RequestedOutput("o", 2))


def test_classification_count_means_classification() -> None:
    """Either name requests classes; both together are rejected."""
    output = requested_output("o", {"classification_count": 3}, DEFAULT_LIMITS, least_classes=0)
    assert RequestedOutput("o", 3) == output
    both = {"classification_count": 3, "classification": 3}
    with pytest.raises(InvalidRequest, match="expected one of the two"):
        requested_output("o", both, DEFAULT_LIMITS, least_classes=0)
