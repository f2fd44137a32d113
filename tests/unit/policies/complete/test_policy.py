"""Complete: metadata is asked for when something is missing, and only then."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gateway.ir.calls import (
    Call,
    InferRequest,
    InferResponse,
    ModelMetadataRequest,
    ServerLiveRequest,
    StreamInferRequest,
    inference_of,
)
from gateway.ir.context import Context, ModelRef, Need, Origin, Sequence
from gateway.ir.data import RawData
from gateway.ir.datatypes import Datatype
from gateway.ir.errors import (
    GatewayError,
    InvalidRequest,
    ModelNotFound,
    SequenceIdTooLarge,
    Unavailable,
    UpstreamProtocolError,
)
from gateway.ir.metadata import ModelMetadata, TensorMetadata
from gateway.ir.streams import close_stream
from gateway.ir.tensor import RequestedOutput, Tensor, array_tensor
from gateway.policies.complete.policy import Complete
from gateway.policies.complete.tensors import ALL_NEEDS
from gateway.policies.metadata_cache import MetadataCache
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
    """Answers metadata, and inferences with *outputs*; remembers the inferences."""

    def __init__(self, *outputs: Tensor, metadata: ModelMetadata | GatewayError = METADATA) -> None:
        self._outputs = outputs
        self._metadata = metadata
        self.question_count = 0
        self.inputs: tuple[Tensor, ...] = ()
        self.stream = FakeStream([self._reply(), self._reply()])
        self.service = ScriptedService(always=self._answer)

    def _reply(self) -> InferResponse:
        return InferResponse(model=M, outputs=self._outputs)

    def _answer(self, call: Call[Any]) -> Any:
        if isinstance(call, ModelMetadataRequest):
            self.question_count += 1
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


async def test_nothing_missing_nothing_asked() -> None:
    """A whole request passes untouched, whatever is needed."""
    model = Model(WHOLE)
    call = request(WHOLE, needs=ALL_NEEDS)
    await Complete(model.service, ALL_NEEDS)(call)
    assert 0 == model.question_count
    assert model.service.calls[0] is call


async def test_nothing_needed_nothing_asked() -> None:
    """What the next codec can do without is not filled in."""
    model = Model(NAMELESS)
    await Complete(model.service, frozenset())(request(NAMELESS))
    assert (0, (NAMELESS,)) == (model.question_count, model.inputs)


async def test_missing_parts_are_filled_in_and_metadata_is_remembered() -> None:
    """Two requests that leave something out cost one question."""
    model = Model()
    complete = Complete(model.service, ALL_NEEDS)
    for _ in range(2):
        await complete(request(NAMELESS))
        assert (WHOLE,) == model.inputs
    assert 1 == model.question_count


async def test_bare_bytes_are_made_whole_though_nothing_is_needed() -> None:
    """A raw binary request means nothing to anyone until it is whole."""
    model = Model()
    await Complete(model.service, frozenset())(request(BARE))
    assert (WHOLE,) == model.inputs


async def test_model_that_batches_takes_bare_bytes_as_batch_one() -> None:
    """For a model that batches the batch of a raw binary request is 1, and nothing else."""
    metadata = ModelMetadata(name="m", inputs=METADATA.inputs, max_batch_size=8)
    twice = Tensor("", None, None, RawData(memoryview(ARRAY.tobytes() * 2)))
    with pytest.raises(InvalidRequest, match="with batch size 1, which does not match 4 elements"):
        await Complete(Model(metadata=metadata).service, ALL_NEEDS)(request(twice))


async def test_cache_beneath_is_used() -> None:
    """A cache that is there already is shared, not doubled."""
    model = Model()
    cache = MetadataCache(model.service)
    await cache(ModelMetadataRequest(model=M))
    await Complete(cache, ALL_NEEDS)(request(NAMELESS))
    assert 1 == model.question_count


async def test_answers_get_what_the_caller_needs() -> None:
    """Outputs without names get the model's, in its order."""
    reply = await Complete(Model(NAMELESS, NAMELESS).service, frozenset())(
        request(WHOLE, needs=ALL_NEEDS)
    )
    assert (array_tensor("Y", ARRAY), array_tensor("Z", ARRAY)) == reply.outputs


async def test_answers_come_in_the_order_asked_for() -> None:
    """Outputs asked for by name come back unnamed in the order of the question."""
    reply = await Complete(Model(NAMELESS, NAMELESS).service, frozenset())(
        request(WHOLE, needs=ALL_NEEDS, outputs=(RequestedOutput("Z"), RequestedOutput("W")))
    )
    assert (array_tensor("Z", ARRAY), array_tensor("W", ARRAY)) == reply.outputs


async def test_answer_with_too_many_outputs_is_the_upstreams_fault() -> None:
    """An answer that does not fit the model's own metadata cannot be used."""
    with pytest.raises(UpstreamProtocolError, match="has 2 outputs, the message has 3"):
        await Complete(Model(*[NAMELESS] * 3).service, frozenset())(request(WHOLE, needs=ALL_NEEDS))


