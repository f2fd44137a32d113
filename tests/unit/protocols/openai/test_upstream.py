"""Servers of OpenAI's form: their answers in any order and encoding, and their errors."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from gateway.ir import errors
from gateway.ir.calls import (
    InferRequest,
    ModelMetadataRequest,
    ModelReadyRequest,
    RepositoryIndexRequest,
    ServerReadyRequest,
    StreamInferRequest,
)
from gateway.ir.context import CallSequence, JsonParameter, ModelRef
from gateway.ir.limits import DEFAULT_LIMITS
from gateway.ir.tensors.tensor import (
    RequestedOutput,
    array_tensor,
    as_items,
    as_numpy,
    items_tensor,
)
from gateway.protocols.openai.http.codec import HttpCodec
from gateway.wire.http import Headers, HttpResponse
from tests.integration.openai_models import recorded

MODEL = ModelRef("dummy")
INFINITY = {entry["name"]: entry for entry in recorded() if entry["server"] == "infinity"}


def codec(**options: Any) -> HttpCodec:
    return HttpCodec(DEFAULT_LIMITS, options)


def texts(*values: str, name: str = "text") -> Any:
    return items_tensor(name, (len(values),), [value.encode() for value in values])


def embeddings_of(*values: str, **fields: Any) -> InferRequest:
    return InferRequest(model=MODEL, inputs=(texts(*values),), **fields)


def response(document: Any, status: int = 200, kind: str = "application/json") -> HttpResponse:
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    return HttpResponse(status, Headers((("content-type", kind),)), (body,))


def replay(name: str) -> HttpResponse:
    """Return the recorded response of infinity."""
    return response(INFINITY[name]["response_body"].encode(), INFINITY[name]["status"])


def test_the_request_has_floats_as_encoding_and_a_list_of_texts() -> None:
    """The request names the model, and has all parameters as members."""
    call = embeddings_of("a", "b", parameters={"dimensions": 4, "user": "u"})
    wire = codec(base="/").encode_call(call)
    assert ("POST", "/embeddings") == (wire.method, wire.path)
    expected = {
        "model": "dummy",
        "input": ["a", "b"],
        "encoding_format": "float",
        "dimensions": 4,
        "user": "u",
    }
    assert expected == json.loads(bytes(wire.view))


@pytest.mark.parametrize(
    ("name", "inputs", "sizes"),
    [
        ("080-infinity-embeddings-default", ("a", "bcd"), [1.0, 3.0]),
        ("081-infinity-embeddings-float", ("abc",), [3.0]),
        ("083-infinity-unknown-model", ("a",), [1.0]),
        ("086-infinity-dimensions", ("abc",), [3.0]),
    ],
)
def test_reads_base64_and_numbers(name: str, inputs: tuple[str, ...], sizes: list[float]) -> None:
    """Both encodings of infinity are read, with its count of tokens."""
    reply = codec().decode_reply(embeddings_of(*inputs), replay(name))
    array = as_numpy(reply.outputs[0])
    assert "embedding" == reply.outputs[0].name
    assert sizes == [float(row[0]) for row in array]
    assert sum(map(len, inputs)) == reply.parameters["prompt_tokens"]


def row(index: Any, *values: float) -> dict[str, Any]:
    data = base64.b64encode(struct.pack(f"<{len(values)}f", *values)).decode()
    return {"index": index, "embedding": data}


def rerank_call(*documents: str) -> InferRequest:
    inputs = (texts(*documents, name="document"), texts("q", name="query"))
    return InferRequest(model=MODEL, inputs=inputs)


def test_base64_of_a_server_may_have_ends_of_lines() -> None:
    """Some encoders end lines after 76 characters."""
    data = base64.encodebytes(np.arange(40, dtype="<f4").tobytes()).decode()
    document = {"data": [{"index": 0, "embedding": data}]}
    (output,) = codec().decode_reply(embeddings_of("a"), response(document)).outputs
    assert np.arange(40).tolist() == as_numpy(output)[0].tolist()


def test_embeddings_are_put_in_order() -> None:
    """The index of an entry is its place, whatever their order, and names are as requested."""
    document = {"data": [row(1, 2.0), {"index": 0, "embedding": [1]}]}
    call = embeddings_of("a", "b", outputs=(RequestedOutput("vector"),))
    (output,) = codec().decode_reply(call, response(document)).outputs
    assert ("vector", [[1.0], [2.0]]) == (output.name, as_numpy(output).tolist())


def test_numbers_become_fp32_with_one_rounding() -> None:
    """A number of JSON is rounded once; zeros keep their sign, and subnormals are not zero."""
    values = [0.1, -0.0, 1e-45, 3.4028235e38, 16777217.0000001]
    document = {"data": [{"index": 0, "embedding": values}]}
    (output,) = codec().decode_reply(embeddings_of("a"), response(document)).outputs
    assert np.array(values).astype(np.float32).tobytes() == as_numpy(output).tobytes()


def result(index: Any, **score: float) -> dict[str, Any]:
    return {"index": index, **score}


FIRST_ROW = row(0, 1.0)
ONE = {"relevance_score": 1.0}


@pytest.mark.parametrize(
    ("task", "document"),
    [
        *(("embeddings", body) for body in (b"", b"[1]", b"{", b"\xff")),
        *(("embeddings", {"data": data}) for data in ("x", None, [FIRST_ROW])),
        *(
            ("embeddings", {"data": [FIRST_ROW, *others]})
            for others in (
                [row(0, 2.0)],
                [row(2, 2.0)],
                [row(1, 2.0), row(2, 3.0)],
                [row(1, 2.0, 3.0)],
                [row("1", 2.0)],
                [{"index": 1, "embedding": "AAA"}],
                [{"index": 1, "embedding": "AAAAAAA="}],
                [{"index": 1, "embedding": ["x"]}],
                [{"index": 1}],
                [3],
            )
        ),
        *(
            ("rerank", {"results": results})
            for results in (
                None,
                [result(0)],
                [result(3, **ONE)],
                [result(0, **ONE)] * 2,
                [result(True, **ONE)],
                ["x"],
            )
        ),
    ],
)
def test_wrong_responses_are_malformed(task: str, document: Any) -> None:
    """A missing, repeated or surplus index, unequal sizes and other values are refused."""
    call = embeddings_of("a", "b") if task == "embeddings" else rerank_call("a", "b")
    with pytest.raises(errors.MalformedMessage):
        codec(task=task).decode_reply(call, response(document))


def test_scores_have_the_order_of_the_documents() -> None:
    """Results are put where their documents stand; those that are left out are NaN."""
    found = codec(task="rerank")
    wire = found.encode_call(rerank_call("a", "b", "c"))
    assert {"model": "dummy", "query": "q", "documents": ["a", "b", "c"]} == json.loads(
        bytes(wire.view)
    )
    results = [{"index": 2, "relevance_score": 0.5}, {"index": 0, "relevance_score": 1}]
    reply = found.decode_reply(rerank_call("a", "b", "c"), response({"results": results}))
    array = as_numpy(reply.outputs[0])
    assert (1.0, True, 0.5) == (array[0], bool(np.isnan(array[1])), array[2])


FLOATS = array_tensor("x", np.zeros((1,), np.float32))
NOT_UTF8 = items_tensor("text", (1,), [b"\xff"])


def completion(*prompts: str, **parameters: Any) -> InferRequest:
    inputs = (texts(*prompts, name="prompt"),)
    return InferRequest(model=MODEL, inputs=inputs, parameters=parameters)


def test_completions_are_put_in_order() -> None:
    """Choices come by their index, with the reasons of their ends."""
    found = codec(task="completions")
    call = completion("a", "b", stop=JsonParameter('["x"]'), max_tokens=3)
    expected = {"model": "dummy", "prompt": ["a", "b"], "stop": ["x"], "max_tokens": 3}
    assert expected == json.loads(bytes(found.encode_call(call).view))
    choices = [
        {"index": 1, "text": "B", "finish_reason": "length"},
        {"index": 0, "text": "A", "finish_reason": "stop"},
    ]
    reply = found.decode_reply(call, response({"choices": choices}))
    assert [b"A", b"B"] == list(as_items(reply.outputs[0]))
    assert "stop,length" == reply.parameters["finish_reason"]


EVENTS = "text/event-stream"


def stream_of(*events: bytes) -> list[Any]:
    """Return the items of a stream of the server."""
    found = codec(task="completions")
    call = StreamInferRequest(model=MODEL, request=completion("a"))
    assert json.loads(bytes(found.encode_call(call).view))["stream"] is True
    splitter = found.splitter()
    body = b"".join(b"data: " + event + b"\n\n" for event in events)
    parts = [*splitter.receive(response(body, kind=EVENTS)), *splitter.end()]
    return [found.decode_item(call, part) for part in parts]


def test_reads_a_stream() -> None:
    """Pieces, the reason and the end are items."""
    first, reason, end = stream_of(
        b'{"choices":[{"text":"A","finish_reason":null}]}',
        b'{"choices":[{"text":"","finish_reason":"length"}]}',
        b"[DONE]",
    )
    assert [b"A"] == list(as_items(first.outputs[0]))
    assert [b""] == list(as_items(reason.outputs[0]))
    assert "length" == reason.parameters["finish_reason"]
    assert ((), True) == (end.outputs, end.is_final)


FIRST, LAST = b'{"choices":[{"text":"A"}]}', b'{"choices":[{"text":"B","finish_reason":"stop"}]}'


def texts_of_stream(body: bytes, step: int) -> list[str]:
    """Return the texts of a stream that comes in parts of *step* bytes."""
    found = codec(task="completions")
    call = StreamInferRequest(model=MODEL, request=completion("a"))
    splitter = found.splitter()
    parts: list[HttpResponse] = []
    for at in range(0, len(body), step):
        parts += splitter.receive(response(body[at : at + step], kind=EVENTS))
    came = [part for part in [*parts, *splitter.end()] if found.is_item(call, part)]
    items = [found.decode_item(call, part) for part in came]
    return [
        bytes(text).decode() for item in items for one in item.outputs for text in as_items(one)
    ]


@pytest.mark.parametrize("step", [1, 2, 7, 1000])
@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_stream_has_any_line_ends_and_may_end_within_its_last_event(
    line_end: bytes, missing: int, step: int
) -> None:
    """LF, CRLF and CR end lines, and the end of the stream may stand for the last of them."""
    lines = [b": hello", b"", b"data: " + FIRST, b"", b"event: x", b"data:" + LAST, b""]
    lines += [b"data: [DONE]", b"", b""]
    assert ["A", "B"] == texts_of_stream(line_end.join(lines[: len(lines) - missing]), step)


@pytest.mark.parametrize(
    "last",
    [LAST, b'{"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2,"total_tokens":3}}'],
)
def test_a_reason_or_the_usage_may_end_a_stream_without_done(last: bytes) -> None:
    """Every client takes a reason, or the usage, for the end where `[DONE]` is missing."""
    assert ["A"] == texts_of_stream(b"data: %b\n\ndata: %b\n\n" % (FIRST, last), 1000)[:1]


def test_null_is_no_error() -> None:
    """Servers that write all members have `error` with null beside the text."""
    event = b'{"error":null,"choices":[{"text":"A","finish_reason":null}],"usage":null}'
    first, _end = stream_of(event, b"[DONE]")
    assert [b"A"] == list(as_items(first.outputs[0]))
    with pytest.raises(errors.MalformedMessage, match=r"without \[DONE\]"):
        stream_of(event)


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        (["a\\ud83d", "\\ude00b"], ["a", "\U0001f600b"]),
        (["\\uD83D", "\\uDE00\\uD83D", "\\uDE01"], ["", "\U0001f600", "\U0001f601"]),
        (["a\\ud83d", "", "b"], ["a", "", "\ufffdb"]),
        (["\\ude00", "b"], ["\ufffd", "b"]),
        (["\\ud83d\\ude00", "\\\\ud83d"], ["\U0001f600", "\\ud83d"]),
    ],
)
def test_halves_of_a_character_are_joined(pieces: list[str], expected: list[str]) -> None:
    """A server that counts in UTF-16 may cut a character; a half without the other is U+FFFD."""
    events = [b'{"choices":[{"text":"%b"}]}' % piece.encode() for piece in pieces]
    items = stream_of(*events, b"[DONE]")[:-1]
    assert expected == [bytes(as_items(item.outputs[0])[0]).decode() for item in items]


def test_a_last_half_of_a_character_is_replaced() -> None:
    """A text that ends within a character ends with U+FFFD, in a stream and in one response."""
    choice = b'{"choices":[{"text":"a\\ud83d","finish_reason":"length"}]}'
    (item,) = [each for each in stream_of(choice, b"[DONE]") if each.outputs]
    assert ["a\ufffd".encode()] == list(as_items(item.outputs[0]))
    reply = codec(task="completions").decode_reply(completion("a"), response(choice))
    assert ["a\ufffd".encode()] == list(as_items(reply.outputs[0]))


def test_entries_without_an_index_are_in_order() -> None:
    """A server of one text may leave out `index`, and the order of the entries tells it."""
    choices = {"choices": [{"text": "A", "finish_reason": "length"}, {"text": "B", "index": None}]}
    found = codec(task="completions").decode_reply(completion("a", "b"), response(choices))
    assert [b"A", b"B"] == list(as_items(found.outputs[0]))
    assert "length,stop" == found.parameters["finish_reason"]
    data = {"data": [{"embedding": [1]}, {"embedding": [2]}]}
    (output,) = codec().decode_reply(embeddings_of("a", "b"), response(data)).outputs
    assert [[1.0], [2.0]] == as_numpy(output).tolist()


@pytest.mark.parametrize(
    ("events", "kind", "text"),
    [
        # A server ended too early.
        ((FIRST,), errors.MalformedMessage, r"without \[DONE\]"),
        ((FIRST, b'{"error":{"message":"boom"}}'), errors.UpstreamError, "boom"),
    ],
)
def test_a_stream_that_fails_is_an_error(
    events: tuple[bytes, ...], kind: type[Exception], text: str
) -> None:
    """An event with an error is the server's own error."""
    with pytest.raises(kind, match=text):
        stream_of(*events)


