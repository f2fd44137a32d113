"""Classify: computes the best classes of an output, for targets without classification.

The caller requests classes, and the target returns the complete output.
"""

from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import suppress
from typing import ClassVar, TypeVar, cast

import numpy as np
import numpy.typing as npt

from gateway.concurrency.offload import run_bounded
from gateway.ir.bodies.streams import MappedStream
from gateway.ir.calls import (
    MODEL_CONTROL_CALLS,
    Call,
    InferRequest,
    InferResponse,
    StreamInferRequest,
)
from gateway.ir.context import Context, ModelRef, Need
from gateway.ir.errors import InvalidRequest, TooLarge, Unsupported, UpstreamProtocolError
from gateway.ir.metadata import ModelMetadata
from gateway.ir.tensors.data import ItemsData
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import RequestedOutput, Tensor, as_raw
from gateway.ir.work import charge
from gateway.model_info.metadata_cache import MetadataCache
from gateway.service import ReplyCoroutine, Service

R = TypeVar("R")

# Maximum classes of one output, for all items of a batch together.
_MAX_CLASSES = 100_000
# Items with more values are partitioned before they are sorted.
_ROW = 1024
# Number of values that are sorted at a time.
_BLOCK = 1 << 16
# Work units for each compared value.
_VALUE = 1 / 16

# Includes the configuration, which names the outputs with labels.
_BATCHING = Context(needs=frozenset({Need.BATCHING}))


class _CannotClassify(Exception):
    """The target does not support classification."""


# Triton divides by the size of an element, which is 0 for BYTES (server issue 8267, fixed in 2.60).
_WITHOUT_CLASSES = frozenset({Datatype.BYTES, Datatype.BOOL})


class Classify:
    """Handles requests for classes, and computes them if the target cannot.

    The target computes classes only for outputs whose datatype is known and supports them. Other
    replies must have datatypes and shapes; the caller's needs contain them, and `Complete` is
    inside.

    Args:
        inner: The service to call; wrapped in a `MetadataCache` for metadata, unless it is one.
        inference: Handles each InferRequest; None for *inner*.
        by_target: Whether targets of this kind compute classes. None: some do, and the others raise
            Unsupported before the model runs.
        ends_at_empty: Whether the target ends at a request for classes of an output without
            elements. It then computes no classes of outputs that may be empty.

    Attributes:
        is_passed_by_plain: A plain inference requests no classes; see `Entries`.
    """

    is_passed_by_plain: ClassVar[bool] = True

    def __init__(
        self,
        inner: Service,
        *,
        inference: Service | None = None,
        by_target: bool | None = False,
        ends_at_empty: Callable[[], bool] = bool,
    ) -> None:
        self._inner = inner
        self._inference = inner if inference is None else inference
        self._by_target = by_target
        self._ends_at_empty = ends_at_empty
        self._metadata = inner if isinstance(inner, MetadataCache) else MetadataCache(inner)

    def __call__(self, call: Call[R], /) -> ReplyCoroutine[R]:
        """Call *inner*, and compute the requested classes.

        Raises:
            InvalidRequest: The datatype of an output does not support classes.
            UpstreamProtocolError: The reply cannot be classified.
        """
        # Each branch has its R; the type system cannot follow an isinstance that far.
        if type(call) is InferRequest:
            return self.handle_inference(call)  # type: ignore[return-value]  # a cast that costs nothing
        if isinstance(call, StreamInferRequest) and _requests_classes(call.request):
            return cast("ReplyCoroutine[R]", self._stream(call))
        return self._control(call) if type(call) in MODEL_CONTROL_CALLS else self._inner(call)

    def handle_inference(self, call: InferRequest, /) -> ReplyCoroutine[InferResponse]:
        """Handle an inference as `__call__` does."""
        if not call.outputs or not _requests_classes(call):
            inference = self._inference
            return inference(call)
        return self._infer(call)

    async def _infer(self, call: InferRequest) -> InferResponse:
        if await self._use_target(call):
            with suppress(_CannotClassify):
                return await self._call_target(call)
        return await self._response(call, await self._inference(_plain(call)))

    async def _stream(self, call: StreamInferRequest) -> AsyncIterator[InferResponse]:
        if await self._use_target(call.request):
            with suppress(_CannotClassify):
                return await self._call_target(call)
        request = call.request.with_context(needs=call.context.needs)
        items = await self._inner(call.changed(request=_plain(call.request)))
        return MappedStream(items, lambda item: self._response(request, item))

    async def _control(self, call: Call[R]) -> R:
        try:
            return await self._inner(call)
        finally:
            self._metadata.forget(call.model)

    async def _use_target(self, call: InferRequest) -> bool:
        """Return whether the target computes the classes.

        It does not if the gateway's configuration has labels, because the target has others. A
        caller with a separate batch size gets values as numbers, and the text of the target rounds
        them to six decimals. For such callers, some targets compute classes only of outputs for
        which they have labels.

        Raises:
            InvalidRequest: The datatype of an output does not support classes.
        """
        if self._by_target is False:
            return False
        has_batch_size = Need.BATCHING in call.context.needs
        ends_at_empty = self._ends_at_empty()
        model = call.model or ModelRef("")
        metadata = await self._metadata.get_or_none(
            model, batching=(has_batch_size or ends_at_empty) and not self._by_target
        )
        if metadata is None:
            return False
        datatypes = {output.name: output.datatype for output in metadata.outputs}
        names = [output.name for output in call.outputs if output.classes]
        for name in names:
            datatype = datatypes.get(name)
            if datatype in _WITHOUT_CLASSES:
                raise _no_classes(name, datatype)
        if any(datatypes.get(name) is None for name in names):
            return False
        if self._by_target:
            return True
        may_be_empty = ends_at_empty and _may_be_empty(call, metadata, names)
        if may_be_empty or not metadata.labels.keys().isdisjoint(names):
            return False
        return not has_batch_size or not metadata.labelled.isdisjoint(names)

    async def _call_target(self, call: Call[R]) -> R:
        try:
            return await self._inner(call)
        except Unsupported as error:
            if error.origin is not None:  # the target's own error, about the complete request
                raise
            raise _CannotClassify from error

    async def _response(self, call: InferRequest, reply: InferResponse) -> InferResponse:
        model = call.model or ModelRef("")
        # Without metadata, the output is a single list of values without labels.
        batching = self._by_target is None and self._ends_at_empty()
        found = await self._metadata.get_or_none(model, batching=batching)
        metadata = found or ModelMetadata(name=model.name)
        return await run_bounded(_classify, call, reply, metadata)


