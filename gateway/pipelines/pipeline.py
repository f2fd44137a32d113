"""Pipeline: a Service that runs a graph of models like one model.

Steps pass tensors by reference and share the caller's deadline. Each runs as soon as its inputs are
available. The first failure makes the pipeline fail: it cancels all other steps and waits for them.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

import structlog

from gateway.concurrency.background import end_tasks
from gateway.ir import errors
from gateway.ir.calls import (
    Call,
    InferRequest,
    InferResponse,
    ModelMetadataRequest,
    ModelReadyRequest,
    StreamInferRequest,
)
from gateway.ir.context import Context, ModelRef, Need
from gateway.ir.metadata import ModelMetadata
from gateway.ir.tensors.data import ArrayData
from gateway.ir.tensors.tensor import Tensor
from gateway.ir.tensors.validation import quote_names
from gateway.pipelines.errors import STALE_METADATA_CODES, failure, mismatch
from gateway.pipelines.graph import REQUEST, Graph, Source, Step
from gateway.pipelines.signature import MismatchError
from gateway.pipelines.signature_cache import SignatureCache
from gateway.service import Dispatch, Service
from gateway.telemetry.log.error_texts import error_text

log = structlog.get_logger(__name__)

R = TypeVar("R")

Record = Callable[[Step, str, float], None]
"""Called after each step with "ok" or the error's code, and the duration in seconds."""

Run = Callable[[Step], Coroutine[Any, Any, None]]
"""Runs a step."""

_NEEDS = frozenset({Need.NAMES, Need.DATATYPES, Need.SHAPES})


