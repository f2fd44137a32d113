"""Inference messages of the encoders, compared with those of the protobuf library."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest

from gateway.ir.context import ModelRef
from gateway.ir.errors import Unsupported
from gateway.ir.tensors.data import ArrayData, RawData, SharedMemoryData
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import RequestedOutput, Tensor, array_tensor, as_raw, items_tensor
from gateway.protocols.oip.grpc.encode import (
    RAW_INPUTS,
    RAW_OUTPUTS,
    FastInferEncoder,
    InferEncoder,
)
from gateway.schema import open_inference_pb2 as pb

pytestmark = pytest.mark.usefixtures("build")

WRITER = InferEncoder()
M = ModelRef("m", "1")
X = array_tensor("X", np.arange(6, dtype="<i2").reshape(2, 3))
BIG = array_tensor("BIG", np.arange(4096, dtype="<i4"))


def join(parts: Iterable[bytes | bytearray | memoryview] | None) -> bytes:
    assert parts is not None
    return b"".join(parts)


def test_large_data_are_separate_parts() -> None:
    """Small data are part of the head; large data follow it as a separate part."""
    big = array_tensor("BIG", np.zeros(4096, "<i4"))
    sizes = [len(part) for part in WRITER.response(M, "", {}, [X, big, X])]
    assert (3, 16384) == (len(sizes), sizes[1])


def test_output_in_shared_memory_has_empty_raw_contents() -> None:
    """A response has an empty entry for a tensor in shared memory, a request has none."""
    shared_tensor = Tensor("S", X.datatype, X.shape, SharedMemoryData("r", 4, 12))
    rows = np.arange(6, dtype="<i2").tobytes()
    response = pb.ModelInferResponse.FromString(
        join(WRITER.response(M, "", {}, [shared_tensor, X]))
    )
    assert [b"", rows] == list(response.raw_output_contents)
    keys = {"shared_memory_region", "shared_memory_offset", "shared_memory_byte_size"}
    assert keys == set(response.outputs[0].parameters)
    request = pb.ModelInferRequest.FromString(
        join(WRITER.request(M, "", {}, [shared_tensor, raw(X)], []))
    )
    assert [rows] == list(request.raw_input_contents)


@pytest.mark.parametrize("value", [2**64, -(2**63) - 1])
def test_integer_over_64_bits_is_rejected(value: int) -> None:
    """An integer parameter over 64 bits is rejected by name and value."""
    with pytest.raises(
        Unsupported, match=f"parameter 'k' is {value}: expected an integer of 64 bits"
    ):
        WRITER.response(M, "", {"k": value}, [])


def test_text_that_is_not_utf8_is_rejected() -> None:
    """Text with lone surrogates is rejected as a model name, a key or a value."""
    for model, parameters in ((ModelRef("\ud800"), {}), (M, {"k": "\ud800"}), (M, {"\ud800": "v"})):
        with pytest.raises(Unsupported, match="request cannot be written: text is not UTF-8"):
            WRITER.request(model, "", parameters, [], [])


def test_tensor_without_datatype_or_shape_is_rejected() -> None:
    """A tensor without datatype or shape is rejected by name."""
    for tensor, missing in (
        (Tensor("X", None, (1,), X.data), "datatype"),
        (Tensor("X", Datatype.INT16, None, X.data), "shape"),
    ):
        with pytest.raises(Unsupported, match=f"'X' has no {missing}: Open Inference needs one"):
            WRITER.response(M, "", {}, [tensor])


def raw(tensor: Tensor) -> Tensor:
    return Tensor(tensor.name, tensor.datatype, tensor.shape, RawData(as_raw(tensor)))


@pytest.mark.parametrize("request_id", ["", "abc", "x" * 200])
@pytest.mark.parametrize(
    "tensors",
    [(), (X,), (raw(X), X), (X, raw(BIG), BIG, X, BIG), (array_tensor("S", np.array(1, "<f4")),)],
)
def test_fast_encoder_writes_the_same_bytes(tensors: tuple[Tensor, ...], request_id: str) -> None:
    """The fast encoder writes raw tensors and arrays of any size as the full encoder does."""
    requested_outputs = (RequestedOutput("Y"), RequestedOutput("Z"))
    plain = FastInferEncoder(RAW_INPUTS).write(M, request_id, tensors, requested_outputs)
    assert join(WRITER.request(M, request_id, {}, tensors, requested_outputs)) == join(plain)
    plain = FastInferEncoder(RAW_OUTPUTS).write(M, request_id, tensors)
    assert join(WRITER.response(M, request_id, {}, tensors)) == join(plain)


def test_fast_encoder_names_regions_as_the_full_encoder() -> None:
    """An input in shared memory is named by region, size and offset; others follow as bytes."""
    writer = FastInferEncoder(RAW_INPUTS, has_shared=True)
    for offset in (0, 64, 0):
        for shape in ((2, 3), (6,)):
            place = Tensor("S", X.datatype, shape, SharedMemoryData("r", offset, 12))
            tensors = (place, raw(BIG), X)
            plain = writer.write(M, "a", tensors)
            assert join(WRITER.request(M, "a", {}, tensors, ())) == join(plain)
    special = [
        Tensor("S", None, (2,), SharedMemoryData("r", 0, 12)),
        Tensor("S", Datatype.BYTES, (2,), SharedMemoryData("r", 0, 12)),
        Tensor("S", X.datatype, (2,), SharedMemoryData("r", 0, 12), {"k": "v"}),
        Tensor("S", X.datatype, (2,), SharedMemoryData("\ud800", 0, 12)),
    ]
    assert [None] * 4 == [writer.write(M, "a", (tensor,)) for tensor in special]


def test_fast_encoder_caches_only_equal_descriptions() -> None:
    """Each message has its own model, names, datatypes and shapes, although parts are cached."""
    writer = FastInferEncoder(RAW_OUTPUTS)
    view = memoryview(bytes(12))
    for number in range(200):
        model = M if number % 3 else ModelRef(f"m-{number}")
        name = "X" if number % 2 else f"X-{number}"
        shapes: list[tuple[int, ...]] = [(3,), (1, 3), (3, 1)]
        shape = shapes[number % 3]
        datatype = Datatype.FP32 if number % 5 else Datatype.INT32
        tensors = (Tensor(name, datatype, shape, RawData(view)),) * 2
        expected = join(WRITER.response(model, "a", {}, tensors))
        assert expected == join(writer.write(model, "a", tensors))


def test_fast_encoder_does_not_copy_large_data() -> None:
    """Small data are copied into the head; large data are sent from their own memory."""
    plain = FastInferEncoder(RAW_OUTPUTS).write(M, "", [X, BIG, X, raw(BIG)])
    assert plain is not None
    assert [False, True, False, True] == [isinstance(part, memoryview) for part in plain]
    assert isinstance(BIG.data, ArrayData)
    assert np.shares_memory(BIG.data.array, np.frombuffer(plain[1], np.uint8))


def test_arrays_are_written_in_row_major_order() -> None:
    """The elements of an array are written in row-major order, whatever its memory layout."""
    transposed = array_tensor("X", np.arange(6, dtype="<i2").reshape(3, 2).T)
    plain = FastInferEncoder(RAW_OUTPUTS).write(M, "", [transposed])
    assert join(WRITER.response(M, "", {}, [transposed])) == join(plain)


@pytest.mark.parametrize(
    "tensor",
    [
        items_tensor("T", (1,), [b"text"]),
        Tensor("T", Datatype.BYTES, (1,), RawData(memoryview(b"\4\0\0\0text"))),
        Tensor("X", None, (2, 3), X.data),
        Tensor("X", X.datatype, None, X.data),
        Tensor("X", X.datatype, (2, 2), X.data),
        Tensor("X", X.datatype, (2, 2), RawData(as_raw(X))),
        Tensor("X", X.datatype, (0,), RawData(as_raw(X))),
        Tensor("X", X.datatype, X.shape, ArrayData(np.zeros((2, 3), ">i2"))),
        Tensor("X", X.datatype, X.shape, SharedMemoryData("r", 0, 12)),
        Tensor("X", X.datatype, X.shape, X.data, {"k": "v"}),
        Tensor("\ud800", X.datatype, X.shape, X.data),
    ],
)
def test_fast_encoder_returns_none_for_special_tensors(tensor: Tensor) -> None:
    """The fast encoder leaves tensors with parameters, or in need of checks, to the full encoder."""
    assert FastInferEncoder(RAW_INPUTS).write(M, "", [X, tensor]) is None


@pytest.mark.parametrize(
    "output",
    [
        RequestedOutput("Y", classes=1),
        RequestedOutput("Y", parameters={"k": "v"}),
        RequestedOutput("Y", shared=SharedMemoryData("r", 0, 12)),
    ],
)
def test_fast_encoder_returns_none_for_special_outputs(output: RequestedOutput) -> None:
    """The fast encoder leaves outputs with classes, parameters or shared memory to the full encoder."""
    assert FastInferEncoder(RAW_INPUTS).write(M, "", [X], [output]) is None


def test_fast_encoder_returns_none_for_names_not_utf8() -> None:
    """The fast encoder leaves names that are not UTF-8 to the full encoder, which raises."""
    writer = FastInferEncoder(RAW_INPUTS)
    assert writer.write(ModelRef("\ud800"), "", []) is None
    assert writer.write(M, "\ud800", []) is None


def test_fast_encoder_returns_none_for_excluded_datatype() -> None:
    """The fast encoder leaves a datatype that a server may not support to the dialect's check."""
    tensor = Tensor("X", Datatype.BF16, (1,), RawData(memoryview(b"12")))
    assert FastInferEncoder(RAW_INPUTS, Datatype.BF16).write(M, "", [tensor]) is None
    assert FastInferEncoder(RAW_INPUTS).write(M, "", [tensor]) is not None