@pytest.mark.parametrize(
    ("status", "document", "kind"),
    [
        (404, {"error": {"message": "The model `dummy` does not exist."}}, errors.ModelNotFound),
        (404, {"detail": "Not Found"}, errors.UpstreamError),
        (400, {"error": {"message": "model dummy not found"}}, errors.ModelNotFound),
        (400, {"object": "error", "message": "bad input"}, errors.InvalidRequest),
        (
            413,
            {"error": "batch size 64 > maximum 32", "error_type": "Validation"},
            errors.InvalidRequest,
        ),
        (424, {"error": "inference failed", "error_type": "backend"}, errors.UpstreamError),
        (429, {"error": "Model is overloaded", "error_type": "overloaded"}, errors.Overloaded),
        (500, {"error": {"message": "x"}}, errors.UpstreamError),
        (503, {}, errors.Unavailable),
        (302, {}, errors.UpstreamProtocolError),
    ],
)
def test_reads_the_errors_of_servers(
    status: int, document: Mapping[str, Any], kind: type[errors.GatewayError]
) -> None:
    """The bodies of vLLM, TEI and infinity give the class of an error, and its text."""
    with pytest.raises(errors.GatewayError) as raised:
        codec().decode_reply(embeddings_of("a"), response(document, status))
    assert kind is type(raised.value)