class Pipeline:
    """Handles the calls to one graph of models.

    Args:
        graph: The graph.
        inner: Handles calls to the steps' models; it replies with complete tensors.
        signatures: The signature of the pipeline.
        record: Called after each step.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        graph: Graph,
        inner: Service,
        signatures: SignatureCache,
        *,
        record: Record | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.graph = graph
        self._model = ModelRef(graph.name, graph.version)
        self._inner = inner
        self._signatures = signatures
        self._record = record
        self._clock = clock
        self._dispatch = Dispatch(
            f"pipeline {graph.name!r}",
            {
                ModelReadyRequest: self._ready,
                ModelMetadataRequest: self._metadata,
                InferRequest: self._infer,
                StreamInferRequest: self._stream,
            },
        )

    async def __call__(self, call: Call[R], /) -> R:
        """Handle *call*.

        Raises:
            ModelNotFound: The pipeline does not have this version.
            InvalidRequest: The request does not match the models.
            NotReady: The models do not match each other, or a model is not available.
            Unsupported: The request is part of a sequence, or pipelines do not support the call.
            GatewayError: The error of a step, with the names of step and model.
        """
        version = "" if call.model is None else call.model.version
        if version not in {"", self.graph.version}:
            raise errors.ModelNotFound(
                f"model {self.graph.name!r} has no version {version!r}; it has "
                f"{self.graph.version}",
                model=call.model,
            )
        return await self._dispatch(call)

    async def check(self) -> None:
        """Check whether the models match, as far as their metadata are available.

        Raises:
            MismatchError: The models do not match.
        """
        try:
            await self._signatures.get()
        except MismatchError as error:
            raise MismatchError(mismatch(self.graph, error).message) from error
        except errors.GatewayError as error:
            log.warning("pipeline not checked", pipeline=self.graph.name, reason=error_text(error))

    async def _ready(self, call: ModelReadyRequest) -> bool:
        """Return whether all models are ready and match; a model that fails is not ready."""
        models = dict.fromkeys(step.model for step in self.graph.steps)
        context = _step_context(call.context)
        replies = await asyncio.gather(
            *(self._inner(ModelReadyRequest(model=model, context=context)) for model in models),
            self._signatures.is_consistent(),
            return_exceptions=True,
        )
        for reply in replies:
            if isinstance(reply, BaseException) and not isinstance(reply, errors.GatewayError):
                raise reply
        return all(reply is True for reply in replies)

    async def _metadata(self, _call: ModelMetadataRequest) -> ModelMetadata:
        try:
            return await self._signatures.get()
        except MismatchError as error:
            raise mismatch(self.graph, error) from error

    async def _stream(self, call: StreamInferRequest) -> AsyncIterator[InferResponse]:
        """Return a stream of one reply."""
        return self._single_reply(call.request.changed(context=call.context))

    async def _single_reply(self, call: InferRequest) -> AsyncIterator[InferResponse]:
        yield await self._infer(call)

    async def _infer(self, call: InferRequest) -> InferResponse:
        if call.sequence is not None:
            raise errors.Unsupported(
                f"pipeline {self.graph.name!r} does not support sequences: its steps may run on "
                "different targets",
                model=self._model,
            )
        try:
            return await self._run(call)
        except errors.GatewayError as error:
            if error.code in STALE_METADATA_CODES:
                self._signatures.invalidate_if_stale()
            raise

    async def _run(self, call: InferRequest) -> InferResponse:
        validator = await self._signatures.validator()
        names = validator.output_names(call)
        tensors = {Source(REQUEST, tensor.name): tensor for tensor in validator.inputs(call)}

        common = {
            "context": _step_context(call.context),
            "id": call.id,
            "priority": call.priority,
            "parameters": call.parameters,
        }

        async def run(step: Step) -> None:
            for tensor in await self._call_step(step, tensors, common):
                tensors[Source(step.name, tensor.name)] = tensor

        await run_steps(self.graph.required_steps(names), run)
        outputs = self.graph.outputs
        return InferResponse(
            model=self._model,
            id=call.id,
            outputs=tuple(tensors[outputs[name]].renamed(name) for name in names),
        )

    async def _call_step(
        self, step: Step, tensors: Mapping[Source, Tensor], common: Mapping[str, Any]
    ) -> list[Tensor]:
        """Call a step's model and return the outputs that the graph uses."""
        request = InferRequest(
            model=step.model,
            inputs=tuple([tensors[source].renamed(name) for name, source in step.inputs.items()]),
            outputs=tuple(self.graph.used_outputs(step).values()),
            **common,
        )
        start, code = self._clock(), errors.ErrorCode.CANCELLED.value
        try:
            reply = await self._inner(request)
            outputs = self._used_outputs(step, reply)
            code = "ok"
        except errors.GatewayError as error:
            step_error = failure(self.graph, step, error)
            code = step_error.code.value
            raise step_error from error
        finally:
            if self._record is not None:
                self._record(step, code, self._clock() - start)
        return outputs

    def _used_outputs(self, step: Step, reply: InferResponse) -> list[Tensor]:
        found = {tensor.name: tensor for tensor in reply.outputs}
        for name in self.graph.used_outputs(step):
            if name not in found:
                raise errors.UpstreamError(
                    f"the reply has no output {name!r}; its outputs are {quote_names(found)}"
                )
        return [_read_only(found[name]) for name in self.graph.used_outputs(step)]


def _step_context(context: Context) -> Context:
    """Return the context of a step's call: the caller's, without message-specific fields."""
    return context.changed(needs=_NEEDS, origin=None, session=None)


def _read_only(tensor: Tensor) -> Tensor:
    """Return *tensor* as a read-only view, because several models may share its memory."""
    data = tensor.data
    if not isinstance(data, ArrayData) or not data.array.flags.writeable:
        return tensor
    array = data.array.view()
    array.flags.writeable = False
    return Tensor(tensor.name, tensor.datatype, tensor.shape, ArrayData(array), tensor.parameters)


async def run_steps(steps: Sequence[Step], run: Run) -> None:
    """Run *steps*, which include every step that one of them depends on.

    Raises:
        Exception: The error of the first step that failed; of several at once, the first in order.
    """
    waiting = {step.name: step for step in steps}
    done: set[str] = set()
    running: dict[asyncio.Task[None], Step] = {}
    try:
        while True:
            ready = [one for one in waiting.values() if one.needs <= done]
            for step in ready:
                del waiting[step.name]
            if len(ready) == 1 and not running:  # a single step needs no task
                await run(ready[0])
                done.add(ready[0].name)
                continue
            for step in ready:
                running[asyncio.create_task(run(step), name=step.name)] = step
            if not running:
                return
            await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in [task for task in running if task.done()]:
                done.add(running.pop(task).name)
                task.result()
    finally:
        if running:  # the caller gets the first error, or has cancelled
            await end_tasks(*running)
