"""Pipelines as services: tensors by reference, one deadline, one error, required steps only."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, TypeVar, cast

import numpy as np
import pytest
from structlog.testing import capture_logs

from gateway.ir.calls import (
    Call,
    InferRequest,
    InferResponse,
    ModelLoadRequest,
    ModelMetadataRequest,
    ModelReadyRequest,
    ModelUnloadRequest,
    StreamInferRequest,
)
from gateway.ir.context import CallSequence, Context, ModelRef, Need, Origin
from gateway.ir.errors import (
    DeadlineExceeded,
    ErrorCode,
    GatewayError,
    InvalidRequest,
    ModelNotFound,
    NotReady,
    NotSent,
    Overloaded,
    Unavailable,
    Unsupported,
    UpstreamError,
)
from gateway.ir.metadata import ModelMetadata, TensorMetadata
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import RequestedOutput, Tensor, array_tensor, as_numpy, items_tensor
from gateway.pipelines.graph import Graph, Step, parse_source
from gateway.pipelines.pipeline import Pipeline
from gateway.pipelines.signature import MismatchError
from gateway.pipelines.signature_cache import SignatureCache
from tests.fakes import FakeClock, ScriptedService, settle

R = TypeVar("R")

P = ModelRef("p")
VERSIONED = ModelRef("p", "3")
X = array_tensor("x", np.array([1.0, 2.0], np.float32))
T = array_tensor("t", np.array([5], np.int64))


def step(name: str, model: str = "", **inputs: str) -> Step:
    sources = {key: parse_source(text) for key, text in inputs.items()}
    return Step(name, ModelRef(*(model or f"m-{name}").split("@")), sources)


def graph(*steps: Step, **outputs: str) -> Graph:
    return Graph("p", "3", steps, {name: parse_source(text) for name, text in outputs.items()})


SPLIT = graph(
    step("a", i="request.x"),
    step("b", i="request.t"),
    step("c", "m-c@7", left="a.o", right="b.o"),
    out="c.o",
    same="a.o",
    given="request.x",
)


def tensors(*pairs: tuple[str, Datatype]) -> tuple[TensorMetadata, ...]:
    return tuple(TensorMetadata(name, datatype, (-1,)) for name, datatype in pairs)


FP32, INT64 = Datatype.FP32, Datatype.INT64
MODELS = {
    "m-a": ModelMetadata(name="m-a", inputs=tensors(("i", FP32)), outputs=tensors(("o", FP32))),
    "m-b": ModelMetadata(name="m-b", inputs=tensors(("i", INT64)), outputs=tensors(("o", INT64))),
    "m-c": ModelMetadata(
        name="m-c",
        inputs=tensors(("left", FP32), ("right", INT64)),
        outputs=tensors(("o", FP32)),
    ),
}


class Metadata:
    """Returns the models' metadata, and counts the calls."""

    def __init__(self, models: Mapping[str, Any] = MODELS) -> None:
        self.models = dict(models)
        self.call_count = 0

    async def __call__(self, call: Call[R], /) -> R:
        assert isinstance(call, ModelMetadataRequest)
        assert call.model is not None
        self.call_count += 1
        found = self.models[call.model.name]
        if isinstance(found, BaseException):
            raise found
        return cast("R", found)


def pipeline(
    inner: Any, *, metadata: Any = None, record: Any = None, clock: Any = None, **settings: Any
) -> Pipeline:
    clock = clock or FakeClock()
    knowledge = SignatureCache(SPLIT, metadata or Metadata(), clock=clock, **settings)
    return Pipeline(SPLIT, inner, knowledge, record=record, clock=clock)


def call(*inputs: Tensor, **fields: Any) -> InferRequest:
    return InferRequest(model=P, inputs=inputs or (X, T), **fields)


def called_models(inner: ScriptedService) -> list[str]:
    return [str(one.model) for one in inner.calls]


def echo(request: InferRequest) -> InferResponse:
    """Return the first input as output o, and as another output that is not requested."""
    first = request.inputs[0]
    assert request.model is not None
    return InferResponse(model=request.model, outputs=(first.renamed("more"), first.renamed("o")))


