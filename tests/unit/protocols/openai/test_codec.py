"""The codec of OpenAI's form: which requests are read, and the bits of the responses."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gateway.api.protocol import QuotaNote
from gateway.ir.calls import (
    InferRequest,
    InferResponse,
    ModelReadyRequest,
    RepositoryIndexRequest,
    StreamInferRequest,
)
from gateway.ir.context import ModelRef
from gateway.ir.errors import GatewayError, InvalidMember, InvalidOutput, ModelNotFound, Unsupported
from gateway.ir.metadata import ModelState, RepositoryEntry
from gateway.ir.tensors.data import RawData
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import Tensor, array_tensor, as_items, as_numpy
from gateway.ir.text_tasks import Generate
from gateway.protocols.openai import duration_text, quota_headers
from gateway.protocols.openai.errors import row_of
from gateway.protocols.openai.http.codec import HttpCodec
from gateway.wire.http import Headers, HttpRequest, HttpResponse

EMBEDDINGS, RERANK, COMPLETIONS = "/v1/embeddings", "/v2/rerank", "/v1/completions"
JSON_TYPE = "application/json"
LARGEST = float(np.finfo(np.float32).max)
SPECIAL = np.array([[-0.0, 1e-45, LARGEST, 0.1], [1.1754942e-38, -LARGEST, 1 / 3, 16777216]])


def codec(**options: Any) -> HttpCodec:
    return HttpCodec(options=options)


def post(body: Any, path: str = EMBEDDINGS, kind: str | None = JSON_TYPE) -> HttpRequest:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = () if kind is None else (("Content-Type", kind),)
    return HttpRequest("POST", path, "", Headers(headers), (data,), None)


def get(path: str, method: str = "GET") -> HttpRequest:
    return HttpRequest(method, path, "", Headers(()), (), None)


def embeddings(**members: Any) -> InferRequest:
    call = codec().decode_call(post({"model": "m", "input": "a", **members}))
    assert isinstance(call, InferRequest)
    return call


def document(response: HttpResponse) -> Any:
    return json.loads(b"".join(map(bytes, response.body)))


def written(tensor: Tensor, encoding: str) -> list[Any]:
    """Return the embeddings that a response has for an output."""
    call = embeddings(encoding_format=encoding)
    reply = InferResponse(model=ModelRef("m"), outputs=(tensor,))
    found = document(codec().encode_reply(call, reply))
    assert list(range(len(found["data"]))) == [each["index"] for each in found["data"]]
    return [each["embedding"] for each in found["data"]]


def bits(rows: list[Any]) -> bytes:
    """Return the FP32 bits of embeddings, in either form."""
    return b"".join(
        base64.b64decode(row) if isinstance(row, str) else np.array(row, np.float32).tobytes()
        for row in rows
    )


def bf16(array: npt.NDArray[np.float32]) -> Tensor:
    """Return the upper halves of FP32 numbers as BF16."""
    halves = (array.view(np.uint32) >> 16).astype(np.uint16)
    return Tensor("", Datatype.BF16, array.shape, RawData(memoryview(halves.tobytes())))


# --- exact numbers ---


UPPER = (SPECIAL.astype(np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32)
HALVES = np.array([[-0.0, 6e-8, 65504, 0.1]], np.float16)


@pytest.mark.parametrize("encoding", ["float", "base64"])
@pytest.mark.parametrize(
    ("tensor", "exact"),
    [
        (array_tensor("", SPECIAL.astype(np.float32)), SPECIAL),
        (array_tensor("", HALVES), HALVES),
        (bf16(UPPER), UPPER),
        (array_tensor("", np.array([[1, 100]], np.int8)), np.array([[1, 100]])),
        (array_tensor("", np.array([[1, 200]], np.uint8)), np.array([[1, 200]])),
    ],
    ids=["fp32", "fp16", "bf16", "int8", "uint8"],
)
def test_embeddings_are_fp32_exactly(tensor: Tensor, exact: Any, encoding: str) -> None:
    """Signs of zero, subnormals and the largest values are those of the tensor."""
    assert exact.astype(np.float32).tobytes() == bits(written(tensor, encoding))


def test_fp64_is_whole_as_numbers_and_rounded_once_as_base64() -> None:
    """The shortest FP64 text, and one rounding to FP32."""
    array = np.array([[0.1, 1 / 3, 1e-310, -0.0]])
    (row,) = written(array_tensor("", array), "float")
    assert array.tobytes() == np.array([row]).tobytes()
    assert array.astype(np.float32).tobytes() == bits(written(array_tensor("", array), "base64"))


def test_quantised_rows_are_whole_numbers() -> None:
    """Their text has no fraction."""
    assert "[[1, 100]]" == str(written(array_tensor("", np.array([[1, 100]], np.int8)), "float"))


@pytest.mark.parametrize(
    ("values", "lacking", "other"),
    [
        # Base64 is FP32, and JSON has no words for numbers: the text names the other form.
        (np.array([[1e39]]), "base64", "float"),
        (np.array([[np.nan, np.inf, -np.inf]], np.float32), "float", "base64"),
    ],
)
def test_values_that_one_form_lacks_need_the_other(values: Any, lacking: str, other: str) -> None:
    """The text names the form that carries them."""
    with pytest.raises(InvalidOutput, match=f"encoding_format {other}|{other}") as raised:
        written(array_tensor("", values), lacking)
    assert (500, "model_output_invalid") == row_of(raised.value)[::2]
    found = written(array_tensor("", values), other)
    assert values.tobytes() == (bits(found) if other == "base64" else np.array(found).tobytes())


def test_other_datatypes_are_no_embeddings() -> None:
    """INT64 is refused by its name."""
    with pytest.raises(Unsupported, match="INT64"):
        written(array_tensor("", np.array([[1]])), "float")


def test_the_bits_of_long_rows_are_those_of_the_tensor() -> None:
    """Rows of any length, with any rest of the groups of base64, are exact."""
    random = np.random.default_rng(3)
    for width in (1, 2, 3, 4, 5, 384, 385):
        array = random.standard_normal((11, width)).astype(np.float32)
        assert array.tobytes() == bits(written(array_tensor("", array), "base64"))


# --- requests ---


def test_inputs_are_texts_or_rows_of_ids() -> None:
    """A list of whole numbers is one input; lists of them are several."""
    assert [b"a"] == list(as_items(embeddings().inputs[0]))
    assert [b"a", "\u00e9".encode()] == list(as_items(embeddings(input=["a", "\u00e9"]).inputs[0]))
    for value, ids, counts in (([1, 2], [1, 2], [2]), ([[1], [2, 3]], [1, 2, 3], [1, 2])):
        found = [as_numpy(each).tolist() for each in embeddings(input=value).inputs]
        assert [ids, counts] == found


RERANKED: dict[str, Any] = {"query": "q", "documents": ["a"]}
VALID: dict[str, dict[str, Any]] = {
    EMBEDDINGS: {"input": "a"},
    RERANK: RERANKED,
    COMPLETIONS: {"prompt": "a"},
}
EMPTY = ["", [], [""], ["a", ""], [[]], [[1], []]]
MIXED = [["a", 1], [1, "a"], ["a", ["b"]], [[1], "a"], [None], [{"text": "a"}]]
NO_IDS = [[True], [[True]], [1.0], [[1, 2.5]], {"a": 1}, 7, True, [10**30]]
WRONG: list[tuple[str, dict[str, Any]]] = [
    *((EMBEDDINGS, {"input": value}) for value in (*EMPTY, *MIXED, *NO_IDS)),
    *((EMBEDDINGS, {"dimensions": value}) for value in (0, 1.5, True, "8")),
    *((EMBEDDINGS, {"encoding_format": value}) for value in ("int8", 1)),
    (EMBEDDINGS, {"user": 1}),
    (EMBEDDINGS, {"input_type": "x"}),
    *((EMBEDDINGS, {"model": value}) for value in ("", 1, "a/../b\u0000")),
    # What Cohere has and is not built.
    (RERANK, {"rank_fields": ["title"]}),
    (RERANK, {"max_chunks_per_doc": 2}),
    (RERANK, {"relevant_spans": {"enabled": True}}),
    (RERANK, {"priority": 1}),
    (RERANK, {"top_n": 0}),
    *((RERANK, {"documents": value}) for value in ([], [{"title": "a"}], [1])),
    (RERANK, {"query": ""}),
    (RERANK, {"return_documents": 1}),
    # What no model can serve, and what is no such value.
    (COMPLETIONS, {"n": 2}),
    (COMPLETIONS, {"best_of": 2}),
    (COMPLETIONS, {"logprobs": 1}),
    (COMPLETIONS, {"logit_bias": {"1": 1}}),
    (COMPLETIONS, {"suffix": "a"}),
    *((COMPLETIONS, {"stop": value}) for value in (["a"] * 5, [""])),
    *((COMPLETIONS, {"prompt": value}) for value in ([1, 2], [["a"]])),
    (COMPLETIONS, {"prompt": ["a", "b"], "stream": True}),
    (COMPLETIONS, {"stream_options": {"include_usage": True}}),
    (COMPLETIONS, {"temperature": "hot"}),
    (COMPLETIONS, {"max_tokens": 0.5}),
]


@pytest.mark.parametrize(("path", "members"), WRONG, ids=repr)
def test_wrong_members_are_named(path: str, members: dict[str, Any]) -> None:
    """`param` has the member that is wrong, the first of a row."""
    with pytest.raises(InvalidMember) as raised:
        codec().decode_call(post({"model": "m", **VALID[path], **members}, path))
    assert (next(iter(members)), 400) == (raised.value.member, row_of(raised.value).status)


def test_null_members_are_absent() -> None:
    """A client may send null for each member that it does not use, unknown ones too."""
    call = embeddings(dimensions=None, encoding_format=None, user=None, other=None)
    assert embeddings().texts == call.texts


@pytest.mark.parametrize("path", VALID)
def test_unknown_members_are_refused_or_ignored(path: str) -> None:
    """The option of the listener drops what does not exist."""
    body = {"model": "m", "truncate": "END", **VALID[path]}
    with pytest.raises(InvalidMember) as raised:
        codec().decode_call(post(body, path))
    assert ("truncate", "unknown_parameter") == (raised.value.member, raised.value.reason)
    assert isinstance(codec(unknown_members="ignore").decode_call(post(body, path)), InferRequest)


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"m","input":"a","input":"b"}',
        b'{"model":"m","inp\\u0075t":"a","input":"b"}',
        b'{"model":"m","model":"n","input":"a"}',
        b'{"model":"m","input":"a","user":"x","user":"y"}',
    ],
)
@pytest.mark.parametrize("unknown", ["refuse", "ignore"])
def test_members_that_occur_twice_are_refused(body: bytes, unknown: str) -> None:
    """However they are spelled, and whatever happens to unknown ones."""
    with pytest.raises(InvalidMember, match="occurs twice"):
        codec(unknown_members=unknown).decode_call(post(body))


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"m","input":"\\ud800"}',
        b'{"model":"m","input":"a\xff"}',
        b'{"model":"m","input":NaN}',
    ],
)
def test_text_that_is_not_unicode_is_refused(body: bytes) -> None:
    """Lone surrogates, other bytes and numbers that JSON does not have."""
    with pytest.raises(GatewayError) as raised:
        codec().decode_call(post(body))
    assert 400 == row_of(raised.value).status


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        (None, 200),
        (JSON_TYPE, 200),
        ("application/json; charset=utf-8", 200),
        ('Application/JSON; charset="UTF-8"', 200),
        ("application/json; charset=latin-1", 415),
        ("text/plain", 415),
        ("application/x-www-form-urlencoded", 415),
    ],
)
def test_content_types(kind: str | None, status: int) -> None:
    """JSON of UTF-8, or no type; anything else is 415."""
    wire = post({"model": "m", "input": "a"}, kind=kind)
    try:
        codec().decode_call(wire)
    except GatewayError as error:
        found = codec().encode_error(None, error)
        assert "unsupported_content_type" == document(found)["error"]["code"]
        assert status == found.status
    else:
        assert 200 == status


# --- paths ---


@pytest.mark.parametrize("prefix", ["", "/openai", "/a/b"])
def test_prefixes_stand_before_every_path(prefix: str) -> None:
    """A listener serves each path behind each of its prefixes, and under no other."""
    own = codec(prefixes=["", "/openai", "/a/b"])
    assert isinstance(
        own.decode_call(post({"model": "m", "input": "a"}, prefix + EMBEDDINGS)), InferRequest
    )
    assert isinstance(own.decode_call(get(f"{prefix}/v1/models")), RepositoryIndexRequest)
    with pytest.raises(GatewayError) as raised:
        own.decode_call(post({}, f"/other{prefix}{EMBEDDINGS}"))
    assert 404 == row_of(raised.value).status


@pytest.mark.parametrize("path", ["org/name", "org%2Fname"])
def test_names_of_models_may_have_slashes(path: str) -> None:
    """Typed or percent-encoded, it is the same model."""
    call = codec().decode_call(get(f"/v1/models/{path}"))
    assert isinstance(call, ModelReadyRequest)
    assert ModelRef("org/name") == call.model


@pytest.mark.parametrize(
    ("path", "method", "allow"),
    [
        (EMBEDDINGS, "GET", "POST"),
        (COMPLETIONS, "GET", "POST"),
        (RERANK, "PUT", "POST"),
        ("/v1/models", "POST", "GET, HEAD"),
    ],
)
def test_other_methods_are_405(path: str, method: str, allow: str) -> None:
    """`Allow` says which there are; rerank paths have the text where Cohere's clients look."""
    with pytest.raises(GatewayError, match="is not allowed") as raised:
        codec().decode_call(get(path, method))
    found = codec().encode_error(None, raised.value)
    assert (405, allow) == (found.status, found.headers.get("allow"))
    assert {"message", "type", "param", "code"} == set(document(found)["error"])
    assert ("message" in document(found)) is ("rerank" in path)