def _classify(call: InferRequest, reply: InferResponse, metadata: ModelMetadata) -> InferResponse:
    counts = {output.name: output.classes for output in call.outputs if output.classes}
    outputs = tuple(
        [
            _classify_output(tensor, counts[tensor.name], reply.batch_size, metadata)
            if tensor.name in counts
            else tensor
            for tensor in reply.outputs
        ]
    )
    return reply.changed(outputs=outputs)


def _may_be_empty(call: InferRequest, metadata: ModelMetadata, names: Collection[str]) -> bool:
    """Return whether an output of *names* may have no elements.

    An output of variable shape may be empty. If the target has labels for it, it counts as empty
    only if an input is empty, because only the target has the labels.
    """
    has_empty_input = any(0 in (tensor.shape or ()) for tensor in call.inputs)
    start = 1 if metadata.supports_batching else 0
    return any(
        (output.shape is None or any(size < 1 for size in output.shape[start:]))
        and (has_empty_input or output.name not in metadata.labelled)
        for output in metadata.outputs
        if output.name in names
    )


def _requests_classes(call: InferRequest) -> bool:
    for output in call.outputs:  # noqa: SIM110  # on the path of every inference
        if output.classes:
            return True
    return False


def _plain(call: InferRequest) -> InferRequest:
    outputs = tuple(
        [RequestedOutput(one.name, 0, one.parameters, one.shared) for one in call.outputs]
    )
    return call.changed(outputs=outputs)


