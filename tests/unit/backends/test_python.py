"""Python callables as models: every kind of callable, and the errors of loading one."""

from __future__ import annotations

import asyncio
import gc
import re
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gateway.api.model_spec import ModelSpec
from gateway.backends.base import Backend, Job, LoadError
from gateway.backends.python import PythonBackend, declares, from_spec
from gateway.ir.bodies.streams import close_stream
from gateway.ir.calls import InferRequest, InferResponse, ModelMetadataRequest, StreamInferRequest
from gateway.ir.context import ModelRef
from gateway.ir.errors import GatewayError, InvalidRequest, NotReady, Unsupported, UpstreamError
from gateway.ir.metadata import ModelMetadata, TensorMetadata
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import array_tensor, as_numpy
from tests.fakes import settle

M = ModelRef("m", "1")
X = (TensorMetadata("X", Datatype.INT32, (-1,)),)
Y = (TensorMetadata("Y", Datatype.INT32, (-1,)),)
Arrays = dict[str, npt.NDArray[Any]]


def call(*values: int) -> InferRequest:
    return InferRequest(model=M, inputs=(array_tensor("X", np.array(values, np.int32)),))


def stream(*values: int) -> StreamInferRequest:
    return StreamInferRequest(model=M, request=call(*values))


def numbers(reply: InferResponse) -> list[int]:
    found: list[int] = as_numpy(reply.outputs[0]).tolist()
    return found


async def started(source: Any, **settings: Any) -> PythonBackend:
    model = PythonBackend("m", source, **{"inputs": X, "outputs": Y, **settings})
    await model.start()
    return model


def plain(inputs: Arrays) -> Arrays:
    return {"Y": inputs["X"] * 2}


def with_job(inputs: Arrays, job: Job) -> Arrays:
    return {"Y": inputs["X"] * int(job.parameters.get("factor", 2))}


async def coroutine(inputs: Arrays) -> Arrays:
    await asyncio.sleep(0)
    return {"Y": inputs["X"] * 2}


class Doubler:
    """Called like a function."""

    inputs, outputs = X, Y

    def __init__(self, factor: int = 2) -> None:
        self.factor = factor
        self.closed = 0

    def __call__(self, inputs: Arrays) -> Arrays:
        return {"Y": inputs["X"] * self.factor}

    def close(self) -> None:
        self.closed += 1


class AsyncDoubler:
    """Called like a coroutine function."""

    async def __call__(self, inputs: Arrays, _job: Job) -> Arrays:
        return {"Y": inputs["X"] * 2}


def with_default(inputs: Arrays, factor: int = 2) -> Arrays:
    return {"Y": inputs["X"] * factor}


@pytest.mark.parametrize(
    "source",
    [
        plain,
        with_job,
        with_default,
        coroutine,
        Doubler(),
        Doubler,
        AsyncDoubler(),
        Doubler().__call__,
        lambda inputs: {"Y": inputs["X"] * 2},
        f"{__name__}:plain",
    ],
    ids=lambda each: getattr(each, "__name__", type(each).__name__),
)
async def test_every_kind_of_callable_is_a_model(source: Any) -> None:
    """Functions, coroutines, objects, classes and dotted names reply in the same way."""
    model = await started(source)
    assert [2, 6] == numbers(await model(call(1, 3)))
    await model.stop()


async def test_a_class_is_created_with_options_and_closed() -> None:
    """It is created when the model is loaded, and its object is closed when it is unloaded."""
    objects: list[Doubler] = []

    class Noted(Doubler):
        def __init__(self, factor: int) -> None:
            super().__init__(factor)
            objects.append(self)

    model = await started(Noted, options={"factor": 5}, inputs=None, outputs=None)
    assert [10] == numbers(await model(call(2)))
    await model.stop()
    model.unload()
    assert [1] == [one.closed for one in objects]