def test_a_model_that_is_not_ready_is_an_error_in_the_usual_form() -> None:
    """Only Cohere's clients look for `message` outside of the member `error`."""
    own = codec()
    response = own.encode_reply(own.decode_call(get("/v1/models/m")), False)
    assert (503, ["error"]) == (response.status, list(document(response)))
    assert "model 'm' is not ready" == document(response)["error"]["message"]


def test_models_that_are_ready_are_listed_once() -> None:
    """Sorted, with the members that clients of OpenAI and of KServe read."""
    states = {"b": ModelState.READY, "a": ModelState.READY, "c": ModelState.LOADING}
    entries = [RepositoryEntry(name, "1", state) for name, state in states.items()]
    entries.append(RepositoryEntry("a", "2", ModelState.READY))
    own = codec(created=7, owned_by="us")
    found = document(own.encode_reply(own.decode_call(get("/v1/models")), entries))
    assert ["a", "b"] == found["models"] == [each["id"] for each in found["data"]]
    model = {"id": "a", "object": "model", "created": 7, "owned_by": "us"}
    assert {**model, "name": "a", "ready": True} == found["data"][0]


# --- rerank and completions ---


@pytest.mark.parametrize(
    "members",
    [
        {"rank_fields": ["text"]},
        {"relevant_spans": {"enabled": False}},
        {"priority": 0},
        {"documents": [{"text": "a", "title": "b"}, "c"]},
    ],
    ids=repr,
)
def test_default_values_of_cohere_pass(members: Any) -> None:
    """Their values are what is done anyway."""
    body = {"model": "m", **RERANKED, **members}
    assert isinstance(codec().decode_call(post(body, RERANK)), InferRequest)


