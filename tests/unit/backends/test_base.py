"""Backends: instances, queue, cancellation, errors, and the checks of requests and outputs."""

from __future__ import annotations

import asyncio
import gc
import re
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from structlog.testing import capture_logs

from gateway.api.backend import Arrays
from gateway.backends.base import Backend, Inputs, Job, LoadError
from gateway.ir.bodies.streams import close_stream
from gateway.ir.calls import (
    Call,
    InferRequest,
    ModelMetadataRequest,
    ModelReadyRequest,
    ServerLiveRequest,
    StreamInferRequest,
)
from gateway.ir.context import Context, ModelRef
from gateway.ir.errors import (
    DeadlineExceeded,
    GatewayError,
    InvalidRequest,
    NotReady,
    Overloaded,
    QueueTimeout,
    Unsupported,
    UpstreamError,
)
from gateway.ir.metadata import ModelMetadata, TensorMetadata
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import RequestedOutput, Tensor, array_tensor
from gateway.ir.tensors.validation import shape_matches
from tests.fakes import FakeClock, settle
from tests.integration.http_kit import eventually

M = ModelRef("m", "1")
METADATA = ModelMetadata(
    name="m",
    versions=("1",),
    platform="test",
    inputs=(
        TensorMetadata("A", Datatype.INT32, (-1, 2)),
        TensorMetadata("B", Datatype.BYTES, None),
    ),
    outputs=(
        TensorMetadata("Y", Datatype.INT32, (-1, 2)),
        TensorMetadata("Z", Datatype.BYTES, (1,)),
    ),
)
A = np.array([[1, 2]], np.int32)
B = np.array([b"x"], object)
CALL = InferRequest(
    model=ModelRef("m"), inputs=(array_tensor("A", A), array_tensor("B", B)), id="7"
)


def double(inputs: Inputs, _job: Job) -> Arrays:
    return {"Y": inputs["A"] * 2, "Z": inputs["B"]}


class Model(Backend):
    """A model whose `infer` is a function of the test."""

    def __init__(self, function: Callable[[Inputs, Job], Arrays] = double, **settings: Any) -> None:
        super().__init__("m", **settings)
        self.function = function
        self.loads = 0
        self.unloads = 0
        self.load_error: BaseException | None = None

    @property
    def metadata(self) -> ModelMetadata:
        return METADATA

    def load(self) -> None:
        self.loads += 1
        if self.load_error is not None:
            raise self.load_error

    def unload(self) -> None:
        self.unloads += 1

    def infer(self, inputs: Inputs, job: Job, /) -> Arrays:
        return self.function(inputs, job)


async def started(function: Callable[[Inputs, Job], Arrays] = double, **settings: Any) -> Model:
    model = Model(function, **settings)
    await model.start()
    return model