def shared(one: Tensor, other: Tensor) -> bool:
    return np.shares_memory(as_numpy(one), as_numpy(other))


async def test_tensors_are_passed_by_reference_between_steps() -> None:
    """Each model receives the data of the request or of another model without a copy."""
    inner = ScriptedService(always=echo)
    reply = await pipeline(inner)(call(id="7"))
    assert (VERSIONED, "7", True) == (reply.model, reply.id, reply.is_final)
    assert ["out", "same", "given"] == [tensor.name for tensor in reply.outputs]
    assert all(shared(X, tensor) for tensor in reply.outputs)
    last = cast("InferRequest", inner.calls[-1])
    assert ModelRef("m-c", "7") == last.model
    assert ["left", "right"] == [tensor.name for tensor in last.inputs]
    assert [shared(X, last.inputs[0]), shared(T, last.inputs[1])] == [True, True]


async def test_arrays_passed_between_steps_are_read_only() -> None:
    """Arrays of a model are passed as read-only, and BYTES elements unchanged."""
    made = np.ones(2, np.float32)
    text = items_tensor("o", (2,), [b"a", b"b"])
    inner = ScriptedService(
        InferResponse(model=P, outputs=(array_tensor("o", made),)),
        InferResponse(model=P, outputs=(text,)),
        echo,
    )
    await pipeline(inner)(call())
    left, right = (as_numpy(tensor) for tensor in cast("InferRequest", inner.calls[-1]).inputs)
    assert (True, False) == (np.shares_memory(made, left), left.flags.writeable)
    assert [b"a", b"b"] == right.tolist()


async def test_step_call_requests_only_used_outputs() -> None:
    """The call keeps the caller's id, priority and parameters, and drops the origin."""
    inner = ScriptedService(always=echo)
    context = Context(
        protocol="oip.http",
        metadata=(("x-tenant", "a"),),
        request_id="r",
        deadline=5.0,
        session=3,
        needs=frozenset({Need.BATCHING}),
        origin=Origin("oip.http", b""),
    )
    request = call(id="7", priority=2, timeout_us=9, parameters={"k": 1}, context=context)
    await pipeline(inner)(request)
    whole = frozenset({Need.NAMES, Need.DATATYPES, Need.SHAPES})
    expected = Context("oip.http", (("x-tenant", "a"),), "r", 5.0, None, whole)
    for one in inner.calls:
        assert isinstance(one, InferRequest)
        assert ((RequestedOutput("o"),), "7", 2, None, {"k": 1}, expected, None) == (
            one.outputs,
            one.id,
            one.priority,
            one.timeout_us,
            one.parameters,
            one.context,
            one.context.origin,
        )


async def test_independent_steps_run_concurrently() -> None:
    """Steps that do not depend on each other are called at the same time."""
    inner = ScriptedService()
    task = asyncio.ensure_future(pipeline(inner)(call()))
    await settle()
    assert ["m-a", "m-b"] == called_models(inner)
    inner.waiting[1].set_result(echo(cast("InferRequest", inner.calls[1])))
    await settle()
    assert 2 == len(inner.calls)
    inner.waiting[0].set_result(echo(cast("InferRequest", inner.calls[0])))
    await settle()
    assert "m-c version 7" == called_models(inner)[-1]
    inner.waiting[2].set_result(echo(cast("InferRequest", inner.calls[2])))
    assert shared(X, (await task).outputs[0])


@pytest.mark.parametrize(
    ("outputs", "models"),
    [(("same",), ["m-a"]), (("given",), []), (("out",), ["m-a", "m-b", "m-c version 7"])],
)
async def test_only_required_steps_run(outputs: tuple[str, ...], models: list[str]) -> None:
    """The requested outputs decide which models are called."""
    inner = ScriptedService(always=echo)
    requested_outputs = tuple(RequestedOutput(name) for name in outputs)
    reply = await pipeline(inner)(call(outputs=requested_outputs))
    assert (models, outputs) == (called_models(inner), tuple(one.name for one in reply.outputs))


