"""Complete: adds what the protocol of one side omits and the protocol of the other side requires.

Names, datatypes and shapes come from the model's metadata. The layer gets them from the same
service, only if something is missing, and caches them.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar, cast

import structlog

from gateway.accelerator import accelerated
from gateway.concurrency.offload import run_bounded
from gateway.ir import errors
from gateway.ir.bodies.streams import MappedStream
from gateway.ir.calls import (
    MODEL_CONTROL_CALLS,
    Call,
    InferRequest,
    InferResponse,
    ModelMetadataRequest,
    StreamInferRequest,
    rewritten,
)
from gateway.ir.context import NO_CONTEXT, Context, ModelRef, Need
from gateway.ir.metadata import ModelMetadata, TensorMetadata
from gateway.ir.tensors.tensor import RequestedOutput, Tensor
from gateway.model_info.metadata_cache import MetadataCache
from gateway.policies.complete.batch_axis import (
    apply_batch_size,
    items_of,
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
from gateway.policies.complete.parameters import split_flat_members, split_reply_members
from gateway.policies.complete.tensors import (
    ALL_NEEDS,
    TensorCompleter,
    is_raw_binary_request,
)
from gateway.policies.complete.untyped import (
    is_untyped,
    quickly_typed,
    typed_reply,
    typed_request,
    with_batch_axis,
)
from gateway.policies.divide_rows import join_replies
from gateway.policies.texts.run import run_stream_task, run_task
from gateway.service import ReplyCoroutine, Service

log = structlog.get_logger(__name__)

R = TypeVar("R")

_REQUEST_INCOMPLETE: Final = "the request has no names, datatypes or shapes"
_TARGET_INCOMPLETE: Final = "the target needs the names of the outputs or the batch size"
_REPLY_INCOMPLETE: Final = "the reply has no names, datatypes or shapes"
# Includes the maximum batch size, which may require a second call.
_BATCHING: Final = Context(needs=frozenset({Need.BATCHING}))
# Errors that can mean that the cached metadata of a model are stale.
_STALE_METADATA_CODES: Final = frozenset(
    {
        errors.ErrorCode.INVALID_ARGUMENT,
        errors.ErrorCode.NOT_FOUND,
        errors.ErrorCode.NOT_READY,
        errors.ErrorCode.UPSTREAM,
        errors.ErrorCode.BAD_UPSTREAM,
    }
)
_NAMELESS: Final = ModelRef("")


_MEMBERS_UNKNOWN: Final = "the message does not distinguish tensors from parameters"
_UNTYPED: Final = "the request has no datatypes"
_UNTYPED_REPLY: Final = "the reply has no datatypes"
_VERSIONS_UNKNOWN: Final = "the request has a numeric version"
_TENSORS_UNKNOWN: Final = "the request has texts, without the names of tensors"
_ORDER_UNKNOWN: Final = "outputs without names depend on their order"


@accelerated
def is_incomplete(tensors: Sequence[Tensor], needs: frozenset[Need]) -> bool:
    """Return whether some tensor lacks something that is in *needs*."""
    for tensor in tensors:
        if tensor.name and tensor.datatype is not None and tensor.shape is not None:
            continue
        if not tensor.name and Need.NAMES in needs:
            return True
        if tensor.datatype is None and Need.DATATYPES in needs:
            return True
        if tensor.shape is None and Need.SHAPES in needs:
            return True
    return False


@dataclass(frozen=True, slots=True)
class _PendingCompletion:
    """What the completion of a reply needs from its request.

    Attributes:
        request: The request as sent to *inner*.
        batch_size: The separate batch size of the caller's request; None if it has none.
        metadata: None if the completion of the request used no metadata.
    """

    request: InferRequest
    batch_size: int | None
    metadata: ModelMetadata | None


class TargetCodec(Protocol):
    """The codec of a target: which messages of clients it sends as they came."""

    @property
    def whole(self) -> str: ...  # noqa: D102
    def sends_on(self, call: Call[Any], /) -> bool: ...  # noqa: D102


class Complete:
    """Completes requests for the upstream's codec, and replies for the caller's codec.

    Requests get what is in *needs*; replies get what the caller's context needs. A raw binary
    request of Open Inference is always completed. If only one side has a separate batch size, the
    layer converts the shapes. If one side has no BOOL, BF16 or other datatypes, the layer converts
    its substitutes to the declared datatypes.

    Args:
        inner: The service to call; wrapped in a `MetadataCache` for metadata, unless it is one.
        needs: What the upstream's codec requires.
        inference: Handles each InferRequest; None for *inner*.
        metadata: What replies to questions about models; None for *inner*.
        codec: Says which messages *inner* gets as they came, which then need nothing. None where
            tensors are read: no message stays whole then.
    """

    def __init__(
        self,
        inner: Service,
        needs: frozenset[Need],
        *,
        inference: Service | None = None,
        metadata: Service | None = None,
        codec: TargetCodec | None = None,
    ) -> None:
        self._inner = inner
        self._inference = inner if inference is None else inference
        self._needs = needs
        self._codec = codec
        self._whole = None if codec is None else codec.whole
        self._substitutes = substitute_kind(needs)
        self._has_untyped = Need.UNTYPED in needs
        self._reads_replies = self._substitutes is not None or self._has_untyped
        self._has_more_needs = Need.OUTPUTS in needs or Need.BATCHING in needs
        self._has_items = Need.ITEMS in needs
        source = inner if metadata is None else metadata
        self._metadata = source if isinstance(source, MetadataCache) else MetadataCache(source)

    def __call__(self, call: Call[R], /) -> ReplyCoroutine[R]:
        """Call *inner* with the completed request, and return the completed reply.

        Raises:
            InvalidRequest: The metadata do not contain the missing part, or do not match the data.
            UpstreamProtocolError: The reply does not match the model's metadata.
            GatewayError: The required metadata are not available.
        """
        # Each branch has its R; the type system cannot follow an isinstance that far.
        if type(call) is InferRequest:
            return self.handle_inference(call)  # type: ignore[return-value]  # a cast that costs nothing
        if isinstance(call, StreamInferRequest):
            return cast("ReplyCoroutine[R]", self._stream(call))
        return self._control(call) if type(call) in MODEL_CONTROL_CALLS else self._inner(call)

    async def handle_inference(self, call: InferRequest, /) -> InferResponse:  # noqa: C901  # one frame
        """Handle an inference as `__call__` does."""
        origin = call.context.origin
        if origin and (origin.refusal or (origin.whole and self._whole in (None, origin.whole))):
            found = await self._sent_on(call)
            if type(found) is InferResponse:
                return found
            call = cast("InferRequest", found)
        request, metadata, inference = call, None, self._inference
        needs = call.context.needs
        has_more_needs = not needs <= ALL_NEEDS
        if has_more_needs and call.texts is not None:
            return await self._task(call)
        try:
            # Nearly all calls are complete, and so are nearly all replies.
            if (
                has_more_needs
                or self._has_more_needs
                or call.batch_size is not None
                or call.flat_members
                or is_incomplete(call.inputs, ALL_NEEDS)
            ):
                quick = None if has_more_needs else self._quickly_typed(call)
                if quick is None:
                    request, metadata = await self._request(call)
                else:
                    request = quick
                if self._has_items and (request.batch_size or 1) > 1:
                    return await self._of_items(call, request, metadata)
            try:
                reply = await inference(request)
            except errors.SequenceIdTooLarge as error:
                request = await self._without_sequence(request, error)
                reply = await inference(request)
            if not (
                has_more_needs
                or self._reads_replies
                or reply.batch_size is not None
                or reply.flat_members
                or is_incomplete(reply.outputs, needs)
            ):
                return reply
            return await self._reply(_PendingCompletion(request, call.batch_size, metadata), reply)
        except errors.GatewayError as error:
            if error.code in _STALE_METADATA_CODES:
                self._metadata.invalidate_if_stale(call.model)
            if error.code is errors.ErrorCode.UPSTREAM or request is not call:
                await self._check_inputs(request, error)
            raise

    async def _sent_on(self, call: InferRequest) -> InferResponse | InferRequest:
        """Return the reply to a whole message; its tensors are completed if a layer reads them.

        Return the call, no longer whole, where the message must be written anew.

        Raises:
            GatewayError: The refusal of a message that only its own server reads.
        """
        codec = self._codec
        if codec is None or not await run_bounded(codec.sends_on, call):
            return rewritten(call)
        reply = await self._inference(call)
        if Need.TENSORS not in call.context.needs or reply.error is not None:
            return reply
        try:
            completed = await self._reply(_PendingCompletion(call, call.batch_size, None), reply)
        except errors.GatewayError:
            return reply  # nothing tells more of them
        return completed.changed(origin=reply.origin)

    def _quickly_typed(self, call: InferRequest) -> InferRequest | None:
        """Return a call of rows with the types of known metadata; None for what takes more."""
        if self._has_more_needs or call.batch_size is not None or call.flat_members:
            return None
        if call.model is None or not is_untyped(call.inputs):
            return None
        metadata = self._metadata.peek(call.model)
        return None if metadata is None else quickly_typed(call, metadata)

    async def _of_items(
        self, call: InferRequest, request: InferRequest, metadata: ModelMetadata | None
    ) -> InferResponse:
        """Return the reply to a batch, whose items are sent one after the other."""
        context = request.context
        context = context.changed(needs=context.needs - {Need.BATCHING})
        replies = []
        for item in items_of(request.changed(context=context)):
            reply = await self._inference(item)
            replies.append(await self._reply(_PendingCompletion(item, None, metadata), reply))
        pending = _PendingCompletion(request, call.batch_size, metadata)
        return await self._complete_reply(pending, join_replies(replies))

    async def _check_inputs(self, request: InferRequest, error: errors.GatewayError) -> None:
        """Say that an input has the wrong datatype, where a server has failed over it.

        Where a server has refused a request, say that it has other axes than the configuration.

        Raises:
            InvalidRequest: The model declares another datatype, or its server reports other axes.
        """
        if error.code not in {errors.ErrorCode.UPSTREAM, errors.ErrorCode.INVALID_ARGUMENT}:
            return
        metadata = await self._metadata.get_or_none(request.model or ModelRef(""))
        if metadata is None:
            return
        if error.code is errors.ErrorCode.INVALID_ARGUMENT:
            _check_axes(request, metadata, error)
            return
        declared = {one.name: one.datatype for one in metadata.inputs}
        for tensor in request.inputs:
            needed = declared.get(tensor.name)
            if needed is None or tensor.datatype is None or needed is tensor.datatype:
                continue
            raise errors.InvalidRequest(
                f"input {tensor.name!r} has the wrong datatype: it is {tensor.datatype.name}, the "
                f"model needs {needed.name}",
                model=request.model,
            ) from error

    async def _task(self, call: InferRequest) -> InferResponse:
        """Return the reply to a task on texts, which becomes calls of tensors."""
        metadata = await self._get_metadata(call.model or _NAMELESS, _TENSORS_UNKNOWN, _BATCHING)
        return await run_task(call, metadata, self.handle_inference, self._plain_stream)

    async def _task_stream(self, call: InferRequest) -> AsyncIterator[InferResponse]:
        metadata = await self._get_metadata(call.model or _NAMELESS, _TENSORS_UNKNOWN, _BATCHING)
        return await run_stream_task(call, metadata, self.handle_inference, self._plain_stream)

    async def _plain_stream(self, request: InferRequest) -> AsyncIterator[InferResponse]:
        return await self._stream(
            StreamInferRequest(model=request.model, context=request.context, request=request)
        )

    async def _stream(self, call: StreamInferRequest) -> AsyncIterator[InferResponse]:
        if self._codec is not None and await run_bounded(self._codec.sends_on, call):
            return await self._inner(call)
        call = rewritten(call)
        if call.request.texts is not None:
            return await self._task_stream(call.request.changed(context=call.context))
        request, metadata = await self._request(call.request)
        needs = call.context.needs
        completed = call if request is call.request else call.changed(request=request)
        try:
            items = await self._inner(completed)
        except errors.SequenceIdTooLarge as error:
            request = await self._without_sequence(request, error)
            items = await self._inner(call.changed(request=request))
        if (
            needs
            or Need.BATCHING in self._needs
            or Need.FLAT_MEMBERS in self._needs
            or self._reads_replies
        ):
            pending = _PendingCompletion(
                request.with_context(needs=needs), call.request.batch_size, metadata
            )
            items = MappedStream(items, lambda item: self._reply(pending, item))
        return items

    async def _without_sequence(
        self, call: InferRequest, rejected: errors.SequenceIdTooLarge
    ) -> InferRequest:
        """Return *call* without its sequence, which a stateless model ignores.

        Raises:
            SequenceIdTooLarge: The model is stateful, or may be.
        """
        model = call.model or ModelRef("")
        try:
            metadata = await self._metadata(ModelMetadataRequest(model=model, context=_BATCHING))
        except errors.GatewayError:
            raise rejected from None
        if metadata.stateful or metadata.max_batch_size is None:
            raise rejected
        return call.changed(sequence=None)

    async def _control(self, call: Call[R]) -> R:
        try:
            return await self._inner(call)
        finally:
            self._metadata.forget(call.model)

    async def _request(self, call: InferRequest) -> tuple[InferRequest, ModelMetadata | None]:
        """Return the completed request, and the metadata if the completion used them."""
        needs = self._needs
        batching: ModelMetadata | None = None
        if Need.NUMERIC_VERSIONS in call.context.needs:
            call = await self._resolve_version(call)
        if call.flat_members:
            metadata = await self._get_metadata(call.model or ModelRef(""), _MEMBERS_UNKNOWN)
            call = split_flat_members(call, metadata)
        if is_untyped(call.inputs):
            call, batching = await self._typed(call)
        substitutes = substitute_kind(call.context.needs)
        # Keep substitutes that the upstream's codec would send as well.
        if (
            substitutes is not None
            and substitutes is not self._substitutes
            and may_be_substitute(call.inputs, substitutes)
        ):
            declared = await self._metadata.get_or_none(call.model or ModelRef(""))
            call = _restored_inputs(call, declared, widened=substitutes is Need.WIDENED)
        has_batch_size = call.batch_size is not None
        is_raw = is_raw_binary_request(call.inputs)
        incomplete = not has_batch_size and (is_incomplete(call.inputs, needs) or is_raw)
        needs_outputs = Need.OUTPUTS in needs and not call.outputs
        if not (has_batch_size or incomplete or needs_outputs or Need.BATCHING in needs):
            return call, batching
        context = _BATCHING if has_batch_size or is_raw or Need.BATCHING in needs else NO_CONTEXT
        model = call.model or ModelRef("")
        reason = _REQUEST_INCOMPLETE if incomplete or has_batch_size else _TARGET_INCOMPLETE
        metadata = await self._get_metadata(model, reason, context)
        if incomplete:
            call = self._complete_inputs(call, metadata)
        if has_batch_size:
            call = apply_batch_size(call, metadata, whole=Need.BATCHING not in needs)
        elif Need.BATCHING in needs:
            call = split_request(call, metadata)
        if needs_outputs:
            outputs = tuple([RequestedOutput(declared.name) for declared in metadata.outputs])
            call = call.changed(outputs=outputs)
        return call, metadata

    async def _typed(self, call: InferRequest) -> tuple[InferRequest, ModelMetadata | None]:
        """Return the request with datatypes, and the metadata if its item got an axis more."""
        context = NO_CONTEXT if call.batch_size is None else _BATCHING
        found = await self._get_metadata(call.model or ModelRef(""), _UNTYPED, context)
        batching: ModelMetadata | None = None
        if call.batch_size is not None and found.max_batch_size == 0:
            found = batching = await run_bounded(with_batch_axis, call, found)
        return await run_bounded(typed_request, call, found), batching

    async def _resolve_version(self, call: InferRequest) -> InferRequest:
        """Return *call* with the model's version for the caller's numeric version."""
        model = call.model
        if model is None or not model.version:
            return call
        metadata = await self._get_metadata(ModelRef(model.name), _VERSIONS_UNKNOWN)
        version = resolve_version(model.version, metadata.versions)
        if version == model.version:
            return call
        return call.changed(model=ModelRef(model.name, version))

    def _complete_inputs(self, call: InferRequest, metadata: ModelMetadata) -> InferRequest:
        model = call.model or ModelRef("")
        completer = TensorCompleter(
            "input", model, metadata.inputs, bool(metadata.max_batch_size), errors.InvalidRequest
        )
        return call.changed(inputs=completer.complete(call.inputs, self._needs))

    async def _reply(self, pending: _PendingCompletion, reply: InferResponse) -> InferResponse:
        if reply.error is not None:
            return reply
        if reply.flat_members:
            model = pending.request.model or reply.model
            metadata = pending.metadata or await self._get_metadata(model, _MEMBERS_UNKNOWN)
            reply = split_reply_members(pending.request, reply, metadata)
        if self._has_untyped and is_untyped(reply.outputs):
            model = pending.request.model or reply.model
            metadata = pending.metadata or await self._get_metadata(model, _UNTYPED_REPLY)
            reply = await run_bounded(typed_reply, pending.request, reply, metadata)
        substitutes = self._substitutes
        if (
            substitutes is not None
            and substitutes is not substitute_kind(pending.request.context.needs)
            and may_be_substitute(reply.outputs, substitutes)
        ):
            reply = await self._restore_outputs(pending.request, reply)
        reply = await self._complete_reply(pending, reply)
        if len(reply.outputs) > 1 and Need.OUTPUTS in pending.request.context.needs:
            reply = await self._in_requested_order(pending.request, reply)
        return reply

    async def _complete_reply(
        self, pending: _PendingCompletion, reply: InferResponse
    ) -> InferResponse:
        call = pending.request
        needs = call.context.needs
        has_batch_size = reply.batch_size is not None
        incomplete = is_incomplete(reply.outputs, needs)
        if not (has_batch_size or incomplete or Need.BATCHING in needs):
            return reply
        model = call.model or ModelRef("")
        context = _BATCHING if has_batch_size or Need.BATCHING in needs else NO_CONTEXT
        metadata = pending.metadata or await self._get_metadata(model, _REPLY_INCOMPLETE, context)
        if has_batch_size:
            reply = merge_batch_size(reply, metadata)
        if incomplete:
            declared = _requested_outputs(call, metadata)
            completer = TensorCompleter(
                "output", model, declared, False, errors.UpstreamProtocolError
            )
            reply = reply.changed(outputs=completer.complete(reply.outputs, needs))
        if Need.BATCHING in needs:
            reply = split_reply(reply, metadata, pending.batch_size)
        return reply

    async def _restore_outputs(self, call: InferRequest, reply: InferResponse) -> InferResponse:
        metadata = await self._metadata.get_or_none(call.model or ModelRef(""))
        if metadata is None:
            return reply
        declared = _requested_outputs(call, metadata)
        model = call.model or ModelRef("")
        widened = self._substitutes is Need.WIDENED
        restorer = DatatypeRestorer(
            "output", model, declared, errors.UpstreamProtocolError, widened
        )
        outputs = restorer.replace(reply.outputs)
        return reply if outputs is reply.outputs else reply.changed(outputs=outputs)

    async def _in_requested_order(self, call: InferRequest, reply: InferResponse) -> InferResponse:
        """Return *reply* with its outputs as requested, or else as the model declares them."""
        names = [output.name for output in call.outputs]
        if not names:
            metadata = await self._get_metadata(call.model or ModelRef(""), _ORDER_UNKNOWN)
            names = [declared.name for declared in metadata.outputs]
        outputs = in_order(reply.outputs, names)
        return reply if outputs is reply.outputs else reply.changed(outputs=outputs)

    async def _get_metadata(
        self, model: ModelRef, reason: str, context: Context = NO_CONTEXT
    ) -> ModelMetadata:
        try:
            return await self._metadata(ModelMetadataRequest(model=model, context=context))
        except errors.GatewayError as error:
            if error.code is errors.ErrorCode.NOT_FOUND:
                if error.origin is not None and repr(model.name) in error.message:
                    raise
                text = f"unknown model {str(model)!r}"
                raise type(error)(f"{text}: {error.message}", model=model) from error
            raise type(error)(
                f"{error.message}; {reason}, and the metadata of model {str(model)!r} are "
                "unavailable",
                model=model,
            ) from error


def _check_axes(request: InferRequest, metadata: ModelMetadata, error: errors.GatewayError) -> None:
    """Raise that an input has other axes than the server reports, which refused it with *error*."""
    reported = {one.name: one.shape for one in metadata.reported}
    for tensor in request.inputs:
        shape, needed = tensor.shape, reported.get(tensor.name)
        if shape is not None and needed is not None and len(shape) != len(needed):
            found = errors.InvalidRequest(
                f"input {tensor.name!r} has shape {list(shape)} by models.NAME.signature, the "
                f"model of the server needs {list(needed)}: expected a signature with its axes: "
                f"{error.message}",
                model=request.model,
            )
            found.origin = error.origin  # the server has refused it, not the gateway
            raise found from error


def _restored_inputs(
    call: InferRequest, metadata: ModelMetadata | None, *, widened: bool
) -> InferRequest:
    """Return *call* with the datatypes that the model declares for its inputs."""
    if metadata is None:
        return call
    model = call.model or ModelRef("")
    restorer = DatatypeRestorer("input", model, metadata.inputs, errors.InvalidRequest, widened)
    inputs = restorer.replace(call.inputs)
    return call if inputs is call.inputs else call.changed(inputs=inputs)


def _requested_outputs(call: InferRequest, metadata: ModelMetadata) -> tuple[TensorMetadata, ...]:
    """Return the metadata of the requested outputs, in the order of a reply without names."""
    if not call.outputs:
        return metadata.outputs
    by_name = {output.name: output for output in metadata.outputs}
    return tuple(
        by_name.get(output.name, TensorMetadata(output.name, None, None)) for output in call.outputs
    )


PLACEHOLDER_VERSION: Final = "1"


def resolve_version(version: str, versions: Sequence[str]) -> str:
    """Return the model's version for the caller's numeric version; "" for any.

    Metadata for a caller whose protocol only has numeric versions contain 1 for a model without
    versions, and for a version that is not a number.  Source: docs/protocols/tensorrt-v1.md, "12.
    Versions, ids and sequences".

    Args:
        version: The caller's version.
        versions: The versions of the model.
    """
    if version != PLACEHOLDER_VERSION or version in versions:
        return version
    if not versions:
        return ""
    return next((one for one in versions if not one.isdecimal()), version)
