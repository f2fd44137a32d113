"""Every call that the gateway handles, each typed by its reply.

Inference, metadata and health are all calls and follow the same path. Calls are frozen: a layer
that needs a different call creates one with `changed`. A call may be sent twice.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final, Generic, Self, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from gateway.accelerator import accelerated
from gateway.ir.context import (
    NO_CONTEXT,
    CallSequence,
    Context,
    IgnoresOrigin,
    Members,
    Metadata,
    ModelRef,
    Need,
    Origin,
    Parameters,
)
from gateway.ir.errors import GatewayError
from gateway.ir.metadata import (
    ModelConfiguration,
    ModelMetadata,
    RepositoryEntry,
    ServerMetadata,
    ServerStatus,
    SharedRegion,
    Trend,
)
from gateway.ir.statistics import ModelStatistics
from gateway.ir.tensors.data import SharedMemoryData
from gateway.ir.tensors.rows import IndependentRows
from gateway.ir.tensors.tensor import RequestedOutput, Tensor
from gateway.ir.text_tasks import TextTask

R = TypeVar("R")

LoadParameters = Mapping[str, bool | int | str | bytes]
TraceSettings = Mapping[str, tuple[str, ...]]
LogSettings = Mapping[str, bool | int | str]


class Call(Struct, Generic[R], frozen=True, kw_only=True):
    """A call whose reply is an R.

    Attributes:
        model: None for a call to the server itself.
        context: The caller, the deadline, and what the reply must contain.
    """

    model: ModelRef | None = None
    context: Context = NO_CONTEXT

    def changed(self, **fields: Any) -> Self:
        """Return a copy with *fields* changed and without the wire origin.

        The origin no longer matches the changed call, and codecs forward an origin unchanged.  A
        whole message and what the common form lacks stay where only the model is another one, which
        codecs write into them, and a refusal stays.
        """
        context = fields.get("context", self.context)
        origin = context.origin
        if origin is not None and not (
            (origin.whole or origin.unknown) and fields.keys() <= _ROUTED
        ):
            kept = None if origin.refusal is None else origin.rewritten()
            fields["context"] = replace(context, origin=kept)
        return replace(self, **fields)

    def with_context(self, **fields: Any) -> Self:
        """Return a copy with *fields* of its context changed; keeps the origin.

        Only for fields that are not part of the wire form: deadline, request id, needs, origin.
        """
        return replace(self, context=replace(self.context, **fields))

    def with_deadline(self, deadline: float | None) -> Self:
        """Return a copy with another deadline; keeps the origin."""
        return call_with_deadline(self, deadline)

    def with_metadata(self, metadata: Metadata) -> Self:
        """Return a copy with other metadata; keeps the origin."""
        return call_with_metadata(self, metadata)


C = TypeVar("C", bound=Call[Any])
_ROUTED = frozenset({"model", "context"})


@accelerated
def call_with_deadline(call: C, deadline: float | None) -> C:
    """Return a copy of *call* with another deadline; keeps the origin."""
    return replace(call, context=replace(call.context, deadline=deadline))


@accelerated
def call_with_metadata(call: C, metadata: Metadata) -> C:
    """Return a copy of *call* with other metadata; keeps the origin."""
    return replace(call, context=replace(call.context, metadata=metadata))


class ServerLiveRequest(Call[bool], frozen=True, kw_only=True):
    """Whether the server is live."""


class ServerReadyRequest(Call[bool], frozen=True, kw_only=True):
    """Whether the server accepts inference requests.

    `model` is None even for the readiness of one model, which no model is asked for.

    Attributes:
        about: The only model that must be ready, as far as is known; "" for the default model.
            None for all routes.
    """

    about: ModelRef | None = None


class ServerMetadataRequest(Call[ServerMetadata], frozen=True, kw_only=True):
    """The server's name, version and extensions."""


class ModelReadyRequest(Call[bool], frozen=True, kw_only=True):
    """Whether the model accepts inference requests."""


class ModelMetadataRequest(Call[ModelMetadata], frozen=True, kw_only=True):
    """The model's inputs and outputs.

    The reply contains the maximum batch size if the context's needs include BATCHING.
    """


class ModelConfigRequest(Call[ModelConfiguration], frozen=True, kw_only=True):
    """The model's configuration."""


class RepositoryIndexRequest(Call[tuple[RepositoryEntry, ...]], frozen=True, kw_only=True):
    """The models of the repository.

    Attributes:
        ready_only: List only models that are ready.
    """

    ready_only: bool = False


class ServerStatusRequest(Call[ServerStatus], frozen=True, kw_only=True):
    """The state of the server and of its models.

    `model` is None even for the status of one model: the reply also describes the server.

    Attributes:
        about: The only model to report; None for all models.
        trends: Include recent measurements.
    """

    about: ModelRef | None = None
    trends: bool = False


