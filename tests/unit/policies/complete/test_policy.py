"""Complete: metadata are fetched only if the call lacks something."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gateway.ir.bodies.streams import close_stream
from gateway.ir.calls import (
    Call,
    InferRequest,
    InferResponse,
    ModelMetadataRequest,
    ServerLiveRequest,
    StreamInferRequest,
    inference_of,
)
from gateway.ir.context import CallSequence, Context, ModelRef, Need, Origin
from gateway.ir.errors import (
    GatewayError,
    InvalidRequest,
    ModelNotFound,
    SequenceIdTooLarge,
    Unavailable,
    UpstreamProtocolError,
)
from gateway.ir.metadata import ModelMetadata, TensorMetadata
from gateway.ir.tensors.data import RawData
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import RequestedOutput, Tensor, array_tensor
from gateway.model_info.metadata_cache import MetadataCache
from gateway.policies.complete.policy import Complete
from gateway.policies.complete.tensors import ALL_NEEDS
from tests.fakes import FakeStream, ScriptedService

M = ModelRef("m")
INT32 = Datatype.INT32
ARRAY = np.array([[1, 2]], np.int32)
METADATA = ModelMetadata(
    name="m",
    inputs=(TensorMetadata("A", INT32, (-1, 2)),),
    outputs=(TensorMetadata("Y", INT32, (-1, 2)), TensorMetadata("Z", INT32, (-1, 2))),
)
WHOLE = array_tensor("A", ARRAY)
BARE = Tensor("", None, None, RawData(memoryview(ARRAY.tobytes())))
NAMELESS = array_tensor("", ARRAY)


class Model:
    """Returns metadata, and replies with *outputs*; records the inferences."""

    def __init__(self, *outputs: Tensor, metadata: ModelMetadata | GatewayError = METADATA) -> None:
        self._outputs = outputs
        self._metadata = metadata
        self.metadata_calls = 0
        self.inputs: tuple[Tensor, ...] = ()
        self.stream = FakeStream([self._reply(), self._reply()])
        self.service = ScriptedService(always=self._respond)

    def _reply(self) -> InferResponse:
        return InferResponse(model=M, outputs=self._outputs)

    def _respond(self, call: Call[Any]) -> Any:
        if isinstance(call, ModelMetadataRequest):
            self.metadata_calls += 1
            if isinstance(self._metadata, GatewayError):
                raise self._metadata
            return self._metadata
        if isinstance(call, StreamInferRequest):
            self.inputs = call.request.inputs
            return self.stream
        assert isinstance(call, InferRequest)
        self.inputs = call.inputs
        return self._reply()


def request(*inputs: Tensor, needs: frozenset[Need] = frozenset(), **fields: Any) -> InferRequest:
    return InferRequest(model=M, inputs=inputs, context=Context(needs=needs), **fields)


async def test_complete_request_is_unchanged() -> None:
    """A complete request fetches no metadata, even if the target needs everything."""
    model = Model(WHOLE)
    call = request(WHOLE, needs=ALL_NEEDS)
    await Complete(model.service, ALL_NEEDS)(call)
    assert 0 == model.metadata_calls
    assert model.service.calls[0] is call


async def test_parts_that_are_not_needed_are_not_filled_in() -> None:
    """Parts that the next codec does not need stay missing."""
    model = Model(NAMELESS)
    await Complete(model.service, frozenset())(request(NAMELESS))
    assert (0, (NAMELESS,)) == (model.metadata_calls, model.inputs)


async def test_missing_parts_are_filled_in_from_cached_metadata() -> None:
    """Two incomplete requests fetch the metadata once."""
    model = Model()
    complete = Complete(model.service, ALL_NEEDS)
    for _ in range(2):
        await complete(request(NAMELESS))
        assert (WHOLE,) == model.inputs
    assert 1 == model.metadata_calls


async def test_raw_binary_request_is_always_completed() -> None:
    """A raw binary request is completed even if the next codec needs nothing."""
    model = Model()
    await Complete(model.service, frozenset())(request(BARE))
    assert (WHOLE,) == model.inputs


async def test_raw_binary_request_has_batch_size_one() -> None:
    """A raw binary request with more elements than one item is rejected."""
    metadata = ModelMetadata(name="m", inputs=METADATA.inputs, max_batch_size=8)
    twice = Tensor("", None, None, RawData(memoryview(ARRAY.tobytes() * 2)))
    with pytest.raises(InvalidRequest, match="with batch size 1, which does not match 4 elements"):
        await Complete(Model(metadata=metadata).service, ALL_NEEDS)(request(twice))


async def test_existing_metadata_cache_is_reused() -> None:
    """A MetadataCache below is shared, not duplicated."""
    model = Model()
    cache = MetadataCache(model.service)
    await cache(ModelMetadataRequest(model=M))
    await Complete(cache, ALL_NEEDS)(request(NAMELESS))
    assert 1 == model.metadata_calls


async def test_reply_gets_the_parts_that_the_caller_needs() -> None:
    """Unnamed outputs get the model's names, in its order."""
    reply = await Complete(Model(NAMELESS, NAMELESS).service, frozenset())(
        request(WHOLE, needs=ALL_NEEDS)
    )
    assert (array_tensor("Y", ARRAY), array_tensor("Z", ARRAY)) == reply.outputs


