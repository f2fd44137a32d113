"""BackendService: runs a model in the gateway's process, on its own threads.

It handles cancellation, validation against metadata, and errors. `instance_pool` limits concurrent
inferences, and `versions` combines several versions of a model.
"""

import abc
import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, NoReturn, TypeVar

import structlog

from gateway.api import backend
from gateway.api.backend import Arrays, Inputs, Job
from gateway.backends.instance_pool import InstancePool
from gateway.backends.validation import Signature
from gateway.concurrency.offload import off_loop, run_bounded, run_bounded_on_loop
from gateway.ir import errors
from gateway.ir.bodies.streams import NotifyingStream, close_stream, only_reply
from gateway.ir.calls import (
    InferRequest,
    InferResponse,
    ModelMetadataRequest,
    ModelReadyRequest,
    StreamInferRequest,
)
from gateway.ir.context import ModelRef
from gateway.ir.metadata import ModelMetadata
from gateway.ir.work import LongWork
from gateway.service import Dispatch
from gateway.telemetry.call_path import record_model_time, record_queue_time
from gateway.telemetry.faults import FAULTS, is_cancelled

log = structlog.get_logger(__name__)

__all__ = ["Arrays", "Backend", "BackendService", "Inputs", "Job", "LoadError"]

T = TypeVar("T")

_TEXT_LIMIT = 500


class LoadError(errors.GatewayError):
    """A model cannot be loaded; the text names the model and its file, in one line."""

    code: ClassVar[errors.ErrorCode] = errors.ErrorCode.NOT_READY


class ModelErrors:
    """The exceptions of one model, of which the first of each type is logged.

    Args:
        model: The model.
    """

    def __init__(self, model: ModelRef) -> None:
        self._model = model
        self._logged: set[type[BaseException]] = set()

    def reraise(self, error: BaseException) -> NoReturn:
        """Raise an exception of the model as UpstreamError; a GatewayError gets the model."""
        try:
            if isinstance(error, errors.GatewayError):
                error.model = error.model or self._model
                raise error
            if type(error) not in self._logged:
                self._logged.add(type(error))
                log.warning("model failed", model=str(self._model), exc_info=error)
            text = " ".join(f"{type(error).__name__}: {error}".split())
            text = f"model {str(self._model)!r} failed: {text[:_TEXT_LIMIT]}"
            raise errors.UpstreamError(text, model=self._model) from error
        finally:
            del error  # break the reference cycle: its traceback refers to this frame

    def translated(self, function: Callable[[], T]) -> T:
        """Return what *function* of the model returns; its exceptions are raised by `reraise`."""
        try:
            return function()
        except BaseException as error:  # noqa: BLE001  # nothing ends a thread from outside
            self.reraise(error)


