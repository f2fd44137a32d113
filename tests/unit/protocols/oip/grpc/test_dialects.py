"""What cannot be asked of each kind of server over gRPC."""

from __future__ import annotations

import pytest

from gateway.ir.calls import InferRequest
from gateway.ir.context import ModelRef, Parameter
from gateway.ir.data import SharedMemoryData
from gateway.ir.datatypes import Datatype
from gateway.ir.errors import Unsupported
from gateway.ir.tensor import RequestedOutput, Tensor, raw_tensor
from gateway.protocols.oip.grpc.dialects import DIALECTS, check_infer, check_version

M = ModelRef("m")
BF16 = raw_tensor("B", Datatype.BF16, (1,), memoryview(b"\0\0"))
SMALL = ["mlserver", "kserve", "ovms"]


def test_triton_takes_what_the_protocol_has() -> None:
    """Doubles, an unsigned priority and BF16 are asked of Triton."""
    request = InferRequest(model=M, inputs=(BF16,))
    check_infer(DIALECTS["triton"], request, {"x": 0.5, "priority": 2**64 - 1, "b": True})


@pytest.mark.parametrize("dialect", SMALL)
def test_bf16_is_refused(dialect: str) -> None:
    """BF16 is refused where it is not known."""
    request = InferRequest(model=M, inputs=(BF16,))
    with pytest.raises(Unsupported, match=f"'B' is BF16, which the dialect '{dialect}'"):
        check_infer(DIALECTS[dialect], request, {})


@pytest.mark.parametrize("dialect", SMALL)
def test_double_is_refused(dialect: str) -> None:
    """A double would vanish in a server that does not know the field."""
    with pytest.raises(Unsupported, match=r"'x' of the request is 0\.5: .* would ignore it"):
        check_infer(DIALECTS[dialect], InferRequest(model=M), {"x": 0.5})


@pytest.mark.parametrize(
    ("dialect", "key"), [("triton", "k"), ("triton", "sequence_id"), ("mlserver", "priority")]
)
def test_unsigned_integer_is_refused(dialect: str, key: str) -> None:
    """Integers over 63 bits go to Triton as a priority only."""
    parameters: dict[str, Parameter] = {key: 2**63}
    with pytest.raises(Unsupported, match=f"'{key}' of the request is {2**63}"):
        check_infer(DIALECTS[dialect], InferRequest(model=M), parameters)


def test_parameters_of_tensors_are_checked_too() -> None:
    """A parameter of an input or a requested output may vanish as well."""
    tensor = raw_tensor("X", Datatype.UINT8, (0,), memoryview(b""), {"x": 0.5})
    output = RequestedOutput("Y", parameters={"x": 0.5})
    for request, place in (
        (InferRequest(model=M, inputs=(tensor,)), "input 'X'"),
        (InferRequest(model=M, outputs=(output,)), "output 'Y'"),
    ):
        with pytest.raises(Unsupported, match=f"parameter 'x' of the {place}"):
            check_infer(DIALECTS["kserve"], request, {})


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (
            InferRequest(model=M, outputs=(RequestedOutput("Y", classes=3),)),
            "output 'Y' is requested as 3 classes",
        ),
        (
            InferRequest(
                model=M, outputs=(RequestedOutput("Y", shared=SharedMemoryData("r", 0, 4)),)
            ),
            "output 'Y' is requested in shared memory",
        ),
        (
            InferRequest(
                model=M, inputs=(Tensor("X", Datatype.FP32, (1,), SharedMemoryData("r", 0, 4)),)
            ),
            "input 'X' is in shared memory",
        ),
    ],
)
def test_classes_and_places_only_where_they_are_known(request_: InferRequest, text: str) -> None:
    """A server that would pass over them is not asked; Triton is."""
    check_infer(DIALECTS["triton"], request_, {})
    with pytest.raises(Unsupported, match=text):
        check_infer(DIALECTS["mlserver"], request_, {})


@pytest.mark.parametrize("dialect", ["triton", "mlserver", "ovms"])
def test_version_is_asked_where_there_are_versions(dialect: str) -> None:
    """A version goes to servers that look at it."""
    check_version(DIALECTS[dialect], ModelRef("m", "1"))


def test_any_version_is_asked_of_kserve() -> None:
    """A model without a version can be asked of a server without versions."""
    check_version(DIALECTS["kserve"], M)