def _classify_output(
    tensor: Tensor, count: int, batch_size: int | None, metadata: ModelMetadata
) -> Tensor:
    labels = metadata.labels.get(tensor.name, ())
    if batch_size is not None:
        items = classes(tensor, count, batch_size, labels)
        return Tensor(tensor.name, Datatype.BYTES, (len(items) // batch_size,), ItemsData(items))
    if not metadata.supports_batching or not tensor.shape:
        items = classes(tensor, count, 1, labels)
        return Tensor(tensor.name, Datatype.BYTES, (len(items),), ItemsData(items))
    size = tensor.shape[0]
    items = classes(tensor, count, size, labels)
    per_item = len(items) // size if size else 0
    return Tensor(tensor.name, Datatype.BYTES, (size, per_item), ItemsData(items))


def classes(tensor: Tensor, count: int, batch_size: int, labels: Sequence[str]) -> list[bytes]:
    """Return the best classes of each item of a batch, best first, as "value:index:label".

    Equal values are in the order of their indices, and NaN is last. Without a label, the element is
    "value:index". If there are fewer than *count* values, all are returned.

    Raises:
        InvalidRequest: The datatype is not an integer type, FP32 or FP64.
        TooLarge: The result would have too many classes.
        UpstreamProtocolError: The number of values is not a multiple of the batch size.

    Source: docs/protocols/open-inference.md, "12. Classification"; docs/protocols/tensorrt-v1.md,
    "13. Classification".
    """
    datatype = tensor.datatype
    if datatype is None or not (datatype.is_integer or datatype in (Datatype.FP32, Datatype.FP64)):
        raise _no_classes(tensor.name, datatype)
    values = np.frombuffer(as_raw(tensor), datatype.numpy_dtype)
    if not (batch_size and values.size):
        return []
    if values.size % batch_size:
        raise UpstreamProtocolError(
            f"output {tensor.name!r} has {values.size} elements, which is not a multiple of the "
            f"batch size {batch_size}"
        )
    items = values.reshape(batch_size, -1)
    count = min(count, items.shape[1])
    if count * batch_size > _MAX_CLASSES:
        raise TooLarge(
            f"output {tensor.name!r} would have {count} classes for each of {batch_size} items, "
            f"at most {_MAX_CLASSES} are allowed in total",
            limit="classes",
        )
    charge(values.size * _VALUE + 2 * count * batch_size)
    if items.shape[1] > _ROW:
        return [text for item in items for text in _texts(item, _best(item, count), labels)]
    texts: list[bytes] = []
    step = _BLOCK // max(1, items.shape[1])
    for start in range(0, batch_size, step):
        block = items[start : start + step]
        for item, order in zip(block, _best_of_rows(block, count), strict=True):
            texts += _texts(item, order, labels)
    return texts


def _no_classes(name: str, datatype: Datatype | None) -> InvalidRequest:
    found = "unknown" if datatype is None else datatype.name
    return InvalidRequest(f"output {name!r} is {found}; classes need an integer type, FP32 or FP64")


def _best(item: npt.NDArray[np.generic], count: int) -> npt.NDArray[np.intp]:
    """Return the indices of the *count* greatest values; sorts only these."""
    ranked = _ranked(item)
    if count < ranked.size:
        least = np.partition(ranked, ranked.size - count)[ranked.size - count]
        better = np.flatnonzero(ranked > least)
        equal = np.flatnonzero(ranked == least)[: count - better.size]
        indices = np.sort(np.concatenate((better, equal)))
    else:
        indices = np.arange(ranked.size)
    return cast("npt.NDArray[np.intp]", indices[_best_of_rows(ranked[indices][None], count)[0]])


def _best_of_rows(items: npt.NDArray[np.generic], count: int) -> npt.NDArray[np.intp]:
    """Return the indices of the *count* greatest values of each row, greatest first."""
    ranked = _ranked(items)
    # Sort in reverse, so that equal values keep the order of their indices.
    order = ranked.shape[1] - 1 - np.argsort(ranked[:, ::-1], axis=1, kind="stable")
    return cast("npt.NDArray[np.intp]", order[:, ::-1][:, :count])


def _ranked(values: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    """Return *values* with NaN replaced, so that it sorts last."""
    if values.dtype.kind != "f":
        return values
    ranked: npt.NDArray[np.generic] = np.nan_to_num(
        values, nan=-np.inf, posinf=np.inf, neginf=-np.inf
    )
    return ranked


def _texts(
    item: npt.NDArray[np.generic], order: npt.NDArray[np.intp], labels: Sequence[str]
) -> list[bytes]:
    return [
        _element(value, index, labels)
        for value, index in zip(item[order].tolist(), order.tolist(), strict=True)
    ]


def _element(value: float, index: int, labels: Sequence[str]) -> bytes:
    # All digits of the value: clients can round them.
    text = f"{value!r}:{index}"
    label = labels[index] if index < len(labels) else ""
    return (f"{text}:{label}" if label else text).encode("utf-8", "replace")