@pytest.mark.parametrize(
    ("error", "kind", "limit"),
    [
        (InvalidRequest("bad"), InvalidRequest, None),
        (Overloaded("full", limit="queue"), Overloaded, "queue"),
        (DeadlineExceeded("late"), DeadlineExceeded, None),
        (ModelNotFound("gone"), NotReady, None),
        (NotSent("no line"), Unavailable, None),
        (UpstreamError("broken", origin=Origin("oip.http", b"wire")), UpstreamError, None),
    ],
)
async def test_errors_name_step_and_model(
    error: GatewayError, kind: type[GatewayError], limit: str | None
) -> None:
    """The class is kept unless it would mislead the caller; the origin is dropped."""
    inner = ScriptedService(error, always=echo)
    with pytest.raises(GatewayError) as caught:
        await pipeline(inner)(call())
    text = f"pipeline 'p', step 'a' (model 'm-a'): {error.message}"
    found = caught.value
    assert (kind, text, limit, None, VERSIONED) == (
        type(found),
        found.message,
        found.limit,
        found.origin,
        found.model,
    )


async def test_a_failing_step_cancels_the_others() -> None:
    """The other steps are cancelled before the caller receives the failure."""
    inner = ScriptedService()
    task = asyncio.ensure_future(pipeline(inner)(call()))
    await settle()
    inner.waiting[0].set_exception(UpstreamError("broken"))
    with pytest.raises(UpstreamError):
        await task
    assert (2, 1) == (len(inner.calls), inner.cancelled)


async def test_cancelling_the_caller_cancels_every_step() -> None:
    """Cancellation reaches all running steps."""
    inner = ScriptedService()
    task = asyncio.ensure_future(pipeline(inner)(call()))
    await settle()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert 2 == inner.cancelled


async def test_reply_without_a_used_output_is_an_upstream_error() -> None:
    """The error lists the outputs of the reply."""
    reply = InferResponse(model=ModelRef("m-a"), outputs=(X.renamed("z"),))
    inner = ScriptedService(reply, always=echo)
    message = r"step 'a' \(model 'm-a'\): the reply has no output 'o'; its outputs are 'z'"
    with pytest.raises(UpstreamError, match=message):
        await pipeline(inner)(call())


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (call(X), "model 'p version 3' needs input 't', the request has 'x'"),
        (call(X, T, X), "the request has input 'x' twice"),
        (call(X, T, X.renamed("z")), "has no input 'z'; its inputs are 'x', 't'"),
        (call(T.renamed("x"), T), "input 'x' has datatype INT64, model 'p version 3' needs FP32"),
        (
            call(array_tensor("x", np.zeros((1, 1), np.float32)), T),
            r"input 'x' has shape \[1, 1\], model 'p version 3' needs \[-1\]",
        ),
        (call(outputs=(RequestedOutput("z"),)), "has no output 'z'; its outputs are 'out', 'same'"),
    ],
)
async def test_request_is_checked_before_any_step_runs(
    request_: InferRequest, message: str
) -> None:
    """The errors use the pipeline's own names."""
    inner = ScriptedService(always=echo)
    with pytest.raises(InvalidRequest, match=message):
        await pipeline(inner)(request_)
    assert [] == inner.calls


async def test_names_are_checked_without_metadata() -> None:
    """Models without metadata are called all the same; metadata is requested later."""
    metadata = Metadata({**MODELS, "m-b": Unavailable("away")})
    clock = FakeClock()
    inner = ScriptedService(always=echo)
    service = pipeline(inner, metadata=metadata, clock=clock)
    assert 3 == len((await service(call(T.renamed("x"), T))).outputs)
    with pytest.raises(InvalidRequest, match="needs input 't'"):
        await service(call(X))
    count = metadata.call_count
    await service(call())
    assert count == metadata.call_count, "who cannot be asked is not asked for each request"
    metadata.models = dict(MODELS)
    clock.advance(11)
    with pytest.raises(InvalidRequest, match="input 'x' has datatype INT64"):
        await service(call(T.renamed("x"), T))


async def test_metadata_is_derived_from_the_models() -> None:
    """A pipeline describes itself as a model does."""
    found = await pipeline(ScriptedService())(ModelMetadataRequest(model=P))
    assert (
        ModelMetadata(
            name="p",
            versions=("3",),
            platform="pipeline",
            inputs=tensors(("x", FP32), ("t", INT64)),
            outputs=tensors(("out", FP32), ("same", FP32), ("given", FP32)),
        )
        == found
    )