async def test_failure_of_metadata_names_the_cause_first() -> None:
    """The error keeps its kind, and its cause stands before the need for metadata."""
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
async def test_failure_of_metadata_calls_no_complete_request_incomplete(need: Need) -> None:
    """The request has all names, datatypes and shapes: the target needs more than that."""
    model = Model(metadata=Unavailable("refused"))
    with pytest.raises(Unavailable, match="refused; the target needs the names of the outputs or"):
        await Complete(model.service, ALL_NEEDS | {need})(request(WHOLE))


async def test_unknown_model_is_named_without_a_word_of_metadata() -> None:
    """A client that names an unknown model hears of the model, not of what is missing."""
    model = Model(metadata=ModelNotFound("no model 'm'"))
    with pytest.raises(ModelNotFound) as caught:
        await Complete(model.service, ALL_NEEDS)(request(NAMELESS))
    expected = "unknown model 'm': no model 'm'"
    assert expected == caught.value.message


async def test_a_servers_text_about_an_unknown_model_stays_as_it_is() -> None:
    """Clients compare it with what the server says itself."""
    text = "Request for unknown model: 'm' is not found"
    model = Model(metadata=ModelNotFound(text, origin=Origin("oip.http", None)))
    with pytest.raises(ModelNotFound) as caught:
        await Complete(model.service, ALL_NEEDS)(request(NAMELESS))
    assert text == caught.value.message


LARGE = Sequence(1 << 63, start=True)
REFUSED = SequenceIdTooLarge("the id is too large")


@pytest.mark.parametrize("kind", ["unary", "stream"])
@pytest.mark.parametrize("max_batch_size", [0, 8])
async def test_a_large_sequence_id_is_left_out_where_no_sequence_is(
    kind: str, max_batch_size: int
) -> None:
    """A model without sequences is asked again without the id that its server cannot be told."""
    reply = InferResponse(model=M, outputs=(WHOLE,))
    answer = FakeStream([reply]) if kind == "stream" else reply
    metadata = METADATA.changed(max_batch_size=max_batch_size)
    service = ScriptedService(REFUSED, metadata, answer)
    call = request(WHOLE).changed(sequence=LARGE)
    outer_call: Call[Any] = call if kind == "unary" else StreamInferRequest(model=M, request=call)
    assert answer is await Complete(service, frozenset())(outer_call)
    assert call.changed(sequence=None) == inference_of(service.calls[-1])


@pytest.mark.parametrize(
    "metadata",
    [
        METADATA,  # whether it has sequences is not known
        METADATA.changed(max_batch_size=8, stateful=True),
        Unavailable("gone"),
    ],
)
async def test_a_large_sequence_id_is_refused_where_a_sequence_may_be(metadata: Any) -> None:
    """A sequence never goes on without its id, or under another one."""
    service = ScriptedService(REFUSED, metadata)
    with pytest.raises(SequenceIdTooLarge):
        await Complete(service, frozenset())(request(WHOLE).changed(sequence=LARGE))


@pytest.mark.parametrize("needs", [frozenset[Need](), ALL_NEEDS])
async def test_streams_are_filled_both_ways(needs: frozenset[Need]) -> None:
    """The request in a stream is made whole, and so are its answers where it is needed."""
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


async def test_whole_stream_request_stays_itself() -> None:
    """A stream that leaves nothing out passes untouched."""
    model = Model(WHOLE)
    call = StreamInferRequest(model=M, request=request(WHOLE))
    await Complete(model.service, ALL_NEEDS)(call)
    assert model.service.calls[0] is call


async def test_other_calls_pass() -> None:
    """What is no inference has nothing to fill in."""
    service = ScriptedService(True)
    assert await Complete(service, ALL_NEEDS)(ServerLiveRequest()) is True


async def test_call_without_a_model_is_asked_about_as_such() -> None:
    """Without a model the question has an empty name; the service decides what that means."""
    model = Model(NAMELESS)
    call = InferRequest(inputs=(NAMELESS,), context=Context(needs=ALL_NEEDS))
    reply = await Complete(model.service, ALL_NEEDS)(call)
    assert ((WHOLE,), (array_tensor("Y", ARRAY),)) == (model.inputs, reply.outputs)


@pytest.mark.parametrize("streamed", [False, True])
async def test_members_are_taken_apart_though_nothing_is_needed(streamed: bool) -> None:
    """What was sent by name alone is an input where the model has one, in streams as well."""
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


async def test_without_metadata_members_cannot_be_told_apart() -> None:
    """The error says what the metadata was asked for."""
    model = Model(metadata=Unavailable("gone"))
    with pytest.raises(
        Unavailable, match=r"^gone; .* does not distinguish tensors from parameters"
    ):
        await Complete(model.service, frozenset())(InferRequest(model=M, flat_members={"A": 1}))


async def test_an_answer_that_is_an_error_is_passed_on() -> None:
    """There is nothing in it to complete."""
    failed = InferResponse(model=M, outputs=(), is_final=False, error=Unavailable("no"))
    service = ScriptedService(FakeStream([failed]))
    call = StreamInferRequest(
        model=M, request=InferRequest(model=M, inputs=(WHOLE,)), context=Context(needs=ALL_NEEDS)
    )
    items = await Complete(service, frozenset())(call)
    assert [failed] == [item async for item in items]