class ServerTrendsRequest(Call[Mapping[str, Trend]], frozen=True, kw_only=True):
    """Recent measurements, by name."""


class ModelLoadRequest(Call[None], frozen=True, kw_only=True):
    """Load or reload the model; the reply comes when it is loaded.

    Attributes:
        parameters: "config" is a configuration in JSON, and "file:PATH" the contents of a file;
            both replace the repository's. The server defines any others.
    """

    parameters: LoadParameters = field(default_factory=dict)


class ModelUnloadRequest(Call[None], frozen=True, kw_only=True):
    """Unload the model; it is not an error if the model is not loaded.

    Attributes:
        dependents: Also unload the models that were loaded with it, such as an ensemble's.
    """

    dependents: bool = False


MODEL_CONTROL_CALLS = frozenset({ModelLoadRequest, ModelUnloadRequest})
"""Calls after which the same name may refer to a different model."""


class ModelStatisticsRequest(Call[tuple[ModelStatistics, ...]], frozen=True, kw_only=True):
    """Usage statistics of the model's versions, or of all models.

    Attributes:
        own: Use the gateway's statistics instead of the target's.
    """

    own: bool = False


class TraceSettingRequest(Call[TraceSettings], frozen=True, kw_only=True):
    """Change or read the target's trace settings, of one model or of all.

    Attributes:
        changes: Settings to change; an empty value restores the setting for all models.
    """

    changes: TraceSettings = field(default_factory=dict)


class LogSettingsRequest(Call[LogSettings], frozen=True, kw_only=True):
    """Change or read the log settings.

    Attributes:
        changes: Settings to change.
        own: Use the gateway's settings instead of its upstreams'.
    """

    changes: LogSettings = field(default_factory=dict)
    own: bool = False


class ServerSwitchRequest(Call[None], frozen=True, kw_only=True):
    """Set the readiness that the server reports; inference continues either way.

    Attributes:
        is_online: Report the readiness of the models; otherwise report not ready.
        is_allowed: Whether the caller may change the readiness; otherwise it may only confirm it.
    """

    is_online: bool
    is_allowed: bool = True


class OpaqueCall(Call[Origin], frozen=True, kw_only=True):
    """A call without an IR form; forwarded only between endpoints of the same codec.

    Attributes:
        message: The wire form, and the only codec that can read it. The reply has the same form.
    """

    message: Origin

    @property
    def only_asks(self) -> bool:
        """Whether the request has neither a body nor a query that could hold tensors."""
        wire = self.message.wire
        return getattr(wire, "method", "") in _ASKING and not wire.query


_ASKING = frozenset({"GET", "HEAD"})


class SharedRegisterRequest(Call[None], frozen=True, kw_only=True):
    """Register a region of shared memory, so that requests can refer to it by name."""

    region: SharedRegion


class SharedUnregisterRequest(Call[None], frozen=True, kw_only=True):
    """Unregister a region; it is not an error if the region is not registered.

    Attributes:
        region: Its name; "" for all regions.
        is_cuda: True for CUDA regions, False for system memory; None where the protocol has one
            list.
    """

    region: str = ""
    is_cuda: bool | None = None


class SharedStatusRequest(Call[tuple[SharedRegion, ...]], frozen=True, kw_only=True):
    """The registered regions of shared memory.

    Attributes:
        region: The region to report; "" for all regions. The reply may contain others too.
        is_cuda: True for CUDA regions, False for system memory; None where the protocol has one
            list.
    """

    region: str = ""
    is_cuda: bool | None = None


class InferResponse(IgnoresOrigin, frozen=True, kw_only=True):
    """The reply to an inference.

    Attributes:
        model: The model's name and version, by its server.
        id: Echo of the request's id; "" for none.
        outputs: In the responding server's order.
        parameters: Model-specific parameters.
        is_final: False if more replies follow in a stream.
        batch_size: The size of the batch axis; None if unknown.
        error: The error of this reply of a stream, which then has no outputs; more may follow.
        flat_members: Members of Triton's generate extension: outputs where the model has an output
            of the name, else parameters. `Complete` splits them.
        has_nonfinite_words: The server that replied writes NaN and infinities into JSON as words,
            and so may a frontend. Like `origin` it is no part of the value.
        has_null_infinities: The same about infinities, for which it writes `null`.
        has_half_in_json: The same about FP16, which it writes as numbers.
    """

    model: ModelRef
    outputs: tuple[Tensor, ...]
    id: str = ""
    parameters: Parameters = field(default_factory=dict)
    is_final: bool = True
    batch_size: int | None = None
    error: GatewayError | None = None
    flat_members: Members = field(default_factory=dict)
    has_nonfinite_words: bool = False
    has_null_infinities: bool = False
    has_half_in_json: bool = False
    origin: Origin | None = None

    @property
    def is_end_mark(self) -> bool:
        """Whether it only marks the end of a stream."""
        return self.is_final and not self.outputs and self.error is None

    def changed(self, **fields: Any) -> InferResponse:
        """Return a copy with *fields* changed; the wire origin is left out as in `Call.changed`."""
        origin = self.origin
        is_kept = origin is not None and (origin.whole or origin.unknown)
        if not is_kept or not fields.keys() <= _ROUTED:
            fields.setdefault("origin", None)
        return replace(self, **fields)