async def test_unnamed_outputs_get_the_requested_names() -> None:
    """The names follow the order of the requested outputs."""
    reply = await Complete(Model(NAMELESS, NAMELESS).service, frozenset())(
        request(WHOLE, needs=ALL_NEEDS, outputs=(RequestedOutput("Z"), RequestedOutput("W")))
    )
    assert (array_tensor("Z", ARRAY), array_tensor("W", ARRAY)) == reply.outputs


async def test_reply_with_too_many_outputs_is_an_upstream_error() -> None:
    """A reply that contradicts the model's metadata is rejected."""
    with pytest.raises(UpstreamProtocolError, match="has 2 outputs, the message has 3"):
        await Complete(Model(*[NAMELESS] * 3).service, frozenset())(request(WHOLE, needs=ALL_NEEDS))


async def test_metadata_failure_keeps_its_class_and_cause() -> None:
    """The text of the error starts with the cause."""
    error = Unavailable("refused")
    with pytest.raises(Unavailable) as caught:
        await Complete(Model(metadata=error).service, ALL_NEEDS)(request(NAMELESS))
    assert caught.value.message == (
        "refused; the request has no names, datatypes or shapes, and the metadata of model 'm' "
        "are unavailable"
    )
    with pytest.raises(Unavailable, match="refused; the reply has no names"):
        await Complete(Model(NAMELESS, metadata=error).service, frozenset())(
            request(WHOLE, needs=ALL_NEEDS)
        )


@pytest.mark.parametrize("need", [Need.BATCHING, Need.OUTPUTS])
async def test_metadata_failure_names_the_need_of_the_target(need: Need) -> None:
    """If the request itself is complete, the error describes what the target needs."""
    model = Model(metadata=Unavailable("refused"))
    with pytest.raises(Unavailable, match="refused; the target needs the names of the outputs or"):
        await Complete(model.service, ALL_NEEDS | {need})(request(WHOLE))


async def test_unknown_model_error_does_not_mention_metadata() -> None:
    """The error names the unknown model, not the missing parts of the request."""
    model = Model(metadata=ModelNotFound("no model 'm'"))
    with pytest.raises(ModelNotFound) as caught:
        await Complete(model.service, ALL_NEEDS)(request(NAMELESS))
    expected = "unknown model 'm': no model 'm'"
    assert expected == caught.value.message


async def test_servers_text_about_an_unknown_model_is_unchanged() -> None:
    """Clients compare the text with that of the server."""
    text = "Request for unknown model: 'm' is not found"
    model = Model(metadata=ModelNotFound(text, origin=Origin("oip.http", None)))
    with pytest.raises(ModelNotFound) as caught:
        await Complete(model.service, ALL_NEEDS)(request(NAMELESS))
    assert text == caught.value.message


LARGE = CallSequence(1 << 63, start=True)
ID_TOO_LARGE = SequenceIdTooLarge("the id is too large")


@pytest.mark.parametrize("kind", ["unary", "stream"])
@pytest.mark.parametrize("max_batch_size", [0, 8])
async def test_large_sequence_id_is_dropped_for_stateless_models(
    kind: str, max_batch_size: int
) -> None:
    """The call is sent again without the sequence id that its server cannot represent."""
    reply = InferResponse(model=M, outputs=(WHOLE,))
    result = FakeStream([reply]) if kind == "stream" else reply
    metadata = METADATA.changed(max_batch_size=max_batch_size)
    service = ScriptedService(ID_TOO_LARGE, metadata, result)
    call = request(WHOLE).changed(sequence=LARGE)
    outer_call: Call[Any] = call if kind == "unary" else StreamInferRequest(model=M, request=call)
    assert result is await Complete(service, frozenset())(outer_call)
    assert call.changed(sequence=None) == inference_of(service.calls[-1])


