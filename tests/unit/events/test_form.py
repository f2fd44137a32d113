"""The form of events: attributes of CloudEvents, and calls as JSON of V2."""

from __future__ import annotations

import json
from base64 import b64decode
from typing import Any

import numpy as np
import pytest

from gateway.events.choice import privacy_of_all
from gateway.events.messages import EventNote, call_of, encode_call
from gateway.events.sinks.form import EventForm, header_value
from gateway.ir.calls import InferRequest, InferResponse
from gateway.ir.context import CallSequence, Context, ModelRef
from gateway.ir.tensors.data import JsonItemsData, RawData, SharedMemoryData, SlicedData, TensorData
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import Tensor, array_tensor, items_tensor
from gateway.shadow.records.privacy import Hasher
from gateway.shadow.records.records import RecordedCall, record_of
from tests.unit.events.kit import definition
from tests.unit.shadow.kit import recordable

REQUEST, RESPONSE = 1, 2
NOTE = EventNote(ce_id="c-1", version="7")
VALUES = np.array([[1.5, 2.0]], np.float32)


def call_with(*inputs: Tensor, **fields: Any) -> InferRequest:
    context = Context(
        protocol="oip.grpc",
        request_id="r-1",
        metadata=(("x-tenant", "a"), ("x-tenant", "b"), ("authorization", "secret")),
    )
    return InferRequest(model=ModelRef("fraud"), context=context, inputs=inputs, **fields)


def sent(call: InferRequest, *replies: InferResponse, **keys: Any) -> RecordedCall:
    """Return a call as it arrives in the shadow process."""
    made = recordable(
        request=call, context=call.context, items=[(1000, reply) for reply in replies]
    )
    return call_of(
        b"".join(encode_call(record_of(made, privacy_of_all([definition(**keys)]), None)))
    )


def reply_with(*outputs: Tensor, **fields: Any) -> InferResponse:
    return InferResponse(model=ModelRef("fraud", "7"), outputs=outputs, **fields)


def body(call: RecordedCall, event: int = REQUEST, **keys: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        EventForm(definition(**keys), Hasher()).body(call, NOTE, event)
    )
    return found


def test_a_request_has_everything_that_v2_has() -> None:
    """Id, parameters, the place in a sequence, inputs with their elements, and wanted outputs."""
    call = call_with(
        array_tensor("x", VALUES),
        id="own",
        priority=2,
        sequence=CallSequence(9, start=True),
        parameters={"limit": 3},
    )
    assert body(sent(call)) == {
        "id": "own",
        "parameters": {
            "limit": 3,
            "sequence_id": 9,
            "sequence_start": True,
            "sequence_end": False,
            "priority": 2,
        },
        "inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1.5, 2.0]}],
    }


def test_a_reply_has_the_version_of_the_model_that_replied() -> None:
    """The version is that of the server, and the id that of the request."""
    reply = reply_with(array_tensor("y", VALUES), parameters={"note": "n"})
    assert body(sent(call_with(id="own"), reply), RESPONSE) == {
        "model_name": "fraud",
        "model_version": "7",
        "id": "own",
        "parameters": {"note": "n"},
        "outputs": [{"name": "y", "shape": [1, 2], "datatype": "FP32", "data": [1.5, 2.0]}],
    }


@pytest.mark.parametrize(
    "tensor",
    [
        items_tensor("x", (1,), [b"\xff\xfe"]),
        array_tensor("x", np.array([np.nan, 1], np.float32)),
        array_tensor("x", np.array([np.inf, 1], np.float64)),
        array_tensor("x", np.array([1, 2], np.float16)),
        Tensor("x", Datatype.BF16, (2,), RawData(memoryview(b"\0\x3f\0\x40"))),
        Tensor("x", None, None, RawData(memoryview(b"abcd"))),
    ],
    ids=["not_utf8", "nan", "infinity", "fp16", "bf16", "unknown"],
)
def test_what_json_cannot_hold_is_base64(tensor: Tensor) -> None:
    """The wire form of the elements stands in place of the list."""
    call = sent(call_with(tensor))
    (found,) = body(call)["inputs"]
    assert "data" not in found
    assert call.tensors[0].data == b64decode(found["b64"])


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (JsonItemsData([b"null", b'"a"']), [None, "a"]),
        (SharedMemoryData("region", 0, 8), None),
    ],
)
def test_elements_that_are_nowhere_are_left_out(data: TensorData, expected: object) -> None:
    """JSON values stay as they are; elements of shared memory are not read."""
    (found,) = body(sent(call_with(Tensor("x", Datatype.BYTES, (2,), data))))["inputs"]
    assert ("x", expected) == (found["name"], found.get("data"))


def test_texts_and_truth_values_are_json() -> None:
    """BYTES of UTF-8 are texts, and BOOL is true or false."""
    texts = items_tensor("t", (2,), ["ä".encode(), b"b"])
    flags = array_tensor("f", np.array([True, False]))
    found = body(sent(call_with(texts, flags)))["inputs"]
    assert [["ä", "b"], [True, False]] == [each["data"] for each in found]


