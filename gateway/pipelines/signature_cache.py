"""SignatureCache: the signature of a pipeline, refreshed from its models' metadata."""

import asyncio
import time
from collections.abc import Callable

import structlog

from gateway.concurrency.ttl_lookup import TtlLookup
from gateway.ir.calls import ModelMetadataRequest
from gateway.ir.context import Context, ModelRef, Need
from gateway.ir.errors import GatewayError
from gateway.ir.metadata import ModelMetadata
from gateway.ir.tensors.validation import RequestValidator
from gateway.pipelines.errors import failure, mismatch
from gateway.pipelines.graph import Graph, Step
from gateway.pipelines.signature import (
    MismatchError,
    public_signature,
    signature_of,
    untyped_signature,
)
from gateway.service import Service
from gateway.telemetry.log.error_texts import error_text

log = structlog.get_logger(__name__)

_BATCHING = frozenset({Need.BATCHING})
_TTL_S = 10.0


class SignatureCache:
    """The signature of a pipeline, from its models' metadata.

    Args:
        graph: The graph of the pipeline.
        metadata: Handles calls for the models' metadata; it must cache them.
        configured: The signature of the configuration; the models complete it.
        all_inputs: Steps whose models require all their declared inputs.
        invalidate: Called with each model whose metadata may be stale.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        graph: Graph,
        metadata: Service,
        *,
        configured: ModelMetadata | None = None,
        all_inputs: frozenset[str] = frozenset(),
        invalidate: Callable[[ModelRef], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._graph = graph
        self._metadata = metadata
        self._configured = configured
        self._all_inputs = all_inputs
        self._invalidate = invalidate
        self._validator = RequestValidator(untyped_signature(graph), graph.version)
        self._lookup: TtlLookup[None, RequestValidator] = TtlLookup(
            self._validate, _TTL_S, _TTL_S, 1, clock
        )

    async def get(self) -> ModelMetadata:
        """Return the signature for callers.

        Raises:
            GatewayError: The metadata of a model are unavailable and not configured.
            MismatchError: The models do not match.
        """
        configured, steps = self._configured, self._graph.steps
        try:
            models = await asyncio.gather(*(self._model_metadata(step) for step in steps))
        except GatewayError:
            if configured is None or not (configured.inputs and configured.outputs):
                raise
            return public_signature(self._graph, configured, None)
        found = {step.name: model for step, model in zip(steps, models, strict=True)}
        derived = signature_of(self._graph, found, all_inputs=self._all_inputs)
        return derived if configured is None else public_signature(self._graph, configured, derived)

    async def is_consistent(self) -> bool:
        """Return whether the models match; True if their metadata are unavailable."""
        try:
            await self.get()
        except MismatchError:
            return False
        except GatewayError as error:
            self._log_unchecked(error)
        return True

    async def validator(self) -> RequestValidator:
        """Return the validator of requests; without metadata it only checks names.

        Raises:
            NotReady: The models do not match.
        """
        if self._lookup.is_asked(None):  # one call refreshes; others use the old validator
            return self._validator
        self._validator = await self._lookup.get(None) or self._validator
        return self._validator

    async def _validate(self, _key: None) -> RequestValidator:
        try:
            return RequestValidator(await self.get(), self._graph.version)
        except MismatchError as error:
            raise mismatch(self._graph, error) from error
        except GatewayError as error:
            self._log_unchecked(error)
            return self._validator

    def invalidate_if_stale(self) -> None:
        """Discard the metadata unless they are recent, because a model may have changed."""
        if self._lookup.has(None) and not self._lookup.forget_if_stale(None):
            return
        for step in self._graph.steps:
            if self._invalidate is not None:
                self._invalidate(step.model)

    async def _model_metadata(self, step: Step) -> ModelMetadata:
        call = ModelMetadataRequest(model=step.model, context=Context(needs=_BATCHING))
        try:
            return await self._metadata(call)
        except GatewayError as error:
            raise failure(self._graph, step, error) from error

    def _log_unchecked(self, error: GatewayError) -> None:
        log.debug("pipeline not checked", pipeline=self._graph.name, reason=error_text(error))