class Gate:
    """A model's function that waits until the test opens the gate."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.running = 0
        self.jobs: list[Job] = []

    def __call__(self, inputs: Inputs, job: Job) -> Arrays:
        self.jobs.append(job)
        self.running += 1
        self.open.wait(45)
        self.running -= 1
        return double(inputs, job)


async def test_a_loaded_model_handles_metadata_readiness_and_inference() -> None:
    """Replies have the model's name and version and the request's id."""
    model = await started()
    assert METADATA == await model(ModelMetadataRequest(model=M))
    assert await model(ModelReadyRequest(model=M)) is True
    reply = await model(CALL)
    assert (M, "7", True) == (reply.model, reply.id, reply.is_final)
    assert (array_tensor("Y", A * 2), array_tensor("Z", B)) == reply.outputs
    await model.stop()


async def test_an_unloaded_model_is_not_ready() -> None:
    """Before loading and after unloading, calls raise NotReady."""
    model = Model()
    for _ in range(2):
        assert await model(ModelReadyRequest(model=M)) is False
        calls: list[Any] = [
            CALL,
            StreamInferRequest(request=CALL),
            ModelMetadataRequest(model=M),
        ]
        for call in calls:
            with pytest.raises(NotReady, match="model 'm version 1' is not loaded"):
                await model(call)
        await model.start()
        await model.stop()
        await model.stop()
    with pytest.raises(NotReady):
        await model.on_thread(lambda: None)


async def test_a_loaded_model_is_not_loaded_again() -> None:
    """Starting a loaded model changes nothing; a stopped one can be started again."""
    model = await started()
    await model.start()
    assert (1, 0) == (model.loads, model.unloads)
    await model.stop()
    await model.start()
    assert (2, 1) == (model.loads, model.unloads)
    assert M == (await model(CALL)).model
    await model.stop()


async def test_a_load_error_is_raised_by_start() -> None:
    """The model is not loaded afterwards and has no threads."""
    model = Model()
    model.load_error = LoadError("no such file")
    with pytest.raises(LoadError, match="no such file"):
        await model.start()
    assert (False, None) == (model.is_loaded, model._threads)


async def test_other_calls_are_unsupported() -> None:
    """A model does not handle calls about the server."""
    with pytest.raises(Unsupported, match="model 'm' does not support ServerLiveRequest"):
        await Model()(ServerLiveRequest())


def request_with(*inputs: Tensor, outputs: tuple[RequestedOutput, ...] = ()) -> InferRequest:
    return InferRequest(model=M, inputs=inputs, outputs=outputs)


IN_A, IN_B = CALL.inputs


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            request_with(IN_A),
            "model 'm version 1' needs input 'B', the request has 'A'",
        ),
        (request_with(), "model 'm version 1' needs input 'A', the request has none"),
        (
            request_with(IN_A, IN_B, IN_B.renamed("C")),
            "model 'm version 1' has no input 'C'; its inputs are 'A', 'B'",
        ),
        (request_with(IN_A, IN_A), "the request has input 'A' twice"),
        (
            request_with(array_tensor("A", A.astype(np.int64)), IN_B),
            "input 'A' has datatype INT64, model 'm version 1' needs INT32",
        ),
        (
            request_with(Tensor("A", None, (1, 2), IN_A.data), IN_B),
            "input 'A' has datatype none, model 'm version 1' needs INT32",
        ),
        (
            request_with(array_tensor("A", np.zeros((1, 3), np.int32)), IN_B),
            "input 'A' has shape [1, 3], model 'm version 1' needs [-1, 2]",
        ),
        (
            request_with(Tensor("A", Datatype.INT32, None, IN_A.data), IN_B),
            "input 'A' has shape none, model 'm version 1' needs [-1, 2]",
        ),
        (
            request_with(IN_A, IN_B, outputs=(RequestedOutput("Q"),)),
            "model 'm version 1' has no output 'Q'; its outputs are 'Y', 'Z'",
        ),
    ],
)
async def test_a_request_unlike_the_metadata_is_rejected(call: InferRequest, message: str) -> None:
    """The model does not run."""
    model = await started(lambda _inputs, _job: pytest.fail("the model ran"))
    calls: list[Any] = [call, StreamInferRequest(model=M, request=call)]
    for request in calls:
        with pytest.raises(InvalidRequest, match=f"^{re.escape(message)}$"):
            await model(request)
    await model.stop()


@pytest.mark.parametrize("inputs", [(IN_A, IN_B), (IN_B, IN_A)], ids=["declared", "other"])
async def test_inputs_are_passed_in_the_models_order(inputs: tuple[Tensor, ...]) -> None:
    """The order of the request makes no difference."""
    names: list[str] = []

    def infer(arrays: Inputs, _job: Job) -> Arrays:
        names.extend(arrays)
        return {"Y": A, "Z": B}

    model = await started(infer)
    await model(CALL.changed(inputs=inputs))
    assert ["A", "B"] == names
    await model.stop()


async def test_classification_is_unsupported() -> None:
    """A request for classes is rejected by name."""
    model = await started()
    with pytest.raises(Unsupported, match="classification of output 'Y' is not supported"):
        await model(CALL.changed(outputs=(RequestedOutput("Y", classes=3),)))
    await model.stop()


async def test_outputs_are_returned_in_the_models_order() -> None:
    """Only requested outputs are returned, once each."""
    model = await started()
    for names, expected in (("Z", ["Z"]), ("ZY", ["Y", "Z"]), ("YY", ["Y"])):
        reply = await model(CALL.changed(outputs=tuple(map(RequestedOutput, names))))
        assert expected == [output.name for output in reply.outputs]
    await model.stop()


def returning(arrays: Mapping[str, npt.NDArray[Any]]) -> Callable[[Inputs, Job], Arrays]:
    return lambda _inputs, _job: arrays


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"Y": A}, "returned no output 'Z'; it returned 'Y'"),
        ({"Y": A, "Z": B, "Q": A}, "returned output 'Q', which it does not declare"),
        ({"Y": A[0], "Z": B}, "returned output 'Y' of shape [2]; its metadata has [-1, 2]"),
        (
            {"Y": A.astype(np.float32), "Z": B},
            ("returned an invalid output: tensor 'Y' has numpy dtype float32, INT32 needs int32"),
        ),
        (
            {"Y": A, "Z": A},
            ("returned an invalid output: tensor 'Z' has dtype int32; expected object for BYTES"),
        ),
        (
            {"Y": A, "Z": np.array([3], object)},
            (
                "returned an invalid output: BYTES tensor 'Z' has an element of type "
                "int; expected bytes or str"
            ),
        ),
    ],
)
async def test_an_output_unlike_the_metadata_is_an_upstream_error(
    arrays: Mapping[str, npt.NDArray[Any]], message: str
) -> None:
    """The outputs of a model are checked against its metadata."""
    model = await started(returning(arrays))
    with pytest.raises(UpstreamError, match=f"^model 'm version 1' {re.escape(message)}$"):
        await model(CALL)
    await model.stop()


async def test_outputs_are_not_copied() -> None:
    """An output shares the model's memory; strings become BYTES."""
    outputs = {"Y": A, "Z": np.array(["é"], object)}
    model = await started(returning(outputs))
    reply = await model(CALL)
    assert np.shares_memory(A, reply.outputs[0].data.array)  # type: ignore[union-attr]  # ArrayData
    assert array_tensor("Z", np.array(["é".encode()], object)) == reply.outputs[1]
    await model.stop()


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("two\nlines"), "ValueError: two lines"),
        (KeyError("x"), "KeyError: 'x'"),
        (StopIteration(), "StopIteration:"),
        (SystemExit(3), "SystemExit: 3"),
        (RuntimeError("x" * 9000), "RuntimeError: " + "x" * 486),
    ],
)
async def test_an_exception_of_a_model_is_reported_in_one_line(
    error: BaseException, text: str
) -> None:
    """The error has the exception's text without a traceback, and is logged once."""

    def fail(_inputs: Inputs, _job: Job) -> Arrays:
        raise error

    model = await started(fail)
    with capture_logs() as logs:
        for _ in range(2):
            with pytest.raises(UpstreamError) as caught:
                await model(CALL)
            assert f"model 'm version 1' failed: {text}" == caught.value.message
    assert [("model failed", error)] == [(entry["event"], entry["exc_info"]) for entry in logs]
    await model.stop()