async def test_an_object_without_close_is_unloaded() -> None:
    """The method `close` is optional."""
    model = await started(AsyncDoubler())
    await model.stop()
    assert not model.is_loaded


async def test_a_callable_with_two_arguments_gets_the_job() -> None:
    """The job has the parameters of the request."""
    model = await started(with_job)
    assert [6] == numbers(await model(call(2).changed(parameters={"factor": 3})))
    await model.stop()


async def test_metadata_is_declared_by_attributes() -> None:
    """The configuration overrides them."""

    @declares(inputs=X, outputs=Y)
    def model(inputs: Arrays) -> Arrays:
        return plain(inputs)

    loaded = await started(model, inputs=None, outputs=None, max_batch_size=4)
    expected = ModelMetadata(
        name="m", versions=("1",), platform="python", inputs=X, outputs=Y, max_batch_size=4
    )
    assert expected == await loaded(ModelMetadataRequest(model=M))
    await loaded.stop()
    other = (TensorMetadata("X", Datatype.INT32, (2,)),)
    loaded = await started(model, inputs=other, outputs=None)
    assert other == loaded.metadata.inputs
    await loaded.stop()


class Broken:
    def __init__(self) -> None:
        raise ValueError("no\nlicence")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            "no_colon",
            "Python model 'no_colon' is not a dotted name; expected 'package.module:attribute'",
        ),
        (
            "gateway.nowhere:x",
            (
                "Python model 'gateway.nowhere:x' cannot be imported: "
                "ModuleNotFoundError: No module named 'gateway.nowhere'"
            ),
        ),
        (
            "gateway.backends.examples:nothing",
            (
                "Python model 'gateway.backends.examples:nothing' cannot be found: AttributeError: "
                "module 'gateway.backends.examples' has no attribute 'nothing'"
            ),
        ),
        (
            "gateway.backends.examples:Arrays.x",
            "Python model 'gateway.backends.examples:Arrays.x' cannot be found: ",
        ),
        (
            "gateway.backends.examples:_PAIR",
            "Python model 'gateway.backends.examples:_PAIR' is a tuple, which is not callable",
        ),
        (Broken, f"Python model {repr(Broken)!r} cannot be created: ValueError: no licence"),
    ],
    ids=str,
)
async def test_load_errors_name_model_and_cause_in_one_line(source: Any, message: str) -> None:
    """Every callable that cannot be loaded has its own error text."""
    with pytest.raises(
        LoadError, match="^" + re.escape(f"model 'm version 1': {message}")
    ) as caught:
        await started(source)
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("kind", ["inputs", "outputs"])
async def test_a_model_without_metadata_cannot_be_loaded(kind: str) -> None:
    """Without declared inputs and outputs a request cannot be checked."""
    with pytest.raises(LoadError, match=f"does not declare its {kind}; add an attribute"):
        await started(plain, **{kind: None})


def test_metadata_needs_a_loaded_model() -> None:
    """Reading it before raises NotReady."""
    with pytest.raises(NotReady, match="is not loaded"):
        _ = PythonBackend("m", plain).metadata


async def gives_a_list(_inputs: Arrays) -> Any:
    return [1]


def yields_a_list(_inputs: Arrays) -> Any:
    yield [1]


async def yields_nothing_much(_inputs: Arrays) -> Any:
    yield None


@pytest.mark.parametrize(
    "source",
    [
        lambda _inputs: None,
        lambda _inputs: [1],
        gives_a_list,
        yields_a_list,
        yields_nothing_much,
    ],
    ids=["none", "list", "coroutine", "generator", "asynchronous generator"],
)
async def test_a_model_must_return_a_dict(source: Callable[..., Any]) -> None:
    """Any other value is an upstream error."""
    model = await started(source)
    with pytest.raises(UpstreamError, match=r"TypeError: the model returned .*; expected a dict"):
        await model(call(1))
    await model.stop()


async def refusing(_inputs: Arrays) -> Arrays:
    raise InvalidRequest("not today")