@pytest.mark.parametrize("after", [0.5, 2.0])
async def test_metadata_of_a_reloaded_model_is_requested_again(after: float) -> None:
    """A mismatch invalidates the metadata once a minimum time has passed."""
    metadata = Metadata()
    clock = FakeClock()
    invalidated: list[str] = []
    service = pipeline(
        ScriptedService(always=echo),
        metadata=metadata,
        clock=clock,
        invalidate=lambda model: invalidated.append(model.name),
    )
    await service(call())
    other = {"m-a": MODELS["m-b"], "m-c": ModelMetadata(name="m-c", outputs=tensors(("o", INT64)))}
    metadata.models = {**MODELS, **other}
    clock.advance(after)
    request = call(T.renamed("x"), T)
    for _ in range(2):
        with pytest.raises(InvalidRequest, match="input 'x' has datatype INT64"):
            await service(request)
        if after > 1:
            break
    expected = ["m-a", "m-b", "m-c"] if after > 1 else []
    assert expected == invalidated
    if expected:
        assert "out" == (await service(request)).outputs[0].name


async def test_unavailable_metadata_is_an_error_unless_configured() -> None:
    """The error names the model; a complete configured signature needs no model."""
    metadata = Metadata({**MODELS, "m-b": Unavailable("away")})
    message = r"pipeline 'p', step 'b' \(model 'm-b'\): away"
    with pytest.raises(Unavailable, match=message):
        await pipeline(ScriptedService(), metadata=metadata)(ModelMetadataRequest(model=P))
    signature = ModelMetadata(name="p", inputs=tensors(("x", FP32), ("t", INT64)), outputs=tensors(
        ("out", FP32), ("same", FP32), ("given", FP32)
    ))  # fmt: skip
    service = pipeline(ScriptedService(), metadata=metadata, configured=signature)
    assert signature.outputs == (await service(ModelMetadataRequest(model=P))).outputs
    part = ModelMetadata(name="p", inputs=signature.inputs)
    with pytest.raises(Unavailable, match=message):
        await pipeline(ScriptedService(), metadata=metadata, configured=part)(
            ModelMetadataRequest(model=P)
        )


MISFIT = {**MODELS, "m-b": ModelMetadata(name="m-b", inputs=tensors(("j", INT64)))}


async def test_model_mismatch_is_reported_at_start_and_per_call() -> None:
    """Start, call and metadata raise the same error, and the pipeline is not ready."""
    inner = ScriptedService(always=True)
    service = pipeline(inner, metadata=Metadata(MISFIT))
    message = (
        r"the models of pipeline 'p' do not match: step 'b' \(model 'm-b'\) has no input 'i'; "
        "its inputs are 'j'"
    )
    with pytest.raises(MismatchError, match=message):
        await service.check()
    for request in (call(), call(), ModelMetadataRequest(model=P)):
        with pytest.raises(NotReady, match=message):
            await service(cast("Call[Any]", request))
    assert [] == inner.calls
    assert await service(ModelReadyRequest(model=P)) is False


async def test_unavailable_metadata_does_not_prevent_the_start() -> None:
    """The log has an event for the missing check."""
    metadata = Metadata({**MODELS, "m-b": Unavailable("away")})
    with capture_logs() as logs:
        await pipeline(ScriptedService(), metadata=metadata).check()
    assert ["pipeline not checked"] == [line["event"] for line in logs]
    await pipeline(ScriptedService()).check()


@pytest.mark.parametrize(
    ("answers", "ready"),
    [
        ([True, True, True], True),
        ([True, False, True], False),
        ([True, ModelNotFound("gone"), True], False),
        ([Unavailable("away")] * 3, False),
    ],
)
async def test_a_pipeline_is_ready_when_all_its_models_are(answers: list[Any], ready: bool) -> None:
    """A model that cannot be reached is not ready."""
    inner = ScriptedService(*answers)
    assert ready is await pipeline(inner)(ModelReadyRequest(model=P))
    assert ["m-a", "m-b", "m-c version 7"] == called_models(inner)