@pytest.mark.parametrize("name", [name for name, each in INFINITY.items() if each["status"] == 422])
def test_reads_the_validation_errors_of_infinity(name: str) -> None:
    """A list of details becomes the text of its first entry."""
    with pytest.raises(errors.InvalidRequest) as raised:
        codec().decode_reply(embeddings_of("a"), replay(name))
    detail = json.loads(INFINITY[name]["response_body"])["detail"]
    assert detail[0]["msg"] == raised.value.message


def test_reads_models_and_readiness() -> None:
    """The list of models is the index; a model that is not in it is unknown."""
    found, listed = codec(), replay("082-infinity-models")
    assert "/v1/models" == found.encode_call(ServerReadyRequest()).path
    assert ["dummy"] == [each.name for each in found.decode_reply(RepositoryIndexRequest(), listed)]
    assert found.decode_reply(ModelReadyRequest(model=MODEL), listed) is True
    assert found.decode_reply(ModelReadyRequest(model=ModelRef("x")), listed) is False
    assert found.decode_reply(ServerReadyRequest(), listed) is True
    with pytest.raises(errors.ModelNotFound):
        found.decode_reply(ModelMetadataRequest(model=ModelRef("x")), listed)


def test_a_server_without_a_list_knows_any_model() -> None:
    """Where the list does not exist, every name is sent."""
    call = ModelMetadataRequest(model=ModelRef("x"))
    metadata = codec().decode_reply(call, response({}, 404))
    assert [("text", (-1,))] == [(each.name, each.shape) for each in metadata.inputs]