@pytest.mark.parametrize("source", ["refusing", "failing"])
async def test_an_error_is_freed_without_garbage_collection(source: str) -> None:
    """An error holds the request's tensors, so it must not be part of a reference cycle."""
    model = await started({"refusing": refusing, "failing": failing}[source])
    references: list[weakref.ref[GatewayError]] = []
    gc.disable()
    try:
        try:
            await model(call(1))
        except GatewayError as error:
            references.append(weakref.ref(error))
        assert [None] == [reference() for reference in references]
    finally:
        gc.enable()
    await model.stop()


async def failing(_inputs: Arrays) -> Arrays:
    raise ValueError("boom")


async def test_a_failing_coroutine_is_an_upstream_error() -> None:
    """The error is the same as a function's."""
    model = await started(failing)
    with pytest.raises(UpstreamError, match="failed: ValueError: boom"):
        await model(call(1))
    await model.stop()


async def test_a_coroutine_is_cancelled_with_its_call() -> None:
    """The cancellation reaches the coroutine at once."""
    cancellation = asyncio.Event()

    async def waiting(_inputs: Arrays) -> Arrays:
        try:
            await asyncio.Event().wait()
        finally:
            cancellation.set()
        return {}

    model = await started(waiting)
    task = asyncio.ensure_future(model(call(1)))
    await settle()
    task.cancel()
    await settle()
    assert cancellation.is_set()
    await model.stop()


def each(inputs: Arrays) -> Iterator[Arrays]:
    for value in inputs["X"]:
        if value < 0:
            raise ValueError("negative")
        yield {"Y": np.array([value], np.int32)}


async def each_async(inputs: Arrays) -> AsyncIterator[Arrays]:
    for reply in each(inputs):
        await asyncio.sleep(0)
        yield reply


class EachObject:
    def __call__(self, inputs: Arrays) -> Iterator[Arrays]:
        yield from each(inputs)


GENERATORS = pytest.mark.parametrize(
    "source",
    [each, each_async, EachObject()],
    ids=lambda each: getattr(each, "__name__", type(each).__name__),
)


@GENERATORS
async def test_a_generator_yields_the_replies_of_a_stream(source: Any) -> None:
    """The number of replies may be zero."""
    model = await started(source)
    assert model.decoupled
    for values in ([1, 2, 3], []):
        items = [item async for item in await model(stream(*values))]
        assert [[value] for value in values] == [numbers(item) for item in items]
        assert not any(item.is_final for item in items)
    await model.stop()


@GENERATORS
async def test_a_single_reply_of_a_generator_needs_no_stream(source: Any) -> None:
    """With none or several, a unary call raises Unsupported."""
    model = await started(source)
    assert [5] == numbers(await model(call(5)))
    with pytest.raises(Unsupported, match="sent more than one response; use a streaming call"):
        await model(call(1, 2, 3))
    with pytest.raises(Unsupported, match="decoupled model 'm version 1' sent no response"):
        await model(call())
    await model.stop()


@GENERATORS
async def test_a_failing_generator_ends_its_stream(source: Any) -> None:
    """Earlier replies are sent, and the error is the last item."""
    model = await started(source)
    items = await model(stream(1, -1, 2))
    assert [1] == numbers(await anext(items))
    with pytest.raises(UpstreamError, match="failed: ValueError: negative"):
        await anext(items)
    assert [5] == numbers(await model(call(5))), "the instance is free"
    await model.stop()


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_closing_a_stream_closes_the_generator(asynchronous: bool) -> None:
    """A stream that is not read to its end lets the generator clean up."""
    closed = threading.Event()

    def endless(_inputs: Arrays) -> Iterator[Arrays]:
        try:
            while True:
                yield {"Y": np.zeros(1, np.int32)}
        finally:
            closed.set()

    async def endless_async(inputs: Arrays) -> AsyncIterator[Arrays]:
        try:
            while True:
                yield {"Y": inputs["X"]}
        finally:
            closed.set()

    model = await started(endless_async if asynchronous else endless)
    items = await model(stream(1))
    await anext(items)
    await close_stream(items)
    assert closed.is_set()
    await model.stop()


