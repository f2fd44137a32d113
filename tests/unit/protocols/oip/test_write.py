"""Inference messages written by hand, read back by the protobuf library."""

from __future__ import annotations

import numpy as np
import pytest

from gateway.ir.context import ModelRef
from gateway.ir.datatypes import Datatype
from gateway.ir.errors import Unsupported
from gateway.ir.tensor import RequestedOutput, Tensor, array_tensor
from gateway.protocols.oip.write import InferWriter
from gateway.schema import open_inference_pb2 as pb
from gateway.wire.protobuf import Parts

WRITER = InferWriter()
M = ModelRef("m", "1")
X = array_tensor("X", np.arange(6, dtype="<i2").reshape(2, 3))


def joined(parts: Parts) -> bytes:
    return b"".join(parts)


def test_writes_a_request_as_the_library_does() -> None:
    """A request has the very bytes that the library writes."""
    expected = pb.ModelInferRequest(
        model_name="m",
        model_version="1",
        id="abc",
        parameters={"k": pb.InferParameter(string_param="v")},
        inputs=[pb.ModelInferRequest.InferInputTensor(name="X", datatype="INT16", shape=[2, 3])],
        outputs=[
            pb.ModelInferRequest.InferRequestedOutputTensor(
                name="Y", parameters={"n": pb.InferParameter(int64_param=-1)}
            )
        ],
        raw_input_contents=[np.arange(6, dtype="<i2").tobytes()],
    )
    found = WRITER.request(M, "abc", {"k": "v"}, [X], [RequestedOutput("Y", parameters={"n": -1})])
    assert expected.SerializeToString() == joined(found)


def test_writes_a_response_as_the_library_does() -> None:
    """A response has the very bytes that the library writes."""
    expected = pb.ModelInferResponse(
        model_name="m",
        outputs=[
            pb.ModelInferResponse.InferOutputTensor(
                name="X",
                datatype="INT16",
                shape=[2, 3],
                parameters={"u": pb.InferParameter(uint64_param=2**64 - 1)},
            )
        ],
        raw_output_contents=[np.arange(6, dtype="<i2").tobytes()],
    )
    tensor = Tensor("X", X.datatype, X.shape, X.data, {"u": 2**64 - 1})
    assert expected.SerializeToString() == joined(WRITER.response(ModelRef("m"), "", {}, [tensor]))


def test_the_same_a_second_time() -> None:
    """A tensor of the same description is written alike, one of another shape is not."""
    flat = array_tensor("X", np.arange(6, dtype="<i2"))
    first, second, other = (joined(WRITER.response(M, "", {}, [t])) for t in (X, X, flat))
    assert first == second
    assert [6] == list(pb.ModelInferResponse.FromString(other).outputs[0].shape)


def test_large_data_are_parts_of_their_own() -> None:
    """Small data stand in the head; large data follow it as they are."""
    big = array_tensor("BIG", np.zeros(4096, "<i4"))
    sizes = [len(part) for part in WRITER.response(M, "", {}, [X, big, X])]
    assert (3, 16384) == (len(sizes), sizes[1])


@pytest.mark.parametrize("value", [2**64, -(2**63) - 1])
def test_integer_that_fits_no_parameter(value: int) -> None:
    """An integer over 64 bits is refused by name and value."""
    with pytest.raises(Unsupported, match=f"parameter 'k' is {value}, which does not fit 64 bits"):
        WRITER.response(M, "", {"k": value}, [])


def test_text_that_is_no_utf8() -> None:
    """Text with lone surrogates is refused in every place it may stand."""
    for model, parameters in ((ModelRef("\ud800"), {}), (M, {"k": "\ud800"}), (M, {"\ud800": "v"})):
        with pytest.raises(Unsupported, match="request cannot be written: text is not UTF-8"):
            WRITER.request(model, "", parameters, [], [])


def test_tensor_without_a_description() -> None:
    """A tensor without datatype or shape is refused by name."""
    for tensor, missing in (
        (Tensor("X", None, (1,), X.data), "datatype"),
        (Tensor("X", Datatype.INT16, None, X.data), "shape"),
    ):
        with pytest.raises(Unsupported, match=f"'X' has no {missing}, Open Inference needs one"):
            WRITER.response(M, "", {}, [tensor])