class InferRequest(Call[InferResponse], frozen=True, kw_only=True):
    """One inference.

    Attributes:
        inputs: In the caller's order.
        outputs: Requested outputs; empty for all outputs.
        id: The caller's request id; "" for none.
        sequence: None outside a sequence.
        priority: 0 for the model's default; 1 is the highest.
        timeout_us: Queue timeout requested by the caller, microseconds; None for none.
        parameters: Parameters of the caller, without reserved keys.
        flat_members: Members of Triton's generate extension: inputs where the model has an input
            of that name, else parameters. A tuple is a list of values. `Complete` splits them.
        batch_size: None if shapes include the batch axis. Otherwise shapes are those of one item;
            it is 1 for a model that does not batch.
        texts: The task, where inputs are texts of it and have no names; its call has `Need.TEXTS`.
        rows: What is known of rows that do not depend on one another; None if they may depend.
    """

    inputs: tuple[Tensor, ...] = ()
    outputs: tuple[RequestedOutput, ...] = ()
    id: str = ""
    sequence: CallSequence | None = None
    priority: int = 0
    timeout_us: int | None = None
    parameters: Parameters = field(default_factory=dict)
    flat_members: Members = field(default_factory=dict)
    batch_size: int | None = None
    texts: TextTask | None = None
    rows: IndependentRows | None = None

    @property
    def shares_memory(self) -> bool:
        """Whether an input or requested output is in shared memory.

        Such requests can be equal and still refer to different data.
        """
        # On the path of every inference: plain loops take a third of the time of `any`.
        for tensor in self.inputs:
            if type(tensor.data) is SharedMemoryData:
                return True
        for output in self.outputs:  # noqa: SIM110
            if output.shared is not None:
                return True
        return False

    @property
    def has_unknown(self) -> bool:
        """Whether its message has what the common form lacks: such requests may differ by that."""
        origin = self.context.origin
        return origin is not None and origin.unknown != b""


class StreamInferRequest(Call[AsyncIterator[InferResponse]], frozen=True, kw_only=True):
    """One inference with any number of replies."""

    request: InferRequest


def with_model(call: C, model: ModelRef) -> C:
    """Return *call* for *model*, and so the inference of a stream; a whole message stays."""
    found = call.changed(model=model)
    if isinstance(found, StreamInferRequest):
        return replace(found, request=found.request.changed(model=model))
    return found


def rewritten(call: C) -> C:
    """Return *call* without its whole message, because a layer reads or changes its tensors.

    Raises:
        GatewayError: The refusal of a message that only its own server reads.
    """
    origin = call.context.origin
    if origin is None or not (origin.whole or origin.refusal is not None):
        return call
    if origin.refusal is not None:
        raise origin.refusal.copy()
    return call.with_context(origin=origin.rewritten())


def with_read_tensors(call: C) -> C:
    """Return *call* with complete tensors in its reply, also where messages go as they came."""
    origin = call.context.origin
    if origin is None or not origin.whole or origin.refusal is not None:
        return call
    return call.with_context(needs=call.context.needs | _TENSORS)


_TENSORS: Final = frozenset({Need.TENSORS})


def words_of(call: Call[Any], /) -> str:
    """Return what *call* asks for, in words for clients: "model metadata", "infer"."""
    name = type(call).__name__.removesuffix("Request").removesuffix("Call")
    return _CAPITAL.sub(r" \g<0>", name).strip().lower()


_CAPITAL = re.compile("[A-Z]")


def inference_of(call: Call[Any], /) -> InferRequest | None:
    """Return the inference of *call*, streamed or not; None for other calls."""
    # Several times on the path of every call: an exact type check takes a third of isinstance.
    if type(call) is InferRequest:
        return call
    return call.request if type(call) is StreamInferRequest else None


def sequence_of(call: Call[Any], /) -> CallSequence | None:
    """Return the sequence of *call*; None outside a sequence."""
    request = inference_of(call)
    return None if request is None else request.sequence