async def test_a_generator_of_a_cancelled_call_is_closed() -> None:
    """The job is marked as cancelled while the generator runs."""
    entered, closed = threading.Event(), threading.Event()

    def stuck(_inputs: Arrays, job: Job) -> Iterator[Arrays]:
        try:
            entered.set()
            job.cancelled.wait(45)
            yield {"Y": np.zeros(1, np.int32)}
        finally:
            closed.set()

    model = await started(stuck)
    items = await model(stream(1))
    task = asyncio.ensure_future(anext(items))
    assert await asyncio.to_thread(entered.wait, 45)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await model.stop()
    del items, task
    assert closed.wait(5)


async def test_a_callable_without_signature_gets_the_inputs() -> None:
    """A callable with an unreadable signature is called with the inputs alone."""

    class Opaque:
        __signature__ = "unreadable"

        def __call__(self, inputs: Arrays) -> Arrays:
            return plain(inputs)

    model = await started(Opaque())
    assert [2] == numbers(await model(call(1)))
    await model.stop()


def test_python_models_are_backends() -> None:
    """PythonBackend is a subclass of Backend."""
    assert isinstance(PythonBackend("m", plain), Backend)


async def test_a_stream_of_a_plain_callable_has_one_reply() -> None:
    """A callable that returns once replies once."""
    model = await started(plain)
    assert [[2, 4]] == [numbers(item) async for item in await model(stream(1, 2))]
    await model.stop()


def test_an_unloaded_model_is_not_called() -> None:
    """Inference raises NotReady."""
    with pytest.raises(NotReady, match="is not loaded"):
        PythonBackend("m", plain).infer({}, Job(M))


def spec(**options: Any) -> ModelSpec:
    return ModelSpec(name="m", options={"callable": "gateway.backends.examples:simple", **options})


async def test_from_spec_creates_a_model() -> None:
    """The specification has callable, version, limits and arguments."""
    signature = ModelMetadata(name="m", inputs=X, outputs=Y)
    options = {
        "callable": f"{__name__}:Doubler",
        "version": "3",
        "arguments": {"factor": 4},
        "instances": "2",
        "queue": "0",
        "max_batch_size": "8",
    }
    model = from_spec(ModelSpec(name="m", options=options, signature=signature))
    await model.start()
    metadata = await model(ModelMetadataRequest(model=ModelRef("m", "3")))
    assert (("3",), X, Y, 8) == (
        metadata.versions,
        metadata.inputs,
        metadata.outputs,
        metadata.max_batch_size,
    )
    assert [8] == numbers(await model(call(2).changed(model=ModelRef("m"))))
    await model.stop()


async def test_from_spec_needs_only_a_callable() -> None:
    """All other options have defaults."""
    model = from_spec(spec())
    await model.start()
    metadata = await model(ModelMetadataRequest(model=M))
    assert (("1",), None) == (metadata.versions, metadata.max_batch_size)
    await model.stop()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (ModelSpec(name="m"), "model 'm': option 'callable' is None"),
        (spec(color="red"), "model 'm' has an unknown option 'color'; expected one of callable"),
        (spec(instances="0"), "option 'instances' is '0'; expected a whole number of at least 1"),
    ],
)
def test_from_spec_rejects_invalid_options(wrong: ModelSpec, message: str) -> None:
    """The error names the option and the expected value."""
    with pytest.raises(ValueError, match=message):
        from_spec(wrong)


async def test_a_stream_can_be_closed_after_its_model_stops() -> None:
    """Closing it raises no error."""
    model = await started(each)
    items = await model(stream(1, 2))
    assert [1] == numbers(await anext(items))
    await model.stop(timeout_s=0.01)
    await close_stream(items)
    assert model._threads is None
