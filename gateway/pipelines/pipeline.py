"""Pipeline: a Service made of Services, that answers like one model.

Tensors go from step to step by reference. What is asked of a pipeline is asked of its steps: it
has one deadline, the caller's, and fails with the first of them that fails.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, TypeVar

import structlog

from gateway.ir.calls import (
    Call,
    InferRequest,
    InferResponse,
    ModelMetadataRequest,
    ModelReadyRequest,
    StreamInferRequest,
)
from gateway.ir.context import Context, ModelRef, Need
from gateway.ir.data import ArrayData
from gateway.ir.errors import (
    ErrorCode,
    GatewayError,
    ModelNotFound,
    Unsupported,
    UpstreamError,
)
from gateway.ir.metadata import ModelMetadata
from gateway.ir.tensor import Tensor
from gateway.ir.validation import quote_names
from gateway.pipelines.errors import DOUBTFUL, failure, misfit
from gateway.pipelines.executor import run_steps
from gateway.pipelines.graph import REQUEST, Graph, Source, Step
from gateway.pipelines.signature import MisfitError
from gateway.pipelines.signature_cache import SignatureCache
from gateway.service import Dispatch, Service

log = structlog.get_logger(__name__)

R = TypeVar("R")

Record = Callable[[Step, str, float], None]
"""Told of each step that was asked: "ok" or the error's code, and how long it took in seconds."""

_WHOLE = frozenset({Need.NAMES, Need.DATATYPES, Need.SHAPES})


class Pipeline:
    """Answers calls about one graph of models.

    Args:
        graph: Of the steps.
        inner: Answers calls about the steps' models; tensors of its answers are whole.
        knowledge: Of the models.
        record: Told of each step.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        graph: Graph,
        inner: Service,
        knowledge: SignatureCache,
        *,
        record: Record | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.graph = graph
        self._model = ModelRef(graph.name, graph.version)
        self._inner = inner
        self._knowledge = knowledge
        self._record = record
        self._clock = clock
        self._dispatch = Dispatch(
            f"pipeline {graph.name!r}",
            {
                ModelReadyRequest: self._ready,
                ModelMetadataRequest: self._describe,
                InferRequest: self._infer,
                StreamInferRequest: self._stream,
            },
        )

    async def __call__(self, call: Call[R], /) -> R:
        """Answer *call*.

        Raises:
            ModelNotFound: The pipeline has no such version.
            InvalidRequest: The request does not fit the models.
            NotReady: The models do not fit one another, or one is not served.
            Unsupported: The request is part of a sequence, or this cannot be asked of a pipeline.
            GatewayError: What a step failed with; the text names step and model.
        """
        version = "" if call.model is None else call.model.version
        if version not in {"", self.graph.version}:
            raise ModelNotFound(
                f"model {self.graph.name!r} has no version {version!r}; it has "
                f"{self.graph.version}",
                model=call.model,
            )
        return await self._dispatch(call)

    async def check(self) -> None:
        """Find out whether the models fit together, as far as they can be asked.

        Raises:
            MisfitError: They do not.
        """
        try:
            await self._knowledge.signature()
        except MisfitError as error:
            raise MisfitError(misfit(self.graph, error).message) from error
        except GatewayError as error:
            log.warning("pipeline not checked", pipeline=self.graph.name, reason=error.message)

    async def _ready(self, call: ModelReadyRequest) -> bool:
        """Ask every model; what cannot be asked is not ready."""
        models = dict.fromkeys(step.model for step in self.graph.steps)
        context = _within(call.context)
        answers = await asyncio.gather(
            *(self._inner(ModelReadyRequest(model=model, context=context)) for model in models),
            self._knowledge.is_satisfied(),
            return_exceptions=True,
        )
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, GatewayError):
                raise answer
        return all(answer is True for answer in answers)

    async def _describe(self, _call: ModelMetadataRequest) -> ModelMetadata:
        try:
            return await self._knowledge.signature()
        except MisfitError as error:
            raise misfit(self.graph, error) from error

    async def _stream(self, call: StreamInferRequest) -> AsyncIterator[InferResponse]:
        """Answer once: a pipeline has no more to say."""
        return self._once(call.request.changed(context=call.context))

    async def _once(self, call: InferRequest) -> AsyncIterator[InferResponse]:
        yield await self._infer(call)

    async def _infer(self, call: InferRequest) -> InferResponse:
        if call.sequence is not None:
            raise Unsupported(
                f"pipeline {self.graph.name!r} takes no sequences: its steps may be answered "
                "anywhere",
                model=self._model,
            )
        try:
            return await self._run(call)
        except GatewayError as error:
            if error.code in DOUBTFUL:
                self._knowledge.ask_again()
            raise

    async def _run(self, call: InferRequest) -> InferResponse:
        declared = await self._knowledge.declared()
        wanted = declared.output_names(call)
        tensors = {Source(REQUEST, tensor.name): tensor for tensor in declared.inputs(call)}

        common = {
            "context": _within(call.context),
            "id": call.id,
            "priority": call.priority,
            "parameters": call.parameters,
        }

        async def run(step: Step) -> None:
            for tensor in await self._answered(step, tensors, common):
                tensors[Source(step.name, tensor.name)] = tensor

        await run_steps(self.graph.needed(wanted), run)
        outputs = self.graph.outputs
        return InferResponse(
            model=self._model,
            id=call.id,
            outputs=tuple(tensors[outputs[name]].renamed(name) for name in wanted),
        )

    async def _answered(
        self, step: Step, tensors: Mapping[Source, Tensor], common: Mapping[str, Any]
    ) -> list[Tensor]:
        """Ask a step's model; return the outputs that somebody uses."""
        request = InferRequest(
            model=step.model,
            inputs=tuple([tensors[source].renamed(name) for name, source in step.inputs.items()]),
            outputs=tuple(self.graph.asked(step).values()),
            **common,
        )
        begun, code = self._clock(), ErrorCode.CANCELLED.value
        try:
            reply = await self._inner(request)
            found = self._used(step, reply)
            code = "ok"
        except GatewayError as error:
            failed = failure(self.graph, step, error)
            code = failed.code.value
            raise failed from error
        finally:
            if self._record is not None:
                self._record(step, code, self._clock() - begun)
        return found

    def _used(self, step: Step, reply: InferResponse) -> list[Tensor]:
        found = {tensor.name: tensor for tensor in reply.outputs}
        for name in self.graph.asked(step):
            if name not in found:
                raise UpstreamError(f"it gave no output {name!r}; it gave {quote_names(found)}")
        return [_kept(found[name]) for name in self.graph.asked(step)]


def _within(context: Context) -> Context:
    """Return the context of a step's call: the caller's, without what is about its own message."""
    return context.changed(needs=_WHOLE, origin=None, session=None)


def _kept(tensor: Tensor) -> Tensor:
    """Return *tensor* so that no model can write into it: others may be given the same memory."""
    data = tensor.data
    if not isinstance(data, ArrayData) or not data.array.flags.writeable:
        return tensor
    array = data.array.view()
    array.flags.writeable = False
    return Tensor(tensor.name, tensor.datatype, tensor.shape, ArrayData(array), tensor.parameters)
