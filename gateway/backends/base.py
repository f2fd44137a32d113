"""Backend: a model in the gateway's own process, and the pool of threads it runs on.

Here: cancellation, checks against metadata, one way for errors. In `places`: instances and who
waits for one. In `versions`: several versions of one model. What the model is, each backend's own
file knows.
"""

from __future__ import annotations

import abc
import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, NoReturn, TypeVar

import numpy.typing as npt
import structlog

from gateway.backends.instance_pool import InstancePool
from gateway.backends.job import Job
from gateway.backends.validation import Arrays, Signature
from gateway.concurrency.offload import inline, off_loop, wherever
from gateway.ir.calls import (
    InferRequest,
    InferResponse,
    ModelMetadataRequest,
    ModelReadyRequest,
    StreamInferRequest,
)
from gateway.ir.context import ModelRef
from gateway.ir.errors import (
    DeadlineExceeded,
    ErrorCode,
    GatewayError,
    NotReady,
    UpstreamError,
)
from gateway.ir.metadata import ModelMetadata
from gateway.ir.streams import NotifyingStream, close_stream, only_reply
from gateway.ir.work import LongWork
from gateway.service import Dispatch

log = structlog.get_logger(__name__)

__all__ = ["Arrays", "Backend", "Inputs", "Job", "LoadError"]

T = TypeVar("T")

_TEXT_LIMIT = 500
# What a model's own fault may be; a thread's SystemExit must not end the process.
_FAULTS = (Exception, SystemExit)


class LoadError(GatewayError):
    """A model cannot be loaded; the text names it and its file, in one line."""

    code: ClassVar[ErrorCode] = ErrorCode.NOT_READY


Inputs = Mapping[str, npt.NDArray[Any]]