def test_payload_limits_what_is_sent_of_elements() -> None:
    """Hashes are equal for equal elements; without a payload nothing of a client's values is sent."""
    call = call_with(
        array_tensor("x", VALUES), array_tensor("again", VALUES), parameters={"secret": "s"}
    )
    hashed = body(sent(call, payload="hash"), payload="hash")
    assert "parameters" not in hashed
    assert hashed["inputs"][0]["hash"] == hashed["inputs"][1]["hash"]
    assert not {"data", "b64"} & hashed["inputs"][0].keys()
    assert body(sent(call, payload="none"), payload="none")["inputs"] == [
        {"name": name, "shape": [1, 2], "datatype": "FP32"} for name in ("x", "again")
    ]
    single: dict[str, Any] = {"payload": "full", "tensors": {"again": "none"}}
    assert ["data" in each for each in body(sent(call, **single), **single)["inputs"]] == [
        True,
        False,
    ]


def test_another_sink_does_not_widen_what_a_sink_gets() -> None:
    """A record with all elements is sent without them to a sink that wants none."""
    call = call_with(array_tensor("x", VALUES), parameters={"secret": "s"})
    whole = sent(call)
    assert b"1.5" not in EventForm(definition(payload="none"), Hasher()).body(whole, NOTE, REQUEST)
    assert "parameters" not in body(whole, payload="none")
    attributes = EventForm(definition(payload="none"), Hasher()).attributes(whole, NOTE, REQUEST)
    assert "{}" == attributes["metadata"]


def test_slices_of_one_buffer_are_sent_as_the_least_of_them() -> None:
    """The buffer of one tensor has the elements of all, so a hidden one hides all."""
    whole = memoryview(bytes(range(8)))
    slices = [Tensor(name, None, None, SlicedData(whole, place)) for place, name in enumerate("ab")]
    keys: dict[str, Any] = {"tensors": {"b": "none"}}
    assert not any(
        {"b64", "data"} & each.keys() for each in body(sent(call_with(*slices)), **keys)["inputs"]
    )
    first, second = body(sent(call_with(*slices)))["inputs"]
    assert (bytes(whole), b"") == (b64decode(first["b64"]), b64decode(second["b64"]))


def test_the_batch_axis_is_in_every_shape() -> None:
    """A protocol with a separate batch size has it in front of each shape."""
    call = call_with(Tensor("x", Datatype.FP32, (2,), RawData(memoryview(bytes(24)))), batch_size=3)
    (found,) = body(sent(call))["inputs"]
    assert ([3, 2], 6) == (found["shape"], len(found["data"]))


def test_the_replies_of_a_stream_are_one() -> None:
    """Each output is joined along its first axis, in the order of the replies."""
    replies = [
        reply_with(items_tensor("text", (1,), [word]), array_tensor("n", VALUES * place))
        for place, word in enumerate((b"to", b"be"), start=1)
    ]
    assert body(sent(call_with(), *replies), RESPONSE)["outputs"] == [
        {"name": "text", "shape": [2], "datatype": "BYTES", "data": ["to", "be"]},
        {"name": "n", "shape": [2, 2], "datatype": "FP32", "data": [1.5, 2.0, 3.0, 4.0]},
    ]


def test_replies_of_other_shapes_are_not_joined() -> None:
    """Outputs that do not fit together follow one another."""
    replies = [reply_with(array_tensor("y", np.zeros((1, size), np.int32))) for size in (1, 2)]
    shapes = [each["shape"] for each in body(sent(call_with(), *replies), RESPONSE)["outputs"]]
    assert [[1, 1], [1, 2]] == shapes


def test_attributes_are_those_of_kserve() -> None:
    """Every attribute has its default, and both events of a call have one id."""
    form = EventForm(definition(headers=("x-tenant",)), Hasher())
    call = sent(call_with(), reply_with(), headers=("x-tenant",))
    found = form.attributes(call, NOTE, REQUEST)
    assert found.pop("source")
    assert found == {
        "specversion": "1.0",
        "type": "org.kubeflow.serving.inference.request",
        "id": "c-1",
        "time": "2023-11-14T22:13:20.000000Z",
        "recordedtime": "2023-11-14T22:13:20.001500Z",
        "inferenceservicename": "fraud",
        "namespace": "default",
        "component": "predictor",
        "endpoint": "default",
        "metadata": '{"x-tenant": ["a", "b"]}',
        "model": "fraud",
        "modelversion": "7",
        "protocol": "oip.grpc",
        "requestid": "r-1",
    }
    other = form.attributes(call, NOTE, RESPONSE)
    assert ("c-1", "org.kubeflow.serving.inference.response") == (other["id"], other["type"])


def test_attributes_of_the_configuration_come_first() -> None:
    """They replace defaults, and add others."""
    own = {"inferenceservicename": "scores", "namespace": "prod", "team": "risk"}
    found = EventForm(definition(attributes=own), Hasher()).attributes(sent(call_with()), NOTE, 1)
    assert own == {name: found[name] for name in own}


@pytest.mark.parametrize(
    ("text", "expected"),
    [("plain", "plain"), ('{"a": ["b"]}', '{"a": ["b"]}'), ("ä%\r\n", "%C3%A4%25%0D%0A")],
)
def test_values_of_headers_are_ascii(text: str, expected: str) -> None:
    """Other characters are percent-encoded, so nobody adds a header by a model's name."""
    assert expected == header_value(text)
