from __future__ import annotations

import json
import math
import struct
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import pytest

from gateway.concurrency.offload import run_bounded_on_loop
from gateway.ir.calls import InferRequest, InferResponse
from gateway.ir.context import ModelRef, Parameters
from gateway.ir.errors import Unsupported
from gateway.ir.limits import DEFAULT_LIMITS
from gateway.ir.tensors.data import RawData, SharedMemoryData
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import (
    RequestedOutput,
    Tensor,
    array_tensor,
    as_raw,
    items_tensor,
    raw_tensor,
)
from gateway.ir.work import LongWork
from gateway.protocols.oip.http.codec import HttpCodec
from gateway.protocols.oip.http.infer_request import ALL_BINARY, ALL_JSON, InferReplyFormat
from gateway.protocols.oip.http.infer_response import encode_response, response_targets
from gateway.protocols.oip.json.write import (
    JsonTarget,
    Nonfinite,
    append_elements,
    described_binary,
    elements_text,
    gathered,
    tensor_prefix,
)

pytestmark = pytest.mark.usefixtures("build")

TARGETS = response_targets(None)
REFUSE = Nonfinite.REFUSE
INTEGERS = [datatype for datatype in Datatype if datatype.is_integer]


@pytest.mark.parametrize("datatype", INTEGERS, ids=lambda datatype: datatype.name)
@pytest.mark.parametrize("count", [0, 1, 64, 600])
def test_few_and_many_integers_are_written_identically(datatype: Datatype, count: int) -> None:
    """Few integers are written from Python integers, many from an array, as the same text."""
    bounds = np.iinfo(datatype.numpy_dtype)
    values = np.linspace(0, 1, count).astype(datatype.numpy_dtype)
    values[:1], values[1:2] = bounds.min, bounds.max
    raw = Tensor("t", datatype, (count,), RawData(memoryview(values.tobytes())))
    expected = json.dumps(values.tolist(), separators=(",", ":")).encode()
    assert expected == elements_text("output", raw, "")
    head = b'{"name":"t","datatype":"%b","shape":[%d],"data":' % (datatype.name.encode(), count)
    for tensor in (raw, array_tensor("t", values)):
        text: list[bytes] = []
        long = append_elements(text, JsonTarget("output", ""), tensor, datatype, (count,))
        assert (False, head + expected + b"}") == (long, b"".join(text))


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=">i4").reshape(2, 3),
        np.asfortranarray(np.arange(6, dtype="<i4").reshape(2, 3)),
        np.arange(12, dtype="<i4").reshape(2, 6)[::-1, ::2],
        np.array(7, "<i4"),
        np.zeros((2, 0), "<i4"),
    ],
    ids=["byte order", "columns", "gaps", "scalar", "empty"],
)
def test_few_integers_of_any_layout_are_written(array: npt.NDArray[Any]) -> None:
    """Integers of any memory layout are written flat, in row-major order."""
    text: list[bytes] = []
    tensor = array_tensor("t", array)
    assert not append_elements(text, JsonTarget("output", ""), tensor, Datatype.INT32, array.shape)
    member = {"name": "t", "datatype": "INT32", "shape": list(array.shape)}
    assert member | {"data": array.flatten().tolist()} == json.loads(b"".join(text))


def test_long_text_of_elements_is_a_separate_piece() -> None:
    """`append_elements` returns whether the text has a long piece, which need not be copied."""
    values = np.zeros(40_000, np.int32)
    text: list[bytes] = []
    assert append_elements(
        text, JsonTarget("input", ""), array_tensor("t", values), Datatype.INT32, (40,)
    )
    assert elements_text("input", array_tensor("t", values), "") in text