@pytest.mark.parametrize(
    "metadata",
    [
        METADATA,  # whether it has sequences is not known
        METADATA.changed(max_batch_size=8, stateful=True),
        Unavailable("gone"),
    ],
)
async def test_large_sequence_id_is_rejected_for_stateful_models(metadata: Any) -> None:
    """If the model may be stateful, the call is not sent without its sequence id."""
    service = ScriptedService(ID_TOO_LARGE, metadata)
    with pytest.raises(SequenceIdTooLarge):
        await Complete(service, frozenset())(request(WHOLE).changed(sequence=LARGE))


@pytest.mark.parametrize("needs", [frozenset[Need](), ALL_NEEDS])
async def test_stream_request_and_replies_are_completed(needs: frozenset[Need]) -> None:
    """The replies of a stream are completed only if the caller needs it."""
    model = Model(NAMELESS)
    items = await Complete(model.service, ALL_NEEDS)(
        StreamInferRequest(model=M, request=request(NAMELESS), context=Context(needs=needs))
    )
    name = "Y" if needs else ""
    expected = [(array_tensor(name, ARRAY),)] * 2
    assert expected == [item.outputs async for item in items]
    assert (WHOLE,) == model.inputs
    await close_stream(items)
    assert 1 == model.stream.closed


async def test_complete_stream_request_is_unchanged() -> None:
    """A complete stream request is passed on as the same object."""
    model = Model(WHOLE)
    call = StreamInferRequest(model=M, request=request(WHOLE))
    await Complete(model.service, ALL_NEEDS)(call)
    assert model.service.calls[0] is call


async def test_other_calls_pass_through() -> None:
    """Calls other than inferences have nothing to complete."""
    service = ScriptedService(True)
    assert await Complete(service, ALL_NEEDS)(ServerLiveRequest()) is True


async def test_call_without_a_model_is_completed() -> None:
    """The metadata that the service returns for the empty name complete the call."""
    model = Model(NAMELESS)
    call = InferRequest(inputs=(NAMELESS,), context=Context(needs=ALL_NEEDS))
    reply = await Complete(model.service, ALL_NEEDS)(call)
    assert ((WHOLE,), (array_tensor("Y", ARRAY),)) == (model.inputs, reply.outputs)
    names = [each.model for each in model.service.calls if isinstance(each, ModelMetadataRequest)]
    assert [ModelRef("")] == names


@pytest.mark.parametrize("streamed", [False, True])
async def test_flat_members_are_always_split(streamed: bool) -> None:
    """Flat members become inputs or parameters even if nothing is needed, also in streams."""
    model = Model(WHOLE)
    call = InferRequest(model=M, flat_members={"A": (1, 2), "b": 3})
    complete = Complete(model.service, frozenset())
    if streamed:
        await close_stream(await complete(StreamInferRequest(model=M, request=call)))
    else:
        await complete(call)
    last_call = model.service.calls[-1]
    inner = last_call.request if isinstance(last_call, StreamInferRequest) else last_call
    assert isinstance(inner, InferRequest)
    assert ({}, {"b": 3}) == (dict(inner.flat_members), dict(inner.parameters))
    assert (array_tensor("A", ARRAY),) == model.inputs


async def test_flat_members_need_metadata() -> None:
    """The error describes why the metadata are needed."""
    model = Model(metadata=Unavailable("gone"))
    with pytest.raises(
        Unavailable, match=r"^gone; .* does not distinguish tensors from parameters"
    ):
        await Complete(model.service, frozenset())(InferRequest(model=M, flat_members={"A": 1}))


async def test_error_reply_in_a_stream_is_passed_on() -> None:
    """A reply with an error has nothing to complete."""
    failed = InferResponse(model=M, outputs=(), is_final=False, error=Unavailable("no"))
    service = ScriptedService(FakeStream([failed]))
    call = StreamInferRequest(
        model=M, request=InferRequest(model=M, inputs=(WHOLE,)), context=Context(needs=ALL_NEEDS)
    )
    items = await Complete(service, frozenset())(call)
    assert [failed] == [item async for item in items]
