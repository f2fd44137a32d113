"""Complete: fills in what one protocol leaves out and the next one needs.

Names, datatypes and shapes come from the model's metadata, asked through the same service, only
when something is missing, and remembered. Codecs stay pure because this layer exists.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final, TypeVar, cast

import structlog

from gateway.ir.calls import (
    MODEL_CONTROL_CALLS,
    Call,
    InferRequest,
    InferResponse,
    ModelMetadataRequest,
    StreamInferRequest,
)
from gateway.ir.context import NO_CONTEXT, Context, ModelRef, Need
from gateway.ir.errors import (
    ErrorCode,
    GatewayError,
    InvalidRequest,
    SequenceIdTooLarge,
    UpstreamProtocolError,
)
from gateway.ir.metadata import ModelMetadata, TensorMetadata
from gateway.ir.streams import MappedStream
from gateway.ir.tensor import RequestedOutput
from gateway.policies.complete.batch_axis import (
    apply_batch_size,
    merge_batch_size,
    split_reply,
    split_request,
)
from gateway.policies.complete.datatypes import (
    DatatypeRestorer,
    in_order,
    may_be_substitute,
    substitute_kind,
)
from gateway.policies.complete.parameters import split_flat_members
from gateway.policies.complete.tensors import (
    ALL_NEEDS,
    TensorCompleter,
    is_incomplete,
    is_raw_binary_request,
)
from gateway.policies.complete.versions import resolve_version
from gateway.policies.metadata_cache import MetadataCache
from gateway.service import ReplyCoroutine, Service

log = structlog.get_logger(__name__)

R = TypeVar("R")

_REQUEST_LACKS: Final = "the request leaves out names, datatypes or shapes"
_ANSWER_LACKS: Final = "the answer leaves out names, datatypes or shapes"
# Asks whether the model batches too, which may take a second question.
_BATCHING: Final = Context(needs=frozenset({Need.BATCHING}))
# What is said where a model is no longer as it was when its metadata were asked for.
_DOUBTFUL: Final = frozenset(
    {
        ErrorCode.INVALID_ARGUMENT,
        ErrorCode.NOT_FOUND,
        ErrorCode.NOT_READY,
        ErrorCode.UPSTREAM,
        ErrorCode.BAD_UPSTREAM,
    }
)
_MEMBERS_UNKNOWN: Final = "the request does not tell inputs from parameters"
_VERSIONS_UNKNOWN: Final = "the request has its version as a number"
_ORDER_UNKNOWN: Final = "outputs without names have an order"


@dataclass(frozen=True, slots=True)
class _PendingCompletion:
    """What an answer is completed by.

    Attributes:
        request: As it was sent on.
        batch_size: Of the caller's request, where it kept it apart.
        metadata: None where the request needed none.
    """

    request: InferRequest
    batch_size: int | None
    metadata: ModelMetadata | None


class Complete:
    """Gives the next codec, and the caller's codec, tensors they can write.

    Requests get what *needs* names; answers get what the caller's context needs. A request that is
    nothing but bytes (Open Inference's raw binary request) is always made whole. Where only one
    side keeps the batch size apart from shapes of one item, it is joined or split off. Where one
    side lacks BOOL, BF16 or others, what it sent for them becomes what the model declares.

    Args:
        inner: Answers; wrapped in a `MetadataCache` for the questions asked here, unless it is one.
        needs: What the next codec cannot write without.
        inference: Answers each InferRequest; None for *inner*.
    """

    def __init__(
        self, inner: Service, needs: frozenset[Need], *, inference: Service | None = None
    ) -> None:
        self._inner = inner
        self._inference = inner if inference is None else inference
        self._needs = needs
        self._stand_ins = substitute_kind(needs)
        self._has_more_needs = Need.OUTPUTS in needs or Need.BATCHING in needs
        self._metadata = inner if isinstance(inner, MetadataCache) else MetadataCache(inner)

    def __call__(self, call: Call[R], /) -> ReplyCoroutine[R]:
        """Answer *call*.

        Raises:
            InvalidRequest: What is missing cannot be found, or the data does not fit it.
            UpstreamProtocolError: The answer does not fit the model's own metadata.
            GatewayError: Metadata is needed and cannot be had; the text says so.
        """
        # Each branch knows its R; the type system cannot follow an isinstance that far.
        if type(call) is InferRequest:
            return self._infer(call)  # type: ignore[return-value]  # a cast that costs nothing
        if isinstance(call, StreamInferRequest):
            return cast("ReplyCoroutine[R]", self._stream(call))
        return self._control(call) if type(call) in MODEL_CONTROL_CALLS else self._inner(call)

    async def _infer(self, call: InferRequest) -> InferResponse:
        request, known = call, None
        try:
            if not self._is_whole(call):
                request, known = await self._request(call)
            try:
                reply = await self._inference(request)
            except SequenceIdTooLarge as error:
                request = await self._without_sequence(request, error)
                reply = await self._inference(request)
            if self._suffices(reply, call.context.needs):
                return reply
            return await self._answer(_PendingCompletion(request, call.batch_size, known), reply)
        except GatewayError as error:
            if error.code in _DOUBTFUL:
                self._metadata.invalidate_if_stale(call.model)
            raise

    async def _stream(self, call: StreamInferRequest) -> AsyncIterator[InferResponse]:
        request, known = await self._request(call.request)
        needs = call.context.needs
        whole = call if request is call.request else call.changed(request=request)
        try:
            items = await self._inner(whole)
        except SequenceIdTooLarge as error:
            request = await self._without_sequence(request, error)
            items = await self._inner(call.changed(request=request))
        if needs or Need.BATCHING in self._needs or self._stand_ins is not None:
            asked = _PendingCompletion(
                request.with_context(needs=needs), call.request.batch_size, known
            )
            items = MappedStream(items, lambda item: self._answer(asked, item))
        return items

    async def _without_sequence(
        self, call: InferRequest, refused: SequenceIdTooLarge
    ) -> InferRequest:
        """Return *call* without its sequence, which a model without sequences does not look at.

        Raises:
            SequenceIdTooLarge: The model has sequences, or it is not known whether it has.
        """
        model = call.model or ModelRef("")
        try:
            known = await self._metadata(ModelMetadataRequest(model=model, context=_BATCHING))
        except GatewayError:
            raise refused from None
        if known.stateful or known.max_batch_size is None:
            raise refused
        return call.changed(sequence=None)

    async def _control(self, call: Call[R]) -> R:
        try:
            return await self._inner(call)
        finally:
            self._metadata.forget(call.model)

    def _is_whole(self, call: InferRequest) -> bool:
        """Tell whether *call* can surely be sent on as it is: nearly every one can."""
        needs = call.context.needs
        if self._has_more_needs or call.flat_members or call.batch_size is not None:
            return False
        if needs and not needs <= ALL_NEEDS:
            return False
        for tensor in call.inputs:
            if not tensor.name or tensor.datatype is None or tensor.shape is None:
                return False
        return True

    def _suffices(self, reply: InferResponse, needs: frozenset[Need]) -> bool:
        """Tell whether *reply* surely has all that its caller needs."""
        if self._stand_ins is not None or reply.batch_size is not None:
            return False
        return not needs or (needs <= ALL_NEEDS and not is_incomplete(reply.outputs, needs))

    async def _request(self, call: InferRequest) -> tuple[InferRequest, ModelMetadata | None]:
        """Return what is sent on, and the metadata where they were needed for it."""
        needs = self._needs
        if Need.NUMERIC_VERSIONS in call.context.needs:
            call = await self._numbered(call)
        if call.flat_members:
            metadata = await self._ask(call.model or ModelRef(""), _MEMBERS_UNKNOWN)
            call = split_flat_members(call, metadata)
        written = substitute_kind(call.context.needs)
        # What the next codec would write for it again is left as it is.
        if (
            written is not None
            and written is not self._stand_ins
            and may_be_substitute(call.inputs, written)
        ):
            call = await self._meant(call, widened=written is Need.WIDENED)
        apart = call.batch_size is not None
        bytes_only = is_raw_binary_request(call.inputs)
        bare = not apart and (is_incomplete(call.inputs, needs) or bytes_only)
        outputs = Need.OUTPUTS in needs and not call.outputs
        if not (apart or bare or outputs or Need.BATCHING in needs):
            return call, None
        about = _BATCHING if apart or bytes_only or Need.BATCHING in needs else NO_CONTEXT
        metadata = await self._ask(call.model or ModelRef(""), _REQUEST_LACKS, about)
        if bare:
            call = self._filled(call, metadata)
        if apart:
            call = apply_batch_size(call, metadata, whole=Need.BATCHING not in needs)
        elif Need.BATCHING in needs:
            call = split_request(call, metadata)
        if outputs:
            named = tuple([RequestedOutput(known.name) for known in metadata.outputs])
            call = call.changed(outputs=named)
        return call, metadata

    async def _numbered(self, call: InferRequest) -> InferRequest:
        """Return *call* to the version that its caller means by a number."""
        model = call.model
        if model is None or not model.version:
            return call
        known = await self._ask(ModelRef(model.name), _VERSIONS_UNKNOWN)
        version = resolve_version(model.version, known.versions)
        if version == model.version:
            return call
        return call.changed(model=ModelRef(model.name, version))

    def _filled(self, call: InferRequest, metadata: ModelMetadata) -> InferRequest:
        model = call.model or ModelRef("")
        filling = TensorCompleter(
            "input", model, metadata.inputs, bool(metadata.max_batch_size), InvalidRequest
        )
        return call.changed(inputs=filling.complete(call.inputs, self._needs))

    async def _answer(self, asked: _PendingCompletion, reply: InferResponse) -> InferResponse:
        if reply.error is not None:
            return reply
        read = self._stand_ins
        if (
            read is not None
            and read is not substitute_kind(asked.request.context.needs)
            and may_be_substitute(reply.outputs, read)
        ):
            reply = await self._meant_reply(asked.request, reply)
        reply = await self._response(asked, reply)
        if len(reply.outputs) > 1 and Need.OUTPUTS in asked.request.context.needs:
            reply = await self._in_own_order(asked.request, reply)
        return reply

    async def _response(self, asked: _PendingCompletion, reply: InferResponse) -> InferResponse:
        call = asked.request
        needs = call.context.needs
        apart = reply.batch_size is not None
        bare = is_incomplete(reply.outputs, needs)
        if not (apart or bare or Need.BATCHING in needs):
            return reply
        model = call.model or ModelRef("")
        about = _BATCHING if apart or Need.BATCHING in needs else NO_CONTEXT
        metadata = asked.metadata or await self._ask(model, _ANSWER_LACKS, about)
        if apart:
            reply = merge_batch_size(reply, metadata)
        if bare:
            declared = _in_order_asked(call, metadata)
            filling = TensorCompleter("output", model, declared, False, UpstreamProtocolError)
            reply = reply.changed(outputs=filling.complete(reply.outputs, needs))
        if Need.BATCHING in needs:
            reply = split_reply(reply, metadata, asked.batch_size)
        return reply

    async def _meant(self, call: InferRequest, *, widened: bool) -> InferRequest:
        metadata = await self._metadata.get_or_none(call.model or ModelRef(""))
        if metadata is None:
            return call
        model = call.model or ModelRef("")
        known = DatatypeRestorer("input", model, metadata.inputs, InvalidRequest, widened)
        inputs = known.replace(call.inputs)
        return call if inputs is call.inputs else call.changed(inputs=inputs)

    async def _meant_reply(self, call: InferRequest, reply: InferResponse) -> InferResponse:
        metadata = await self._metadata.get_or_none(call.model or ModelRef(""))
        if metadata is None:
            return reply
        declared = _in_order_asked(call, metadata)
        model = call.model or ModelRef("")
        widened = self._stand_ins is Need.WIDENED
        known = DatatypeRestorer("output", model, declared, UpstreamProtocolError, widened)
        outputs = known.replace(reply.outputs)
        return reply if outputs is reply.outputs else reply.changed(outputs=outputs)

    async def _in_own_order(self, call: InferRequest, reply: InferResponse) -> InferResponse:
        """Return *reply* with its outputs as asked for, or else as the model declares them."""
        names = [output.name for output in call.outputs]
        if not names:
            metadata = await self._ask(
                call.model or ModelRef(""), "outputs without names have an order"
            )
            names = [known.name for known in metadata.outputs]
        outputs = in_order(reply.outputs, names)
        return reply if outputs is reply.outputs else reply.changed(outputs=outputs)

    async def _ask(self, model: ModelRef, why: str, about: Context = NO_CONTEXT) -> ModelMetadata:
        try:
            return await self._metadata(ModelMetadataRequest(model=model, context=about))
        except GatewayError as error:
            if error.code is ErrorCode.NOT_FOUND:
                text = f"the request names model {str(model)!r}, which is not known here"
                raise type(error)(f"{text}: {error.message}", model=model) from error
            raise type(error)(
                f"{error.message}; {why}, which the metadata of model {str(model)!r} would tell",
                model=model,
            ) from error


def _in_order_asked(call: InferRequest, metadata: ModelMetadata) -> tuple[TensorMetadata, ...]:
    """Return the outputs in the order an answer without names has them: as asked for."""
    if not call.outputs:
        return metadata.outputs
    known = {output.name: output for output in metadata.outputs}
    return tuple(
        known.get(output.name, TensorMetadata(output.name, None, None)) for output in call.outputs
    )
