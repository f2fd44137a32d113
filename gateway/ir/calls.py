"""Every question that can be asked, each typed by its answer.

Inference, metadata and health are all calls and take the same path. Calls are frozen: a layer
that wants another one makes it with `changed`, and sending one twice is safe.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any, Generic, Self, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from gateway.ir.context import (
    NO_CONTEXT,
    Context,
    IgnoresOrigin,
    Members,
    Metadata,
    ModelRef,
    Origin,
    Parameters,
    Sequence,
)
from gateway.ir.data import SharedMemoryData
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
from gateway.ir.tensor import RequestedOutput, Tensor

R = TypeVar("R")

LoadParameters = Mapping[str, bool | int | str | bytes]
TraceSettings = Mapping[str, tuple[str, ...]]
LogSettings = Mapping[str, bool | int | str]


class Call(Struct, Generic[R], frozen=True, kw_only=True):
    """A question whose answer is an R.

    Attributes:
        model: None when the question is to the server.
        context: Who asks, until when, and what the answer needs.
    """

    model: ModelRef | None = None
    context: Context = NO_CONTEXT

    def changed(self, **fields: Any) -> Self:
        """Return a copy with *fields* changed and the wire origin dropped.

        The origin goes because it no longer says what the call says: a codec that forwards
        unchanged bytes must not find them.
        """
        context = fields.get("context", self.context)
        if context.origin is not None:
            fields["context"] = replace(context, origin=None)
        return replace(self, **fields)

    def with_context(self, **fields: Any) -> Self:
        """Return a copy with *fields* of its context changed; the origin stays.

        For what the wire form does not hold: deadline, request id, needs, origin.
        """
        return replace(self, context=replace(self.context, **fields))

    # The same for what every call is given, at half the cost.

    def with_deadline(self, deadline: float | None) -> Self:
        """Return a copy with another deadline; the origin stays."""
        return replace(self, context=replace(self.context, deadline=deadline))

    def with_metadata(self, metadata: Metadata) -> Self:
        """Return a copy with other metadata; the origin stays."""
        return replace(self, context=replace(self.context, metadata=metadata))


class ServerLiveRequest(Call[bool], frozen=True, kw_only=True):
    """Is the server up?"""


class ServerReadyRequest(Call[bool], frozen=True, kw_only=True):
    """Can the server take inference requests?"""


class ServerMetadataRequest(Call[ServerMetadata], frozen=True, kw_only=True):
    """Who is the server?"""


class ModelReadyRequest(Call[bool], frozen=True, kw_only=True):
    """Can the model take inference requests?"""


class ModelMetadataRequest(Call[ModelMetadata], frozen=True, kw_only=True):
    """What are the model's inputs and outputs?

    Whether it batches, and how much, is sought out where the context's needs name BATCHING.
    """


class ModelConfigRequest(Call[ModelConfiguration], frozen=True, kw_only=True):
    """How is the model set up?"""


class RepositoryIndexRequest(Call[tuple[RepositoryEntry, ...]], frozen=True, kw_only=True):
    """Which models are there?

    Attributes:
        ready_only: Leave out models that are not ready.
    """

    ready_only: bool = False


class ServerStatusRequest(Call[ServerStatus], frozen=True, kw_only=True):
    """How is the server, and what do its models look like?

    To the server even where it is about one model: only the server knows the rest of the answer.

    Attributes:
        about: The one model to tell of; None for all of them.
        trends: Tell what was measured lately as well.
    """

    about: ModelRef | None = None
    trends: bool = False


class ServerTrendsRequest(Call[Mapping[str, Trend]], frozen=True, kw_only=True):
    """What was measured lately, by name?"""


class ModelLoadRequest(Call[None], frozen=True, kw_only=True):
    """Load the model, or load it again; answered when that is done.

    Attributes:
        parameters: Of the loading: "config", a configuration instead of the repository's, as text;
            "file:PATH", contents of a file instead of the repository's; others the server's own.
    """

    parameters: LoadParameters = field(default_factory=dict)


class ModelUnloadRequest(Call[None], frozen=True, kw_only=True):
    """Unload the model; one that is not loaded is no error.

    Attributes:
        dependents: Unload also the models that it was loaded with, as an ensemble's.
    """

    dependents: bool = False


MODEL_CONTROL_CALLS = frozenset({ModelLoadRequest, ModelUnloadRequest})
"""After these a model may be another one under the same name."""


class ModelStatisticsRequest(Call[tuple[ModelStatistics, ...]], frozen=True, kw_only=True):
    """How much have the model's versions been used; without a model, all models'?

    Attributes:
        own: As the gateway has seen it; else as the target has counted.
    """

    own: bool = False


class TraceSettingRequest(Call[TraceSettings], frozen=True, kw_only=True):
    """What of the model's requests, or of all, does the target trace from now on?

    Attributes:
        changes: Settings to change; an empty one goes back to what holds for all models.
    """

    changes: TraceSettings = field(default_factory=dict)


class LogSettingsRequest(Call[LogSettings], frozen=True, kw_only=True):
    """What is logged from now on?

    Attributes:
        changes: Settings to change.
        own: By the gateway; else by its upstreams.
    """

    changes: LogSettings = field(default_factory=dict)
    own: bool = False


class ServerSwitchRequest(Call[None], frozen=True, kw_only=True):
    """Say from now on that the server is ready, or that it is not; inference goes on either way.

    Attributes:
        online: Ready as far as its models are; else not ready.
        allowed: The caller may change it; otherwise it may only ask for what is so already.
    """

    online: bool
    allowed: bool = True


class OpaqueCall(Call[Origin], frozen=True, kw_only=True):
    """A question that is not modelled: it passes between like and like, and nowhere else.

    Attributes:
        message: The wire form, and the codec that alone may look inside; so is the answer.
    """

    message: Origin


class SharedRegisterRequest(Call[None], frozen=True, kw_only=True):
    """Let requests refer to this region of shared memory by its name."""

    region: SharedRegion


class SharedUnregisterRequest(Call[None], frozen=True, kw_only=True):
    """Forget a region; one that is not known is no error.

    Attributes:
        region: Its name; "" for all of them.
        cuda: Of CUDA's regions, or of system memory's; None where the protocol has one list.
    """

    region: str = ""
    cuda: bool | None = None


class SharedStatusRequest(Call[tuple[SharedRegion, ...]], frozen=True, kw_only=True):
    """Which regions of shared memory are registered?

    Attributes:
        region: The one to tell of; "" for all of them. The answer may hold others too.
        cuda: Of CUDA's, or of system memory's; None where the protocol has one list.
    """

    region: str = ""
    cuda: bool | None = None


class InferResponse(IgnoresOrigin, frozen=True, kw_only=True):
    """The answer to an inference.

    Attributes:
        model: As the answering server names it.
        id: Echo of the request's id; "" for none.
        outputs: In the answering server's order.
        parameters: The model's own additions.
        final: False while a stream has more to come for this request.
        batch_size: As for `InferRequest`.
        error: This answer of a stream failed, and others may follow; it has no outputs then.
    """

    model: ModelRef
    outputs: tuple[Tensor, ...]
    id: str = ""
    parameters: Parameters = field(default_factory=dict)
    final: bool = True
    batch_size: int | None = None
    error: GatewayError | None = None
    origin: Origin | None = None

    def changed(self, **fields: Any) -> InferResponse:
        """Return a copy with *fields* changed and the wire origin dropped."""
        fields.setdefault("origin", None)
        return replace(self, **fields)


class InferRequest(Call[InferResponse], frozen=True, kw_only=True):
    """One inference.

    Attributes:
        inputs: In the caller's order.
        outputs: Outputs asked for; empty for all of them.
        id: The caller's; "" for none.
        sequence: None outside a sequence.
        priority: 0 for the model's default; 1 is the highest.
        timeout_us: Queue timeout the caller asked for, microseconds; None for none.
        parameters: The caller's own additions, reserved keys taken out.
        members: What the caller sent by name alone: inputs where the model has one of that name,
            else parameters. A tuple is a list of values. `Complete` takes them apart.
        batch_size: None where shapes are whole. A number where the protocol keeps it apart: shapes
            are then those of one item, unless the model does not batch; it is 1 then.
    """

    inputs: tuple[Tensor, ...] = ()
    outputs: tuple[RequestedOutput, ...] = ()
    id: str = ""
    sequence: Sequence | None = None
    priority: int = 0
    timeout_us: int | None = None
    parameters: Parameters = field(default_factory=dict)
    flat_members: Members = field(default_factory=dict)
    batch_size: int | None = None

    @property
    def shares_memory(self) -> bool:
        """Whether a tensor lies in shared memory, or shall be put there.

        What two such requests mean may differ though they are equal.
        """
        # On the path of every inference: plain loops take a third of `any`.
        for tensor in self.inputs:
            if type(tensor.data) is SharedMemoryData:
                return True
        for output in self.outputs:  # noqa: SIM110
            if output.shared is not None:
                return True
        return False


class StreamInferRequest(Call[AsyncIterator[InferResponse]], frozen=True, kw_only=True):
    """One inference that may be answered any number of times."""

    request: InferRequest


def inference_of(call: Call[Any], /) -> InferRequest | None:
    """Return the inference that *call* is, or opens a stream of; None for other questions."""
    # On the path of every call, several times: by exact type, at a third of what isinstance takes.
    if type(call) is InferRequest:
        return call
    return call.request if type(call) is StreamInferRequest else None


def sequence_of(call: Call[Any], /) -> Sequence | None:
    """Return the sequence that *call* belongs to, None when it stands alone."""
    request = inference_of(call)
    return None if request is None else request.sequence