async def test_a_gateway_error_of_a_model_is_raised_with_its_version() -> None:
    """The caller gets the error that the model raised, and can count it for the version."""
    error = InvalidRequest("A must be positive")

    def refuse(_inputs: Inputs, _job: Job) -> Arrays:
        raise error

    model = await started(refuse)
    with pytest.raises(InvalidRequest) as caught:
        await model(CALL)
    assert (caught.value, caught.value.model) == (error, ModelRef("m", "1"))
    await model.stop()


async def test_the_event_loop_runs_while_a_model_blocks() -> None:
    """A blocking model runs on a thread of its own."""
    gate = Gate()
    model = await started(gate)
    task = asyncio.ensure_future(model(CALL))
    await eventually(lambda: gate.running == 1)
    assert not task.done()
    gate.open.set()
    assert M == (await task).model
    await model.stop()


@pytest.mark.parametrize("instances", [1, 2])
async def test_instances_limit_the_concurrent_inferences(instances: int) -> None:
    """Further calls wait for an instance."""
    gate = Gate()
    model = await started(gate, instances=instances)
    tasks = [asyncio.ensure_future(model(CALL)) for _ in range(4)]
    await eventually(lambda: gate.running == instances)
    await settle()
    assert instances == len(gate.jobs)
    gate.open.set()
    await asyncio.gather(*tasks)
    assert 4 == len(gate.jobs)
    await model.stop()


