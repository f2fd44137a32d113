"""Recorded requests of Triton's generate extension: decoded, completed by metadata, and served.

Sources: `oip/README.md`, exchanges 096 to 099.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from gateway.frontend.frontend import Frontend
from gateway.ir.calls import (
    Call,
    InferRequest,
    InferResponse,
    ModelMetadataRequest,
    StreamInferRequest,
)
from gateway.ir.context import ModelRef
from gateway.ir.errors import UpstreamError
from gateway.ir.limits import DEFAULT_LIMITS
from gateway.ir.metadata import ModelMetadata, TensorMetadata
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import Tensor, array_tensor, as_items, as_numpy, items_tensor
from gateway.policies.complete.policy import Complete
from gateway.registry import protocol
from gateway.wire.http import HttpRequest, HttpResponse
from tests.fakes import FakeStream, ScriptedService
from tests.golden.open_inference import Exchange, exchanges

ALL = {one.name: one for one in exchanges()}
CODEC: Any = protocol("oip").http.codec(DEFAULT_LIMITS, {})  # type: ignore[union-attr]

TEXT = TensorMetadata("text_input", Datatype.BYTES, (1,))
METADATA = {
    "generate_text": ModelMetadata(
        name="generate_text",
        inputs=(TEXT, TensorMetadata("max_tokens", Datatype.INT32, (1,))),
        outputs=(),
    ),
    "repeat_stream": ModelMetadata(
        name="repeat_stream", inputs=(TensorMetadata("IN", Datatype.INT32, (-1,)),), outputs=()
    ),
}


async def serve_exchange(
    exchange: Exchange, result: Any
) -> tuple[InferRequest, list[HttpResponse]]:
    """Return the call that the model gets, and the client's responses to the model's *result*."""
    requests: list[InferRequest] = []

    def model(call: Call[Any]) -> Any:
        if isinstance(call, ModelMetadataRequest):
            assert call.model is not None
            return METADATA[call.model.name]
        assert isinstance(call, InferRequest | StreamInferRequest)
        requests.append(call.request if isinstance(call, StreamInferRequest) else call)
        return result

    service = Complete(ScriptedService(always=model), CODEC.needs)
    frontend: Frontend[HttpRequest, HttpResponse] = Frontend(CODEC, service)
    responses = [each async for each in frontend(exchange.request)]
    return requests[0], responses


def texts(reply: str) -> Tensor:
    return items_tensor("text_output", (1,), [reply.encode()])


def reply(*outputs: Tensor, model: str = "generate_text", final: bool = True) -> InferResponse:
    return InferResponse(model=ModelRef(model, "1"), outputs=outputs, is_final=final)


def events(body: bytes) -> list[Any]:
    assert body.endswith(b"\n\n")
    return [json.loads(each.removeprefix("data: ")) for each in body.decode().split("\n\n")[:-1]]


async def test_generate_has_one_call_and_one_response() -> None:
    """Members become inputs where the model has them; the response equals Triton's."""
    exchange = ALL["096-triton-generate"]
    request, (response,) = await serve_exchange(exchange, reply(texts("one two")))
    text, most = request.inputs
    assert ("text_input", (1,), [b"one two three"]) == (text.name, text.shape, as_items(text))
    assert ("max_tokens", Datatype.INT32) == (most.name, most.datatype)
    assert np.array_equal([2], as_numpy(most))
    assert ("g", {}) == (request.id, dict(request.parameters))
    assert json.loads(bytes(exchange.response.view)) == json.loads(bytes(response.view))


async def test_generate_stream_is_a_stream_of_events() -> None:
    """Each reply is an event equal to Triton's; a member that is no input is a parameter."""
    exchange = ALL["097-triton-generate-stream"]
    stream = FakeStream([reply(texts(word), final=False) for word in ("one", "two", "three")])
    request, responses = await serve_exchange(exchange, stream)
    assert {"stream": True} == dict(request.parameters)
    expected = exchange.response
    assert expected.headers.get("content-type") == responses[0].headers.get("content-type")
    body = b"".join(bytes(each.view) for each in responses)
    assert events(bytes(expected.view)) == events(body)


async def test_an_error_in_the_middle_is_an_event() -> None:
    """An element that fails does not end the stream."""
    exchange = ALL["099-triton-generate-stream-error"]

    def element(value: int, index: int) -> InferResponse:
        return reply(
            array_tensor("OUT", np.array([value], np.int32)),
            array_tensor("IDX", np.array([index], np.uint32)),
            model="repeat_stream",
            final=False,
        )

    failed = InferResponse(
        model=ModelRef("m"),
        outputs=(),
        is_final=False,
        error=UpstreamError("negative element at 1"),
    )
    stream = FakeStream([element(1, 0), failed, element(3, 2)])
    request, responses = await serve_exchange(exchange, stream)
    assert np.array_equal([1, -1, 3], as_numpy(request.inputs[0]))
    body = b"".join(bytes(each.view) for each in responses)
    assert events(bytes(exchange.response.view)) == events(body)


async def test_text_that_is_cut_within_a_character_stays_whole() -> None:
    """A piece that ended within a character became an error, and its text was lost."""
    exchange = ALL["097-triton-generate-stream"]
    text = "naïve 日本 🎉".encode()
    items = [
        reply(items_tensor("text_output", (1,), [text[at : at + 1]]), final=False)
        for at in range(len(text))
    ]
    _, responses = await serve_exchange(exchange, FakeStream(items))
    found = events(b"".join(bytes(each.view) for each in responses))
    assert len(items) == len(found)
    assert text.decode() == "".join(each["text_output"] for each in found)


async def test_bytes_that_are_no_text_are_an_event_and_the_end_of_a_cut_text_too() -> None:
    """An error between events loses nothing but the bytes that it names."""
    exchange = ALL["097-triton-generate-stream"]
    items = [
        reply(items_tensor("text_output", (1,), [data]), final=False)
        for data in (b"one", b"\xff", b"two\xe2\x82")
    ]
    _, responses = await serve_exchange(exchange, FakeStream(items))
    found = events(b"".join(bytes(each.view) for each in responses))
    assert ["one", None, "two", None] == [each.get("text_output") for each in found]
    assert "has bytes that are not UTF-8 at index 0" in found[1]["error"]
    assert "ends within a character at index 0, with the bytes e2 82" in found[3]["error"]


@pytest.mark.parametrize("name", sorted(name for name in ALL if "generate" in name))
def test_the_path_selects_a_single_reply_or_a_stream(name: str) -> None:
    """`generate` decodes to InferRequest, and `generate_stream` to StreamInferRequest."""
    kind = (
        StreamInferRequest
        if "stream" in ALL[name].request.path.rpartition("/")[2]
        else InferRequest
    )
    assert kind is type(CODEC.decode_call(ALL[name].request))