def test_arrays_of_any_layout_are_written() -> None:
    """Arrays of the other byte order, with gaps, or unaligned are written by their values."""
    values = np.arange(6, dtype=">f4").reshape(2, 3)
    assert b"[0.0,1.0,2.0,3.0,4.0,5.0]" == elements_text("output", array_tensor("t", values), "")
    strided = array_tensor("t", values.astype("<f4")[:, ::2])
    assert b"[0.0,2.0,3.0,5.0]" == elements_text("output", strided, "")
    odd = memoryview(b"\0" + struct.pack("<2d", 0.5, 1))[1:]
    raw = Tensor("t", Datatype.FP64, (2,), RawData(odd))
    assert b"[0.5,1.0]" == elements_text("output", raw, "")


@pytest.mark.parametrize("count", [2, 20_000])
@pytest.mark.parametrize("datatype", [Datatype.FP32, Datatype.FP64], ids=lambda each: each.name)
def test_nonfinite_values_are_rejected_or_null(datatype: Datatype, count: int) -> None:
    """In an output, an infinity is rejected with its index and NaN is null; an input allows neither."""
    values = np.zeros(count, datatype.numpy_dtype)
    for index, value in ((1, math.nan), (count - 1, -math.inf)):
        values[index] = value
        raw = Tensor("t", datatype, (count,), RawData(memoryview(values.tobytes())))
        if math.isnan(value):
            assert b"[0.0,null" == elements_text("output", raw, "", nonfinite=REFUSE)[:9]
        else:
            with pytest.raises(Unsupported, match=f"-inf at index {index}, .* ask otherwise"):
                elements_text("output", raw, "ask otherwise", nonfinite=REFUSE)
        with pytest.raises(Unsupported, match="at index 1, "):
            elements_text("input", raw, "")


@pytest.mark.parametrize("count", [5, 20_000])
@pytest.mark.parametrize("datatype", [Datatype.FP32, Datatype.FP64], ids=lambda each: each.name)
def test_nonfinite_values_are_written_as_words_or_null(datatype: Datatype, count: int) -> None:
    """The words are those of Python's json module and of Triton."""
    values = np.zeros(count, datatype.numpy_dtype)
    values[[0, 1, 2, count - 1]] = [math.inf, -math.inf, math.nan, np.finfo(np.float32).max]
    raw = Tensor("t", datatype, (count,), RawData(memoryview(values.tobytes())))
    text = elements_text("output", raw, "", nonfinite=Nonfinite.LITERAL)
    np.testing.assert_array_equal(values, np.array(json.loads(text), datatype.numpy_dtype))
    assert text.startswith(b"[Infinity,-Infinity,NaN,0.0,")
    nulls = elements_text("output", raw, "", nonfinite=Nonfinite.NULL)
    assert nulls == text.replace(b"-Infinity", b"Infinity").replace(b"Infinity", b"null").replace(
        b"NaN", b"null"
    )


@pytest.mark.parametrize("kind", ["input", "output"])
@pytest.mark.parametrize("parameters", [{}, {"a": 1}], ids=str)
def test_tensor_description_has_all_parameters(kind: str, parameters: Parameters) -> None:
    """A repeated description is the same; the size of binary data is a further parameter."""
    tensor = Tensor("t\n", Datatype.INT32, (2, 3), RawData(memoryview(b"")), parameters)
    plain: dict[str, Any] = {"name": "t\n", "datatype": "INT32", "shape": [2, 3]}
    for _ in range(2):
        text = tensor_prefix(kind, tensor.name, Datatype.INT32, (2, 3), parameters)
        assert plain | ({"parameters": parameters} if parameters else {}) == json.loads(text + b"}")
        binary = described_binary(kind, tensor, Datatype.INT32, (2, 3), 24)
        assert plain | {"parameters": {**parameters, "binary_data_size": 24}} == json.loads(binary)