def test_a_number_without_a_fraction_is_a_whole_number() -> None:
    """A client whose language has only doubles writes 16.0."""
    body = {"model": "m", "prompt": "a", "max_tokens": 16.0, "seed": 3.0, "n": 1.0, "top_p": 1.0}
    call = codec().decode_call(post(body, COMPLETIONS))
    assert isinstance(call, InferRequest)
    assert isinstance(call.texts, Generate)
    assert '{"max_tokens": 16, "seed": 3, "top_p": 1.0}' == json.dumps(dict(call.texts.members))
    assert embeddings(dimensions=8).texts == embeddings(dimensions=8.0).texts


@pytest.mark.parametrize("stream", [True, False])
def test_a_chat_is_refused_where_no_server_has_its_model(stream: bool) -> None:
    """Clients learn that chats are not served, and not that a model is unknown."""
    call = codec().decode_call(post({"model": "m", "stream": stream}, "/v1/chat/completions"))
    assert stream is isinstance(call, StreamInferRequest)
    written = codec().encode_error(call, ModelNotFound("no model 'm'", model=ModelRef("m")))
    assert 404 == written.status
    assert "unsupported_endpoint" == json.loads(bytes(written.view))["error"]["code"]


# --- records and quotas ---


def test_a_record_has_neither_user_nor_keys() -> None:
    """The member that names a person is dropped from what is kept of a request."""
    wire = post({"model": "m", "input": "a", "user": "alice"})
    kept = bytes(codec().for_record(wire).view)
    assert {"model": "m", "input": "a"} == json.loads(kept)
    call = codec().decode_call(wire)
    assert call.context.origin is not None
    assert {"model": "m", "input": "a"} == json.loads(bytes(call.context.origin.recorded.view))
    assert wire.view == call.context.origin.wire.view