class BackendService(Dispatch, backend.Backend):
    """One version of one model; a Service.

    It raises InvalidRequest if a request does not match the model's metadata, Overloaded if the
    queue is full, NotReady if the model is not loaded, UpstreamError with the model's text if the
    model fails, and Unsupported for calls that models do not have.

    Subclasses implement `load`, `unload`, `metadata` and `infer`. `infer` and `load` may block,
    because they run on the backend's own threads. A subclass with an asynchronous model overrides
    `run` or `run_stream`.

    Args:
        name: The model's name.
        version: A number.
        instances: The number of concurrent inferences, and of threads. A subclass has one of each
            object that concurrent inferences cannot share (GPU stream, stateful object) per
            instance.
        queue: Inferences that may wait for an instance; more are rejected.
        clock: Monotonic seconds, the clock of deadlines.
    """

    def __init__(
        self,
        name: str,
        version: str = "1",
        *,
        instances: int = 1,
        queue: int = 1024,
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
            raise ValueError(f"model {name!r}: instances is {instances}; expected at least 1")
        self.model = ModelRef(name, version)
        self._instances = instances
        self._queue = queue
        self._clock = clock
        self._pool = InstancePool(self.model, instances, queue)
        self._threads: ThreadPoolExecutor | None = None
        self._signature: Signature | None = None
        self._errors = ModelErrors(self.model)

    @property
    @abc.abstractmethod
    def metadata(self) -> ModelMetadata:
        """The model's signature; read after `load`."""

    @abc.abstractmethod
    def load(self) -> None:
        """Load the model; may block.

        Raises:
            LoadError: The model cannot be loaded.
        """

    def check_here(self) -> None:
        """Check what `load` needs of this machine, as far as that needs no load; may block.

        Raises:
            LoadError: `load` would raise it, too.
        """

    @abc.abstractmethod
    def unload(self) -> None:
        """Free what `load` allocated; may block; idempotent."""

    @abc.abstractmethod
    def infer(self, inputs: Inputs, job: Job, /) -> Arrays:
        """Return the model's outputs for validated *inputs*; may block."""

    @property
    def has_sequences(self) -> bool:
        """Whether the model may have the state of a sequence."""
        return self._pool.has_sequences

    @property
    def running(self) -> int:
        """The number of inferences that run."""
        return self._pool.running

    @property
    def is_loaded(self) -> bool:
        """Whether the model accepts inferences."""
        return self._signature is not None

    async def start(self) -> None:
        """Load the model on a thread.

        Raises:
            LoadError: The model cannot be loaded.
        """
        if self.is_loaded:
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
        """Reject new inferences, wait for the running ones, and unload; idempotent.

        After *timeout_s* a running model is not unloaded, with a warning in the log.
        """
        threads = self._threads
        if self._signature is None or threads is None:
            return
        self._signature = None
        try:
            async with asyncio.timeout(timeout_s):
                await self._pool.acquire_all()
        except TimeoutError:
            log.warning("model stop timed out", model=str(self.model), seconds=timeout_s)
        else:
            await self.on_thread(self.unload)
        self._pool = InstancePool(self.model, self._instances, self._queue)
        self._threads = None
        threads.shutdown(wait=False)

    def run(self, inputs: Inputs, job: Job, /) -> Awaitable[Arrays]:
        """Run `infer` on a thread and return its outputs."""
        return self.on_thread(lambda: self.infer(inputs, job), job)

    def run_stream(self, inputs: Inputs, job: Job, /) -> AsyncIterator[Arrays]:
        """Iterate over the outputs of each reply; by default there is one reply."""
        return self._single_reply(inputs, job)

    async def on_thread(self, function: Callable[[], T], job: Job | None = None) -> T:
        """Run *function* on one of the backend's threads.

        If the caller is cancelled, `job.cancelled` is set and the thread runs to its end; until
        then the job keeps its instance.
        """
        if self._threads is None:
            raise self._not_ready()
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._threads, self._errors.translated, function)
        if job is None:
            return await future
        job.thread = future
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            job.cancel()
            future.add_done_callback(_ignore_result)
            raise

    async def _ready(self, _call: ModelReadyRequest) -> bool:
        return self.is_loaded

    async def _metadata(self, _call: ModelMetadataRequest) -> ModelMetadata:
        if self._signature is None:
            raise self._not_ready()
        return self.metadata.changed(decoupled=True) if self.decoupled else self.metadata

    async def _infer(self, call: InferRequest) -> InferResponse:
        inputs, job, signature = await self._validate(call)
        pool = self._pool
        instance = pool.try_acquire(job.sequence)
        if instance is None:
            queued = self._clock()
            instance = await pool.acquire(job.sequence, call.timeout_us)
            record_queue_time(self._clock() - queued)
        self._begin(job, pool, instance)
        started = self._clock()
        try:
            if self.decoupled:
                items = self._responses(call, inputs, job, signature)
                return await only_reply(self.model, items)
            arrays = await self.run(inputs, job)
            try:
                return run_bounded_on_loop(self._response, call, job, signature, arrays)
            except LongWork:
                return await off_loop(self._response, call, job, signature, arrays)
        except asyncio.CancelledError as error:
            if is_cancelled():
                raise
            self._errors.reraise(error)
        except FAULTS as error:
            self._errors.reraise(error)
        finally:
            record_model_time(self._clock() - started)
            self._end(job, pool)

    async def _stream(self, call: StreamInferRequest) -> AsyncIterator[InferResponse]:
        inputs, job, signature = await self._validate(call.request)
        job.streamed = True
        pool = self._pool
        instance = await pool.acquire(job.sequence, call.request.timeout_us)
        self._begin(job, pool, instance)
        items = self._responses(call.request, inputs, job, signature)
        return NotifyingStream(items, lambda _error: self._end(job, pool))

    async def _validate(self, call: InferRequest) -> tuple[Inputs, Job, Signature]:
        signature = self._signature
        if signature is None:
            raise self._not_ready()
        outputs = signature.validator.output_names(call)
        # Copied, because codecs cache parameters and the model may change them.
        parameters = dict(call.parameters)
        job = Job(self.model, call.id, parameters, call.sequence, outputs, call.context.deadline)
        try:
            return run_bounded_on_loop(signature.inputs, call), job, signature
        except LongWork:
            return await off_loop(signature.inputs, call), job, signature

    def _begin(self, job: Job, pool: InstancePool, instance: int) -> None:
        """Assign the acquired *instance* to the job, or release it if the deadline has passed."""
        job.instance = instance
        if job.deadline is not None and self._clock() >= job.deadline:
            pool.release(instance)
            raise errors.DeadlineExceeded(
                f"deadline exceeded while the request was queued for model {str(self.model)!r}",
                model=self.model,
            )

    def _end(self, job: Job, pool: InstancePool) -> None:
        """Release the instance now, or when the job's thread ends."""
        job.cancel()
        if job.thread is None or job.thread.done():
            pool.release(job.instance)
        else:
            job.thread.add_done_callback(lambda _future: pool.release(job.instance))

    async def _single_reply(self, inputs: Inputs, job: Job) -> AsyncIterator[Arrays]:
        yield await self.run(inputs, job)

    async def _responses(
        self, call: InferRequest, inputs: Inputs, job: Job, signature: Signature
    ) -> AsyncIterator[InferResponse]:
        stream: AsyncIterator[Arrays] | None = None
        try:
            while True:
                try:
                    stream = stream or self.run_stream(inputs, job)
                    arrays = await anext(stream)
                    response = await run_bounded(self._response, call, job, signature, arrays)
                except StopAsyncIteration:
                    return
                except FAULTS as error:
                    self._errors.reraise(error)
                yield response
        finally:
            if stream is not None:
                await close_stream(stream)

    def _response(
        self, call: InferRequest, job: Job, signature: Signature, arrays: Arrays
    ) -> InferResponse:
        if type(arrays) is not dict and not isinstance(arrays, Mapping):
            raise TypeError(f"the model returned {type(arrays).__name__}; expected a dict")
        return InferResponse(
            model=self.model,
            id=call.id,
            outputs=signature.outputs(arrays, job.outputs),
            parameters=dict(job.reply_parameters),
            is_final=not self.decoupled,
        )

    def _not_ready(self) -> errors.NotReady:
        return errors.NotReady(f"model {str(self.model)!r} is not loaded", model=self.model)


Backend = BackendService
"""The base class under the name by which models of users know it."""


def _ignore_result(future: asyncio.Future[Any]) -> None:
    """Read the exception of a cancelled caller's thread; asyncio logs unread ones."""
    if not future.cancelled():
        future.exception()