def test_an_output_in_shared_memory_has_no_data() -> None:
    """An output in shared memory has no data, although another output of the response has."""
    shared = Tensor("s", Datatype.INT8, (1,), SharedMemoryData("r", 0, 1), {"a": 1})
    in_message = Tensor("h", Datatype.INT8, (1,), RawData(memoryview(b"\7")))
    reply = InferResponse(
        model=ModelRef("m", "2"), outputs=(shared, in_message), parameters={"p": "x"}
    )
    found = b"".join(encode_response(InferRequest(id="i"), reply, ALL_JSON, TARGETS).body)
    assert {
        "id": "i",
        "model_name": "m",
        "model_version": "2",
        "parameters": {"p": "x"},
        "outputs": [
            {"name": "s", "datatype": "INT8", "shape": [1], "parameters": {"a": 1}},
            {"name": "h", "datatype": "INT8", "shape": [1], "data": [7]},
        ],
    } == json.loads(found)


def test_response_may_have_no_outputs() -> None:
    """A response without outputs has an empty list."""
    reply = InferResponse(model=ModelRef("m"), outputs=())
    found = b"".join(encode_response(InferRequest(), reply, ALL_JSON, TARGETS).body)
    assert b'{"model_name":"m","outputs":[]}' == found


@pytest.mark.parametrize("request_id", ["", "a-1", 'a"\\\n', "\x7f\u00e9", "x" * 20_000])
@pytest.mark.parametrize(
    ("datatype", "numbers"),
    [("INT8", [-128, 127]), ("UINT64", [0, 2**64 - 1]), ("INT64", [-(2**63), 9]), ("FP32", [0.5])],
)
def test_fast_and_full_writer_of_responses_agree(
    request_id: str, datatype: str, numbers: list[float]
) -> None:
    """Few integers are written at once, other outputs piece by piece, as the same text."""
    dtype = Datatype[datatype].numpy_dtype
    raw = RawData(memoryview(np.array(numbers, dtype).tobytes()))
    one = Tensor("t", Datatype[datatype], (1, len(numbers)), raw)
    none = Tensor("u\u00e9", Datatype.INT16, (0,), RawData(memoryview(b"")))
    for outputs in ((one,), (one, one), (one, none)):
        reply = InferResponse(model=ModelRef("m", "1"), outputs=outputs)
        call = InferRequest(id=request_id)
        form = InferReplyFormat(default=False, listed={"t": False})  # which is no form of its own
        expected = b"".join(encode_response(call, reply, form, TARGETS).body)
        assert expected == b"".join(encode_response(call, reply, ALL_JSON, TARGETS).body)
        found = json.loads(expected)
        assert numbers == found["outputs"][0]["data"]
        assert request_id == found.get("id", "")


def test_long_elements_are_a_separate_buffer() -> None:
    """Long elements are a separate buffer in a response, and in a request of JSON alone."""
    many = array_tensor("t", np.arange(40_000, dtype=np.int32))
    one = array_tensor("u", np.ones(1, np.int8))
    reply = InferResponse(model=ModelRef("m"), outputs=(many, one))
    call = InferRequest(model=ModelRef("m"), inputs=(many, one))
    mlserver = HttpCodec(DEFAULT_LIMITS, {"dialect": "mlserver"})
    for kind, body in (
        ("outputs", encode_response(InferRequest(), reply, ALL_JSON, TARGETS).body),
        ("inputs", mlserver.encode_call(call).body),
    ):
        assert elements_text("output", many, "") in body
        first, second = json.loads(b"".join(body))[kind]
        assert (list(range(40_000)), [1]) == (first["data"], second["data"])