def test_quotas_have_the_names_of_openai() -> None:
    """Calls are requests and elements are tokens; of several, the one with the least left."""
    notes = [QuotaNote("calls", 100, 7, 360), QuotaNote("calls", 10, 3, 1)]
    assert {
        "x-ratelimit-limit-requests": "10",
        "x-ratelimit-remaining-requests": "3",
        "x-ratelimit-reset-requests": "1s",
        "x-ratelimit-limit-tokens": "5000",
        "x-ratelimit-remaining-tokens": "0",
        "x-ratelimit-reset-tokens": "6m0s",
    } == dict(quota_headers([*notes, QuotaNote("elements", 5000, 0, 360)]))
    assert () == quota_headers([QuotaNote("bytes", 1, 1, 1)])
    assert ["0s", "59s", "1m0s", "1h0m1s"] == [duration_text(each) for each in (0, 59, 60, 3601)]


# --- messages that are sent on ---


def sent_on(wire: HttpRequest, model: str, **options: Any) -> bytes | None:
    """Return the body that a server gets; None where the message is written anew."""
    call, server = codec(**options).decode_call(wire), codec()
    if not server.sends_on(call):
        return None
    return bytes(server.encode_call(call.changed(model=ModelRef(model))).view)


def parses(function: Callable[[], object]) -> int:
    """Return how often a function parses JSON."""
    found = []

    def note(frame: FrameType, event: str, argument: Any) -> None:
        name = frame.f_code.co_name if event == "call" else getattr(argument, "__name__", "")
        if event in ("call", "c_call") and name == "loads":
            found.append(name)

    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return len(found)


