"""Knowledge: what a pipeline knows of its models, asked now and then, and what follows from it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import structlog

from gateway.ir.calls import ModelMetadataRequest
from gateway.ir.context import Context, ModelRef, Need
from gateway.ir.errors import GatewayError
from gateway.ir.metadata import ModelMetadata
from gateway.ir.validation import RequestValidator
from gateway.pipelines.errors import failure, misfit
from gateway.pipelines.graph import Graph, Step
from gateway.pipelines.signature import MisfitError, missing_tensors, public_signature, signature_of
from gateway.service import Service

log = structlog.get_logger(__name__)

_BATCHING = frozenset({Need.BATCHING})
_HOLDS_S = 10.0
_BELIEVED_S = 1.0


class SignatureCache:
    """The signature of a pipeline, from its models' metadata.

    Args:
        graph: Of the pipeline.
        metadata: Answers questions for the models' metadata; asked often.
        given: What is told of the pipeline instead of what the models tell; what it leaves out is
            theirs.
        whole: Steps whose models must be given every input that they declare.
        doubt: Told of models whose metadata may have changed: something did not fit them.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        graph: Graph,
        metadata: Service,
        *,
        given: ModelMetadata | None = None,
        whole: frozenset[str] = frozenset(),
        doubt: Callable[[ModelRef], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._graph = graph
        self._metadata = metadata
        self._given = given
        self._whole = whole
        self._doubt = doubt
        self._clock = clock
        self._declared = RequestValidator(missing_tensors(graph), graph.version)
        self._until = float("-inf")

    async def signature(self) -> ModelMetadata:
        """Return what callers are told.

        Raises:
            GatewayError: A model cannot be asked, and nobody else tells what it takes or gives.
            MisfitError: The models do not fit together.
        """
        given, steps = self._given, self._graph.steps
        try:
            models = await asyncio.gather(*(self._of_model(step) for step in steps))
        except GatewayError:
            if given is None or not (given.inputs and given.outputs):
                raise
            return public_signature(self._graph, given, None)
        found = {step.name: model for step, model in zip(steps, models, strict=True)}
        derived = signature_of(self._graph, found, whole=self._whole)
        return derived if given is None else public_signature(self._graph, given, derived)

    async def is_satisfied(self) -> bool:
        """Return whether the models fit together, as far as is known."""
        try:
            await self.signature()
        except MisfitError:
            return False
        except GatewayError as error:
            self._unchecked(error)
        return True

    async def declared(self) -> RequestValidator:
        """Return what requests are held to: what is told, or names alone while nothing can be.

        Raises:
            NotReady: The models do not fit together.
        """
        now = self._clock()
        if now < self._until:
            return self._declared
        self._until = now + _HOLDS_S  # one asks; others go by what was known before
        try:
            self._declared = RequestValidator(await self.signature(), self._graph.version)
        except MisfitError as error:
            self._until = now
            raise misfit(self._graph, error) from error
        except GatewayError as error:
            self._unchecked(error)
        except BaseException:
            self._until = now  # whoever asked has left
            raise
        return self._declared

    def ask_again(self) -> None:
        """Ask the models anew next time, for one may be another; not what was asked just now."""
        if self._clock() < self._until - _HOLDS_S + _BELIEVED_S:
            return
        self._until = float("-inf")
        for step in self._graph.steps:
            if self._doubt is not None:
                self._doubt(step.model)

    async def _of_model(self, step: Step) -> ModelMetadata:
        question = ModelMetadataRequest(model=step.model, context=Context(needs=_BATCHING))
        try:
            return await self._metadata(question)
        except GatewayError as error:
            raise failure(self._graph, step, error) from error

    def _unchecked(self, error: GatewayError) -> None:
        log.debug("pipeline not checked", pipeline=self._graph.name, reason=error.message)