@pytest.mark.parametrize("request_id", ["", "a-1"])
@pytest.mark.parametrize("requested", [(), (RequestedOutput("b"),)])
def test_binary_raw_tensors_and_arrays_are_written_equally(
    request_id: str, requested: tuple[RequestedOutput, ...]
) -> None:
    """Raw tensors are written at once and arrays one by one, as the same bytes."""
    arrays = tuple(array_tensor(name, np.arange(6, dtype=np.int16)) for name in "abc")
    raws = tuple(Tensor(e.name, e.datatype, e.shape, RawData(as_raw(e))) for e in arrays)
    bodies = []
    for tensors in (raws, arrays):
        reply = InferResponse(model=ModelRef("m"), outputs=tensors, parameters={"p": "x"})
        found = encode_response(InferRequest(id=request_id), reply, ALL_BINARY, TARGETS)
        triton = HttpCodec(DEFAULT_LIMITS, {})
        call = InferRequest(
            model=ModelRef("m"), inputs=tensors, id=request_id, outputs=requested, priority=3
        )
        sent = triton.encode_call(call)
        assert found.headers.get("inference-header-content-length") == str(len(found.body[0]))
        assert sent.headers.get("inference-header-content-length") == str(len(sent.body[0]))
        assert all(isinstance(part, memoryview) for part in (*found.body[1:], *sent.body[1:]))
        inputs = json.loads(bytes(sent.body[0]))["inputs"]
        assert [{"binary_data_size": 12}] * 3 == [each["parameters"] for each in inputs]
        bodies.append([b"".join(found.body), b"".join(sent.body)])
    assert bodies[0] == bodies[1]


def test_a_binary_output_has_its_parameters() -> None:
    """The size of a binary output is added to its parameters."""
    raw = RawData(memoryview(b"\7"))
    outputs = (
        Tensor("a", Datatype.INT8, (1,), raw, {"p": 1}),
        Tensor("b", Datatype.INT8, (1,), raw),
    )
    reply = InferResponse(model=ModelRef("m"), outputs=outputs)
    text, *binary = encode_response(InferRequest(), reply, ALL_BINARY, TARGETS).body
    assert [b"\7", b"\7"] == [bytes(each) for each in binary]
    found = [output["parameters"] for output in json.loads(bytes(text))["outputs"]]
    assert [{"p": 1, "binary_data_size": 1}, {"binary_data_size": 1}] == found


@pytest.mark.parametrize(
    ("count", "length"),
    [(0, 0), (3, 9), (1, 1 << 16), (1, 300_000), (2, 700_000), (30_000, 99), (300_000, 3)],
)
def test_texts_written_in_pieces_equal_those_in_one(count: int, length: int) -> None:
    """A single library call for 16 MiB of control characters blocked other calls for 138 ms."""
    characters = 'aé"\\\x01\u2028😀 /\n' * (length // 10 + 1)
    texts = [characters[at % 10 : length] for at in range(count)]
    tensor = items_tensor("x", (count,), [text.encode() for text in texts])
    assert orjson.dumps(texts) == elements_text("output", tensor, "")


def test_long_texts_are_not_written_on_the_event_loop() -> None:
    """A few long elements raise LongWork, raw or not."""
    raw = raw_tensor(
        "x", Datatype.BYTES, (1,), memoryview(struct.pack("<I", 4 << 20) + bytes(4 << 20))
    )
    for tensor in (raw, items_tensor("x", (1,), [bytes(4 << 20)])):
        with pytest.raises(LongWork):
            run_bounded_on_loop(elements_text, "output", tensor, "")


def test_long_pieces_are_not_copied() -> None:
    """Short pieces around a long one are joined; the long one is kept as it is."""
    long = bytes(1 << 17)
    found = gathered([b"a", b"b", long, b"c", b"d", long, b"e"])
    assert [b"ab", long, b"cd", long, b"e"] == found
    assert found[1] is long
    assert [b"abc"] == gathered([b"a", b"b", b"c"])


@pytest.mark.parametrize("count", [2, 100_000])
def test_the_largest_fp32_has_all_its_digits(count: int) -> None:
    """As a double, its shortest text exceeds FP32, so parsers that compare doubles would reject it."""
    values = np.full(count, 0.1, np.float32)
    values[-1] = np.finfo(np.float32).min
    text = elements_text("output", array_tensor("y", values), "")
    assert text.endswith(b"0.1,-3.4028234663852886e38]")
    assert values.tobytes() == np.array(orjson.loads(text), np.float32).tobytes()