@pytest.mark.parametrize("model", ["m", "other"])
@pytest.mark.parametrize(
    "members",
    [
        {"input": ["key: \u00e9\n", "b"], "user": None},
        {"input": [[1, 2], [3]], "encoding_format": "base64"},
    ],
)
def test_a_message_is_parsed_once(members: dict[str, Any], model: str) -> None:
    """Also where a text has a colon, and a route another model."""
    body = json.dumps({"model": "m", **members}, ensure_ascii=False).encode()
    sent: list[bytes | None] = []
    assert 1 == parses(lambda: sent.append(sent_on(post(body), model)))
    assert [body.replace(b'"m"', b'"%b"' % model.encode())] == sent


@pytest.mark.parametrize(
    "body",
    [
        b'{"model" : "m", "input": "a"}',
        b'{"mod\\u0065l": "m", "input": "a"}',
        b'{"input": "\\"model\\": \\"m\\"", "model": "m"}',
        b'{"own": {"model": "m"}, "input": "a", "model": "m"}',
        b'{"own": {"model": "m"}, "input": "a", "m\\u006Fdel": "m"}',
        b'{"model": "\\"m\\\\", "input": "a"}',
    ],
)
def test_only_the_model_of_a_request_changes(body: bytes) -> None:
    """Whatever the spelling of its key, and wherever else there is one."""
    sent = sent_on(post(body), 'o"', unknown_members="ignore")
    assert sent is not None
    assert {**json.loads(body), "model": 'o"'} == json.loads(sent)


@pytest.mark.parametrize("own", [b'[[{"a": 1, "a": 2}]]', b"[" * 99 + b"]" * 99])
def test_an_unknown_member_that_readers_differ_on_is_left_out(own: bytes) -> None:
    """It is neither read nor sent on."""
    wire = post(b'{"model": "m", "input": "a", "own": %b}' % own)
    assert sent_on(wire, "m", unknown_members="ignore") is None


def test_a_message_with_two_content_types_is_rebuilt() -> None:
    """The gateway reads the first one; others may read the last."""
    pairs = tuple(("Content-Type", each) for each in (JSON_TYPE, "text/plain"))
    wire = post({"model": "m", "input": "a"})
    twice = HttpRequest("POST", wire.path, "", Headers(pairs), wire.body, None)
    assert sent_on(wire, "m") is not None
    assert sent_on(twice, "m") is None