@pytest.mark.parametrize("queue", [0, 2])
async def test_a_full_queue_rejects_calls(queue: int) -> None:
    """The last queued call still runs; one more is rejected."""
    gate = Gate()
    model = await started(gate, queue=queue)
    tasks = [asyncio.ensure_future(model(CALL)) for _ in range(1 + queue)]
    await eventually(lambda: gate.running == 1)
    with pytest.raises(Overloaded) as caught:
        await model(CALL)
    assert (
        f"model 'm version 1' is overloaded: 1 inferences running and {queue} queued (options instances, queue)",
        "queue",
    ) == (caught.value.message, caught.value.limit)
    gate.open.set()
    await asyncio.gather(*tasks)
    await model.stop()


async def test_a_call_cancelled_in_the_queue_never_runs() -> None:
    """It leaves the queue at once."""
    gate = Gate()
    model = await started(gate)
    first, second = (asyncio.ensure_future(model(CALL)) for _ in range(2))
    await eventually(lambda: gate.running == 1)
    second.cancel()
    await settle()
    gate.open.set()
    await first
    assert (1, 0, True) == (len(gate.jobs), model._pool.waiting, second.cancelled())
    await model.stop()


async def test_a_call_cancelled_while_running_keeps_its_instance() -> None:
    """The job is marked as cancelled; the instance is free only when its thread has ended."""
    gate = Gate()
    model = await started(gate)
    first = asyncio.ensure_future(model(CALL))
    await eventually(lambda: gate.running == 1)
    first.cancel()
    await settle()
    assert (True, True) == (first.cancelled(), gate.jobs[0].cancelled.is_set())
    second = asyncio.ensure_future(model(CALL))
    await settle()
    assert 1 == len(gate.jobs), "the thread is still busy"
    gate.open.set()
    await second
    assert 2 == len(gate.jobs)
    await model.stop()


async def test_a_failure_after_cancellation_is_ignored() -> None:
    """It does not reach the loop's exception handler."""
    gate = Gate()
    failures: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, found: failures.append(found))

    def fail(inputs: Inputs, job: Job) -> Arrays:
        gate(inputs, job)
        raise ValueError("too late")

    model = await started(fail)
    task = asyncio.ensure_future(model(CALL))
    await eventually(lambda: gate.running == 1)
    task.cancel()
    await settle()
    gate.open.set()
    await model.stop()
    assert task.cancelled()
    del task
    gc.collect()
    assert [] == failures


async def test_a_call_whose_deadline_passes_in_the_queue_never_runs() -> None:
    """It raises DeadlineExceeded, and its instance is free."""
    gate, clock = Gate(), FakeClock(100.0)
    model = await started(gate, clock=clock)
    first = asyncio.ensure_future(model(CALL))
    second = asyncio.ensure_future(model(CALL.changed(context=Context(deadline=101.0))))
    await eventually(lambda: gate.running == 1)
    clock.advance(1)
    gate.open.set()
    await first
    with pytest.raises(DeadlineExceeded, match="deadline exceeded while the request was queued"):
        await second
    assert 1 == len(gate.jobs)
    assert M == (await model(CALL)).model, "the instance is free"
    await model.stop()


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_queue_timeout_ends_only_the_wait(is_stream: bool) -> None:
    """A running request keeps running; a queued one is rejected after its timeout."""
    gate = Gate()
    model = await started(gate)
    request = CALL.changed(timeout_us=1)
    first = asyncio.ensure_future(model(request))
    await eventually(lambda: gate.running == 1)
    call: Call[Any] = StreamInferRequest(model=M, request=request) if is_stream else request
    with pytest.raises(QueueTimeout, match="waited for an instance of model"):
        await model(call)
    gate.open.set()
    assert M == (await first).model
    await model.stop()


async def test_stop_waits_for_running_inferences() -> None:
    """The model is unloaded after the last one."""
    gate = Gate()
    model = await started(gate)
    task = asyncio.ensure_future(model(CALL))
    await eventually(lambda: gate.running == 1)
    stopping = asyncio.ensure_future(model.stop())
    await settle()
    assert (False, 0) == (model.is_loaded, model.unloads)
    gate.open.set()
    await asyncio.gather(task, stopping)
    assert 1 == model.unloads


async def test_stop_times_out_on_a_hanging_model() -> None:
    """It logs a warning and does not unload the model."""
    gate = Gate()
    model = await started(gate)
    task = asyncio.ensure_future(model(CALL))
    await eventually(lambda: gate.running == 1)
    with capture_logs() as logs:
        await model.stop(timeout_s=0.01)
    assert (["model stop timed out"], 0) == ([entry["event"] for entry in logs], model.unloads)
    gate.open.set()
    assert M == (await task).model


