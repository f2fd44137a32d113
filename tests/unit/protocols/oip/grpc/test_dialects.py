"""Requests that the dialects reject over gRPC."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.ir.calls import InferRequest
from gateway.ir.context import ModelRef, Parameter
from gateway.ir.errors import Unsupported
from gateway.ir.tensors.data import SharedMemoryData
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import RequestedOutput, Tensor, raw_tensor
from gateway.protocols.oip.dialects import check_version
from gateway.protocols.oip.grpc.dialects import DIALECTS, check_infer

M = ModelRef("m")
BF16 = raw_tensor("B", Datatype.BF16, (1,), memoryview(b"\0\0"))
SMALL = ["mlserver", "kserve", "ovms"]


def test_triton_accepts_all_of_the_protocol() -> None:
    """Triton accepts doubles, an unsigned priority and BF16."""
    request = InferRequest(model=M, inputs=(BF16,))
    check_infer(DIALECTS["triton"], request, {"x": 0.5, "priority": 2**64 - 1, "b": True})


@pytest.mark.parametrize("dialect", SMALL)
def test_bf16_is_rejected(dialect: str) -> None:
    """BF16 is rejected for servers that do not support it."""
    request = InferRequest(model=M, inputs=(BF16,))
    with pytest.raises(Unsupported, match=f"'B' is BF16, which the dialect '{dialect}'"):
        check_infer(DIALECTS[dialect], request, {})


@pytest.mark.parametrize("dialect", SMALL)
def test_double_is_rejected(dialect: str) -> None:
    """A double parameter is rejected for servers that would ignore it."""
    with pytest.raises(Unsupported, match=r"'x' of the request is 0\.5: .* would ignore it"):
        check_infer(DIALECTS[dialect], InferRequest(model=M), {"x": 0.5})


@pytest.mark.parametrize(
    ("dialect", "key"), [("triton", "k"), ("triton", "sequence_id"), ("mlserver", "priority")]
)
def test_unsigned_integer_is_rejected(dialect: str, key: str) -> None:
    """An integer over 63 bits is rejected, except as a priority for Triton."""
    parameters: dict[str, Parameter] = {key: 2**63}
    with pytest.raises(Unsupported, match=f"'{key}' of the request is {2**63}"):
        check_infer(DIALECTS[dialect], InferRequest(model=M), parameters)


def test_parameters_of_tensors_are_checked_too() -> None:
    """A parameter of an input or a requested output is rejected if the server would ignore it."""
    tensor = raw_tensor("X", Datatype.UINT8, (0,), memoryview(b""), {"x": 0.5})
    output = RequestedOutput("Y", parameters={"x": 0.5})
    for request, place in (
        (InferRequest(model=M, inputs=(tensor,)), "input 'X'"),
        (InferRequest(model=M, outputs=(output,)), "output 'Y'"),
    ):
        with pytest.raises(Unsupported, match=f"parameter 'x' of the {place}"):
            check_infer(DIALECTS["kserve"], request, {})


REGION = SharedMemoryData("r", 0, 4)
HERE = Tensor("X", Datatype.FP32, (1,), REGION)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"outputs": (RequestedOutput("Y", classes=3),)}, "output 'Y' is requested as 3 classes"),
        ({"outputs": (RequestedOutput("Y", shared=REGION),)}, "'Y' is requested in shared memory"),
        ({"inputs": (HERE,)}, "input 'X' is in shared memory"),
    ],
)
def test_classes_and_shared_memory_are_rejected_for_mlserver(
    fields: dict[str, Any], text: str
) -> None:
    """Classes and shared memory pass for Triton and are rejected for MLServer."""
    request = InferRequest(model=M, **fields)
    check_infer(DIALECTS["triton"], request, {})
    with pytest.raises(Unsupported, match=text):
        check_infer(DIALECTS["mlserver"], request, {})


@pytest.mark.parametrize(
    ("dialect", "version"), [("triton", "1"), ("mlserver", "1"), ("ovms", "1"), ("kserve", "")]
)
def test_versions_pass_for_servers_that_have_them(dialect: str, version: str) -> None:
    """A model without a version passes for a server without versions."""
    check_version(DIALECTS[dialect], ModelRef("m", version))