@pytest.mark.parametrize(
    ("probe", "path", "status", "expected"),
    [
        ("health", "/health", 200, True),
        ("health", "/health", 503, False),
        ("none", "/v1/models", 503, True),
        ("models", "/v1/models", 503, False),
    ],
)
def test_probes(probe: str, path: str, status: int, expected: bool) -> None:
    """Readiness comes from the list of models, from /health, or is assumed."""
    found = codec(probe=probe)
    assert path == found.encode_call(ServerReadyRequest()).path
    assert expected is found.decode_reply(ServerReadyRequest(), response({}, status))


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (embeddings_of(), errors.InvalidRequest),
        (embeddings_of("a", parameters={"flavour": "sweet"}), errors.InvalidRequest),
        (rerank_call("a"), errors.InvalidRequest),
        (InferRequest(model=MODEL, inputs=(FLOATS,)), errors.InvalidRequest),
        (InferRequest(model=MODEL, inputs=(NOT_UTF8,)), errors.InvalidRequest),
        # Sequences, classes and calls without a model have no members.
        (embeddings_of("a", sequence=CallSequence(1)), errors.Unsupported),
        (embeddings_of("a", outputs=(RequestedOutput("x", classes=1),)), errors.Unsupported),
        (InferRequest(inputs=(texts("a"),)), errors.Unsupported),
    ],
)
def test_what_the_form_does_not_carry_is_refused(call: InferRequest, kind: type[Exception]) -> None:
    """Inputs and parameters must be those of the task of the upstream."""
    with pytest.raises(kind):
        codec().encode_call(call)