async def test_the_job_has_the_fields_of_the_request() -> None:
    """A model reads id, parameters, deadline and outputs, and may add reply parameters."""
    jobs: list[Job] = []

    def look(inputs: Inputs, job: Job) -> Arrays:
        jobs.append(job)
        job.reply_parameters["took"] = 3
        return double(inputs, job)

    model = await started(look)
    deadline = time.monotonic() + 60
    reply = await model(
        CALL.changed(
            parameters={"k": 1.5},
            outputs=(RequestedOutput("Z"),),
            context=Context(deadline=deadline),
        )
    )
    job = jobs[0]
    assert (M, "7", {"k": 1.5}, ("Z",), deadline) == (
        job.model,
        job.id,
        job.parameters,
        job.outputs,
        job.deadline,
    )
    assert {"took": 3} == reply.parameters
    await model.stop()


async def test_parameters_changed_by_a_model_stay_in_its_call() -> None:
    """Equal calls may share their parameters, but each job has a copy."""
    seen = []

    def take(inputs: Inputs, job: Job) -> Arrays:
        seen.append(dict(job.parameters))
        job.parameters.clear()  # type: ignore[attr-defined]  # a model's own code may be untyped
        return double(inputs, job)

    model = await started(take)
    call = CALL.changed(parameters={"k": 1})
    for _ in range(2):
        await model(call)
    assert [{"k": 1}, {"k": 1}] == seen
    await model.stop()


async def test_a_stream_of_a_plain_model_has_one_reply() -> None:
    """The reply of a model that is not decoupled is final."""
    model = await started()
    items = await model(StreamInferRequest(model=M, request=CALL))
    assert [True] == [item.is_final async for item in items]
    assert M == (await model(CALL)).model, "the instance is free"
    await model.stop()


async def test_closing_an_unread_stream_frees_its_instance() -> None:
    """Until then, further calls are rejected."""
    model = await started(queue=0)
    items = await model(StreamInferRequest(model=M, request=CALL))
    with pytest.raises(Overloaded):
        await model(CALL)
    await close_stream(items)
    assert M == (await model(CALL)).model
    await model.stop()


def test_a_model_needs_at_least_one_instance() -> None:
    """Zero instances are a ValueError."""
    with pytest.raises(ValueError, match="model 'm': instances is 0; expected at least 1"):
        Model(instances=0)


@pytest.mark.parametrize(
    ("shape", "declared", "expected"),
    [
        ((), None, True),
        ((), (), True),
        ((1,), (), False),
        ((3, 2), (-1, 2), True),
        ((0, 2), (-1, 2), True),
        ((2, 3), (-1, 2), False),
    ],
)
def test_shape_matches(
    shape: tuple[int, ...], declared: tuple[int, ...] | None, expected: bool
) -> None:
    """Every dimension must be equal to the declared one, unless that may vary."""
    assert expected == shape_matches(shape, declared)


def test_a_load_error_has_the_code_not_ready() -> None:
    """Every protocol can encode it."""
    assert isinstance(LoadError("x"), GatewayError)
    assert "not_ready" == LoadError.code.value


@pytest.mark.parametrize("instances", [1, 3])
async def test_each_running_inference_has_its_own_instance(instances: int) -> None:
    """The instance is free again when the inference ends."""
    gate = Gate()
    model = await started(gate, instances=instances)
    calls = [asyncio.ensure_future(model(CALL)) for _ in range(instances + 1)]
    await eventually(lambda: gate.running == instances)
    assert set(range(instances)) == {job.instance for job in gate.jobs}
    gate.open.set()
    await asyncio.gather(*calls)
    assert model._pool.is_idle
    await model.stop()


async def test_a_restarted_model_has_all_its_instances() -> None:
    """An instance that was busy when the model stopped is available again."""
    gate = Gate()
    model = await started(gate)
    slow_call = asyncio.ensure_future(model(CALL))
    await eventually(lambda: gate.running == 1)
    with capture_logs():
        await model.stop(timeout_s=0.01)
    gate.open.set()
    await model.start()
    assert "7" == (await model(CALL)).id
    assert "7" == (await slow_call).id
    await eventually(lambda: model._pool.is_idle)
    await model.stop()
