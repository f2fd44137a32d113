"""Pipeline: a Service made of Services, that answers like one model.

Tensors go from step to step by reference. What is asked of a pipeline is asked of its steps: it
has one deadline, the caller's, and fails with the first of them that fails.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import TypeVar

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
from gateway.ir.declared import Declared, listed
from gateway.ir.errors import (
    ERROR_CLASSES,
    ErrorCode,
    GatewayError,
    ModelNotFound,
    NotReady,
    Unsupported,
    UpstreamError,
)
from gateway.ir.metadata import ModelMetadata
from gateway.ir.tensor import RequestedOutput, Tensor
from gateway.pipelines.flow import flow
from gateway.pipelines.graph import REQUEST, Graph, Source, Step
from gateway.pipelines.signature import MisfitError, signature_of, told, untold
from gateway.service import Dispatch, Service

log = structlog.get_logger(__name__)

R = TypeVar("R")

Record = Callable[[Step, str, float], None]
"""Told of each step that was asked: "ok" or the error's code, and how long it took in seconds."""

_WHOLE = frozenset({Need.NAMES, Need.DATATYPES, Need.SHAPES})
_BATCHING = frozenset({Need.BATCHING})
_CHECKED_S = 10.0


class Pipeline:
    """Answers calls about one graph of models.

    Args:
        graph: Of the steps.
        inner: Answers calls about the steps' models; tensors of its answers are whole.
        metadata: Answers questions for the models' metadata; asked often.
        signature: What is told of the pipeline instead of what the models tell; what it leaves out
            is theirs.
        whole: Steps whose models must be given every input that they declare.
        record: Told of each step.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        graph: Graph,
        inner: Service,
        metadata: Service,
        *,
        signature: ModelMetadata | None = None,
        whole: frozenset[str] = frozenset(),
        record: Record | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.graph = graph
        self._model = ModelRef(graph.name, graph.version)
        self._inner = inner
        self._metadata = metadata
        self._given = signature
        self._whole = whole
        self._record = record
        self._clock = clock
        self._declared = Declared(untold(graph), graph.version)
        self._until = float("-inf")
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
            await self._signature()
        except MisfitError as error:
            raise MisfitError(self._misfit(error).message) from error
        except GatewayError as error:
            log.warning("pipeline not checked", pipeline=self.graph.name, reason=error.message)

    async def _ready(self, call: ModelReadyRequest) -> bool:
        """Ask every model; what cannot be asked is not ready."""
        models = dict.fromkeys(step.model for step in self.graph.steps)
        context = self._context(call)
        answers = await asyncio.gather(
            *(self._inner(ModelReadyRequest(model=model, context=context)) for model in models),
            self._fit(),
            return_exceptions=True,
        )
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, GatewayError):
                raise answer
        return all(answer is True for answer in answers)

    async def _fit(self) -> bool:
        """Return whether the models fit together, as far as is known."""
        try:
            await self._signature()
        except MisfitError:
            return False
        except GatewayError as error:
            log.debug("pipeline not checked", pipeline=self.graph.name, reason=error.message)
        return True

    async def _describe(self, _call: ModelMetadataRequest) -> ModelMetadata:
        try:
            return await self._signature()
        except MisfitError as error:
            raise self._misfit(error) from error

    async def _signature(self) -> ModelMetadata:
        """Return what callers are told.

        Raises:
            GatewayError: A model cannot be asked, and nobody else tells what it takes or gives.
            MisfitError: The models do not fit together.
        """
        given = self._given
        try:
            found = {step.name: await self._of_model(step) for step in self.graph.steps}
        except GatewayError:
            if given is None or not (given.inputs and given.outputs):
                raise
            return told(self.graph, given, None)
        derived = signature_of(self.graph, found, whole=self._whole)
        return derived if given is None else told(self.graph, given, derived)

    async def _of_model(self, step: Step) -> ModelMetadata:
        question = ModelMetadataRequest(model=step.model, context=Context(needs=_BATCHING))
        try:
            return await self._metadata(question)
        except GatewayError as error:
            raise self._failure(step, error) from error

    async def _checks(self) -> Declared:
        """Return what requests are held to: what is told, or names alone while nothing can be."""
        now = self._clock()
        if now < self._until:
            return self._declared
        self._until = now + _CHECKED_S  # one asks; others go by what was known before
        try:
            self._declared = Declared(await self._signature(), self.graph.version)
        except MisfitError as error:
            self._until = now
            raise self._misfit(error) from error
        except GatewayError as error:
            log.debug("pipeline not checked", pipeline=self.graph.name, reason=error.message)
        except BaseException:
            self._until = now  # whoever asked has left
            raise
        return self._declared

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
        declared = await self._checks()
        wanted = declared.wanted(call)
        tensors = {Source(REQUEST, name): tensor for name, tensor in declared.inputs(call).items()}

        async def run(step: Step) -> None:
            for tensor in await self._answered(step, call, tensors):
                tensors[Source(step.name, tensor.name)] = tensor

        await flow(self.graph.needed(wanted), run)
        outputs = self.graph.outputs
        return InferResponse(
            model=self._model,
            id=call.id,
            outputs=tuple(tensors[outputs[name]].renamed(name) for name in wanted),
        )

    async def _answered(
        self, step: Step, call: InferRequest, tensors: dict[Source, Tensor]
    ) -> list[Tensor]:
        """Ask a step's model; return the outputs that somebody uses."""
        request = InferRequest(
            model=step.model,
            context=self._context(call),
            inputs=tuple(tensors[source].renamed(name) for name, source in step.inputs.items()),
            outputs=tuple(RequestedOutput(name) for name in self.graph.asked(step)),
            id=call.id,
            priority=call.priority,
            parameters=call.parameters,
        )
        begun, code = self._clock(), ErrorCode.CANCELLED.value
        try:
            reply = await self._inner(request)
            found = self._used(step, reply)
            code = "ok"
        except GatewayError as error:
            failure = self._failure(step, error)
            code = failure.code.value
            raise failure from error
        finally:
            if self._record is not None:
                self._record(step, code, self._clock() - begun)
        return found

    def _used(self, step: Step, reply: InferResponse) -> list[Tensor]:
        found = {tensor.name: tensor for tensor in reply.outputs}
        for name in self.graph.asked(step):
            if name not in found:
                raise UpstreamError(f"it gave no output {name!r}; it gave {listed(found)}")
        return [found[name] for name in self.graph.asked(step)]

    def _failure(self, step: Step, error: GatewayError) -> GatewayError:
        """Return what the caller is told: the same kind of error, and where it happened.

        Nothing of an upstream's own answer goes with it, and nothing that would have the whole
        pipeline run again: other steps may have been answered.
        """
        kind = ERROR_CLASSES[error.code]
        if error.code is ErrorCode.NOT_FOUND:  # the pipeline is there, whoever is missing
            kind = NotReady
        return kind(
            f"pipeline {self.graph.name!r}, {step}: {error.message}",
            model=self._model,
            limit=error.limit,
        )

    def _misfit(self, error: MisfitError) -> NotReady:
        return NotReady(
            f"pipeline {self.graph.name!r} does not fit together: {error}", model=self._model
        )

    def _context(self, call: Call[R]) -> Context:
        return call.within(needs=_WHOLE, origin=None, session=None).context