async def test_readiness_needs_no_metadata() -> None:
    """Models without metadata may be ready all the same."""
    metadata = Metadata({**MODELS, "m-b": Unsupported("no metadata")})
    service = pipeline(ScriptedService(always=True), metadata=metadata)
    assert await service(ModelReadyRequest(model=P)) is True


async def test_a_bug_in_a_readiness_check_is_not_swallowed() -> None:
    """Only a GatewayError counts as not ready."""
    inner = ScriptedService(ZeroDivisionError(), always=True)
    with pytest.raises(ZeroDivisionError):
        await pipeline(inner)(ModelReadyRequest(model=P))


async def test_pipeline_has_one_version() -> None:
    """The version may be requested; any other is not found."""
    inner = ScriptedService(always=echo)
    assert VERSIONED == (await pipeline(inner)(call().changed(model=VERSIONED))).model
    with pytest.raises(ModelNotFound, match="model 'p' has no version '1'; it has 3"):
        await pipeline(inner)(call().changed(model=ModelRef("p", "1")))


async def test_stream_has_one_reply() -> None:
    """A stream call returns one final reply, or raises the error."""
    service = pipeline(ScriptedService(always=echo))
    items = await service(StreamInferRequest(model=P, request=call()))
    assert [(VERSIONED, True)] == [(one.model, one.is_final) async for one in items]
    items = await service(StreamInferRequest(model=P, request=call(X)))
    with pytest.raises(InvalidRequest):
        await anext(items)


async def test_sequences_are_rejected() -> None:
    """Steps may run on any server, and the state of a sequence is on one."""
    inner = ScriptedService(always=echo)
    with pytest.raises(Unsupported, match="pipeline 'p' does not support sequences"):
        await pipeline(inner)(call(sequence=CallSequence(1, start=True)))
    assert [] == inner.calls


@pytest.mark.parametrize("kind", [ModelLoadRequest, ModelUnloadRequest])
async def test_pipeline_cannot_be_loaded_or_unloaded(
    kind: type[ModelLoadRequest | ModelUnloadRequest],
) -> None:
    """Loading and unloading are unsupported, and reach no model of the pipeline."""
    inner = ScriptedService(always=None)
    with pytest.raises(Unsupported, match=f"pipeline 'p' does not support {kind.__name__}"):
        await pipeline(inner)(kind(model=P))
    assert [] == inner.calls


async def test_each_step_is_reported() -> None:
    """Its outcome and its duration are reported, also for a failure."""
    seen: list[tuple[str, str, float]] = []
    clock = FakeClock()

    async def late(request: InferRequest) -> InferResponse:
        clock.advance(2)
        return echo(request)

    inner = ScriptedService(late, UpstreamError("broken"))
    service = pipeline(
        inner, record=lambda one, code, s: seen.append((one.name, code, s)), clock=clock
    )
    with pytest.raises(UpstreamError):
        await service(call())
    assert [("a", "ok", 2.0), ("b", ErrorCode.UPSTREAM.value, 0.0)] == seen


async def test_cancelled_step_is_reported_as_cancelled() -> None:
    """A step that another step's failure cancelled did not fail itself."""
    seen: list[tuple[str, str]] = []
    inner = ScriptedService()
    service = pipeline(inner, record=lambda one, code, _s: seen.append((one.name, code)))
    task = asyncio.ensure_future(service(call()))
    await settle()
    inner.waiting[1].set_exception(UpstreamError("broken"))
    with pytest.raises(UpstreamError):
        await task
    assert [("b", "upstream"), ("a", "cancelled")] == seen


async def test_a_cancelled_call_leaves_its_metadata_requests_to_others() -> None:
    """The next call neither repeats them nor waits for them; later ones have their result."""
    models = ScriptedService()
    service = pipeline(ScriptedService(always=echo), metadata=models)
    task = asyncio.ensure_future(service(call()))
    await settle()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert 3 == len(models.calls)
    assert 3 == len((await service(call())).outputs)
    for future, name in zip(models.waiting, ("m-a", "m-b", "m-c"), strict=True):
        future.set_result(MODELS[name])
    assert 3 == len((await service(call())).outputs)
    assert 3 == len(models.calls)