class Backend(Dispatch, abc.ABC):
    """One version of one model; a Service.

    It raises InvalidRequest where a request does not fit the model's metadata, Overloaded where
    the queue is full, NotReady where the model is not loaded, UpstreamError where the model itself
    failed, whose text that is, and Unsupported where the model cannot be asked this.

    Subclasses say how to load, describe and run it. `infer` and `load` block and run on the
    backend's own threads; a subclass whose model is asynchronous overrides `run` or `answers`.

    Args:
        name: Of the model.
        version: Of the model; a number.
        instances: Inferences at a time, and threads. What one inference must not share with another
            (a stream of a GPU, an object that keeps state) a subclass has once for each.
        queue: Inferences that may wait for one; more are refused.
        clock: Monotonic seconds, that of deadlines.
    """

    decoupled = False
    """True when one request may have any number of answers."""

    def __init__(
        self,
        name: str,
        version: str = "1",
        *,
        instances: int = 1,
        queue: int = 256,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(
            f"model {name!r}",
            {
                ModelReadyRequest: self._ready,
                ModelMetadataRequest: self._metadata,
                InferRequest: self._infer,
                StreamInferRequest: self._stream,
            },
        )
        if instances < 1:
            raise ValueError(f"model {name!r}: instances is {instances}, at least 1 is needed")
        self.model = ModelRef(name, version)
        self._instances = instances
        self._queue = queue
        self._clock = clock
        self._places = InstancePool(self.model, instances, queue)
        self._threads: ThreadPoolExecutor | None = None
        self._signature: Signature | None = None
        self._reported: set[type[BaseException]] = set()

    @property
    @abc.abstractmethod
    def metadata(self) -> ModelMetadata:
        """The model's signature; asked once it is loaded."""

    @abc.abstractmethod
    def load(self) -> None:
        """Make the model ready to run; may block. Raises LoadError."""

    @abc.abstractmethod
    def unload(self) -> None:
        """Give back what `load` took; may block; harmless when nothing is loaded."""

    @abc.abstractmethod
    def infer(self, inputs: Inputs, job: Job, /) -> Arrays:
        """Return the model's outputs for checked *inputs*; may block."""

    @property
    def loaded(self) -> bool:
        """Whether the model can take inferences."""
        return self._signature is not None

    @property
    def has_threads(self) -> bool:
        """Whether `on_thread` can be used."""
        return self._threads is not None

    async def start(self) -> None:
        """Load the model on a thread of its own.

        Raises:
            LoadError: It cannot be loaded.
        """
        if self.loaded:
            return
        name = f"model-{self.model.name}-{self.model.version}"
        self._threads = threads = ThreadPoolExecutor(self._instances, thread_name_prefix=name)
        try:
            await self.on_thread(self.load)
            self._signature = Signature(self.metadata, self.model.version)
        except BaseException:
            self._threads = None
            threads.shutdown(wait=False)
            raise

    async def stop(self, timeout_s: float = 5.0) -> None:
        """Take no more inferences, let the running ones end, and unload; harmless twice.

        A model that is still running after *timeout_s* is left as it is, with a warning.
        """
        threads = self._threads
        if self._signature is None or threads is None:
            return
        self._signature = None
        try:
            async with asyncio.timeout(timeout_s):
                await self._places.acquire_all()
        except TimeoutError:
            log.warning("model still runs", model=str(self.model), seconds=timeout_s)
        else:
            await self.on_thread(self.unload)
        self._places = InstancePool(self.model, self._instances, self._queue)
        self._threads = None
        threads.shutdown(wait=False)

    def run(self, inputs: Inputs, job: Job, /) -> Awaitable[Arrays]:
        """Return the model's outputs: `infer`, on a thread."""
        return self.on_thread(lambda: self.infer(inputs, job), job)

    def answers(self, inputs: Inputs, job: Job, /) -> AsyncIterator[Arrays]:
        """Iterate over the model's answers; one, unless a subclass knows better."""
        return self._one_answer(inputs, job)

    async def on_thread(self, function: Callable[[], T], job: Job | None = None) -> T:
        """Run *function*, a piece of the model, on one of the backend's threads.

        When the caller leaves, `job.cancelled` is set and the thread goes on to its end; the job's
        place stays taken until then.
        """
        if self._threads is None:
            raise self._not_ready()
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._threads, self._guard, function)
        if job is None:
            return await future
        job.thread = future
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            job.cancel()
            future.add_done_callback(_forgotten)
            raise

    def _fault(self, error: BaseException) -> UpstreamError:
        """Return what a model has raised as an error of it."""
        if type(error) not in self._reported:  # once each: a failing model must not flood
            self._reported.add(type(error))
            log.warning("model failed", model=str(self.model), exc_info=error)
        text = " ".join(f"{type(error).__name__}: {error}".split())
        return UpstreamError(
            f"model {str(self.model)!r} failed: {text[:_TEXT_LIMIT]}", model=self.model
        )

    def _raise(self, error: BaseException) -> NoReturn:
        """Raise what a model has raised: as an error of it, but what is an error of ours as it is.

        Raises:
            GatewayError: Always.
        """
        try:
            if isinstance(error, GatewayError):
                raise error
            raise self._fault(error) from error
        finally:
            del error  # its traceback holds this frame from now on

    def _guard(self, function: Callable[[], T]) -> T:
        try:
            return function()
        except _FAULTS as error:
            self._raise(error)

    async def _ready(self, _call: ModelReadyRequest) -> bool:
        return self.loaded

    async def _metadata(self, _call: ModelMetadataRequest) -> ModelMetadata:
        if self._signature is None:
            raise self._not_ready()
        return self.metadata.changed(decoupled=True) if self.decoupled else self.metadata

    async def _infer(self, call: InferRequest) -> InferResponse:
        inputs, job, signature = await self._checked(call)
        places = self._places
        free = places.try_acquire(job.sequence)
        self._begin(job, places, await places.acquire(job.sequence) if free is None else free)
        try:
            if self.decoupled:
                items = self._responses(call, inputs, job, signature)
                return await only_reply(self.model, items)
            arrays = await self.run(inputs, job)
            try:
                return inline(self._response, call, job, signature, arrays)
            except LongWork:
                return await off_loop(self._response, call, job, signature, arrays)
        except _FAULTS as error:
            self._raise(error)
        finally:
            self._leave(job, places)

    async def _stream(self, call: StreamInferRequest) -> AsyncIterator[InferResponse]:
        inputs, job, signature = await self._checked(call.request)
        job.streamed = True
        places = self._places
        self._begin(job, places, await places.acquire(job.sequence))
        items = self._responses(call.request, inputs, job, signature)
        return NotifyingStream(items, lambda _error: self._leave(job, places))

    async def _checked(self, call: InferRequest) -> tuple[Inputs, Job, Signature]:
        signature = self._signature
        if signature is None:
            raise self._not_ready()
        wanted = signature.declared.output_names(call)
        # A copy: codecs remember parameters, and a model may change its own.
        parameters = dict(call.parameters)
        job = Job(self.model, call.id, parameters, call.sequence, wanted, call.context.deadline)
        try:
            return inline(signature.inputs, call), job, signature
        except LongWork:
            return await off_loop(signature.inputs, call), job, signature

    def _begin(self, job: Job, places: InstancePool, instance: int) -> None:
        """Give *instance*, which was taken, to the job; or back, where the deadline has passed."""
        job.instance = instance
        if job.deadline is not None and self._clock() >= job.deadline:
            places.release(instance)
            raise DeadlineExceeded(
                f"the deadline passed while the request waited for model {str(self.model)!r}",
                model=self.model,
            )

    def _leave(self, job: Job, places: InstancePool) -> None:
        """Give the place back: at once, or when the thread that nobody waits for has ended."""
        job.cancel()
        if job.thread is None or job.thread.done():
            places.release(job.instance)
        else:
            job.thread.add_done_callback(lambda _future: places.release(job.instance))

    async def _one_answer(self, inputs: Inputs, job: Job) -> AsyncIterator[Arrays]:
        yield await self.run(inputs, job)

    async def _responses(
        self, call: InferRequest, inputs: Inputs, job: Job, signature: Signature
    ) -> AsyncIterator[InferResponse]:
        try:
            answers = self.answers(inputs, job)
            try:
                async for arrays in answers:
                    yield await wherever(self._response, call, job, signature, arrays)
            finally:
                await close_stream(answers)
        except _FAULTS as error:
            self._raise(error)

    def _response(
        self, call: InferRequest, job: Job, signature: Signature, arrays: Arrays
    ) -> InferResponse:
        if type(arrays) is not dict and not isinstance(arrays, Mapping):
            raise TypeError(f"the model returned {type(arrays).__name__}, needed is a dict")
        return InferResponse(
            model=self.model,
            id=call.id,
            outputs=signature.outputs(arrays, job.outputs),
            parameters=dict(job.reply_parameters),
            final=not self.decoupled,
        )

    def _not_ready(self) -> NotReady:
        return NotReady(f"model {str(self.model)!r} is not loaded", model=self.model)


def _forgotten(future: asyncio.Future[Any]) -> None:
    """Take what a thread ended with, when nobody waits for it: asyncio complains otherwise."""
    if not future.cancelled():
        future.exception()
