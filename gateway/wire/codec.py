"""What a codec is, and what a protocol's folder exports.

A codec is seven pure functions between one protocol's wire messages and calls of the tensor IR.
They do no I/O, read no clock and raise only `GatewayError`, whatever the bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar, runtime_checkable

from gateway.ir.calls import Call, InferResponse, StreamInferRequest
from gateway.ir.context import Need
from gateway.ir.errors import GatewayError
from gateway.ir.limits import MessageLimits
from gateway.wire.grpc import GrpcRequest, GrpcResponse, MethodKind
from gateway.wire.http import HttpRequest, HttpResponse
from gateway.wire.stream import Frame, Framer

R = TypeVar("R")
Q = TypeVar("Q")
A = TypeVar("A")
A_co = TypeVar("A_co", covariant=True)
Q_contra = TypeVar("Q_contra", contravariant=True)


class Codec(Protocol[Q, A]):
    """Translates between wire requests Q, wire answers A and calls.

    Attributes:
        name: Such as "oip.http"; also the codec name of every origin it makes.
        needs: What it cannot write a call without; a policy fills that in before `encode_call`.
    """

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def needs(self) -> frozenset[Need]: ...  # noqa: D102

    def decode_call(self, wire: Q, /) -> Call[Any]:
        """Read a client's request. Raises `MalformedMessage` and its kin."""
        ...

    def encode_reply(self, call: Call[R], reply: R, /) -> A:
        """Write the answer to *call*, which came from `decode_call`."""
        ...

    def encode_item(self, call: StreamInferRequest, item: InferResponse, /) -> A:
        """Write one answer of a stream."""
        ...

    def encode_error(self, call: Call[Any] | None, error: GatewayError, /) -> A:
        """Write an error in the protocol's form; *call* is None when it could not be read."""
        ...

    def encode_call(self, call: Call[Any], /) -> Q:
        """Write a request to an upstream. Raises `Unsupported` for what cannot be asked."""
        ...

    def decode_reply(self, call: Call[R], wire: A, /) -> R:
        """Read an upstream's answer to *call*; raises what an error answer says."""
        ...

    def decode_item(self, call: StreamInferRequest, wire: A, /) -> InferResponse:
        """Read one answer of an upstream's stream."""
        ...


@runtime_checkable
class StreamCodec(Protocol[A_co]):
    """What a codec has besides when its streams have words of their own for how they end.

    Its `encode_item` also takes answers that are errors, see `InferResponse`.

    Attributes:
        first_error_ends: No answer can follow an error that is the first.
    """

    @property
    def first_error_ends(self) -> bool: ...  # noqa: D102

    def encode_end(self, call: StreamInferRequest, last: InferResponse | None, /) -> A_co | None:
        """Write what ends a stream that went well, None for nothing; *last* was its last answer."""
        ...

    def encode_late_error(self, call: StreamInferRequest, error: GatewayError, /) -> A_co:
        """Write an error that comes after an answer; before the first it is `encode_error`'s."""
        ...


class ResponseSplitter(Protocol[A]):
    """Cuts one streamed answer of an upstream into messages, where the transport gives pieces."""

    def receive(self, part: A, /) -> Sequence[A]:
        """Return the messages that *part* completes. Raises MalformedMessage, TooLarge."""
        ...

    def end(self) -> Sequence[A]:
        """Return what the end completes. Raises MalformedMessage within a message."""
        ...


@runtime_checkable
class FramingCodec(Protocol[A]):
    """What a codec has besides when `decode_item` needs whole messages cut out first."""

    def splitter(self) -> ResponseSplitter[A]:
        """Return what cuts one answer."""
        ...


@runtime_checkable
class NamingCodec(Protocol[Q_contra]):
    """What a codec has besides when its calls can have their request id from the start."""

    def decode_as(self, wire: Q_contra, request_id: str, /) -> Call[Any]:
        """Read a client's request as `decode_call`.

        Where the client gave none, the call has *request_id*, or none as yet.
        """
        ...


@runtime_checkable
class EarlyCodec(Protocol[Q_contra]):
    """What a codec has besides when it reads some requests before all of their bytes have come."""

    def early_bytes(self, wire: Q_contra, /) -> int | None:
        """Return how much of the body of *wire*, given without it, is enough; None for all."""
        ...

    def decode_early(self, wire: Q_contra, /) -> Call[Any] | None:
        """Read a request whose body has come so far, and whose rest is told; None to see it all.

        Raises as `decode_call`.
        """
        ...


@runtime_checkable
class CutThroughCodec(Protocol[A_co]):
    """What a codec has besides when its requests may end in bytes that are still to come."""

    def encode_cut_through(self, call: Call[Any], /) -> A_co | None:
        """Write *call*, whose inputs are arriving, with the rest told; None where it must be whole.

        Raises as `encode_call`.
        """
        ...


Options = Mapping[str, Any]
"""Protocol options as they stand in YAML; each protocol validates its own."""


def _no_paths(_options: Options, /) -> tuple[str, ...]:
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpBinding:
    """A protocol over HTTP: how to make its codec, and the paths it claims on a listener.

    Attributes:
        path_option: The option that the path of an upstream's URL stands for, where a URL is a
            model; "" where the protocol's own paths go on below it.
        any_path: It answers every path of a listener that no other protocol shares.
        own_paths: The paths that a listener's options claim besides.
    """

    codec: Callable[[MessageLimits, Options], Codec[HttpRequest, HttpResponse]]
    prefixes: tuple[str, ...]
    path_option: str = ""
    any_path: bool = False
    own_paths: Callable[[Options], tuple[str, ...]] = _no_paths


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcBinding:
    """A protocol over gRPC: how to make its codec, and the methods it serves, by full path."""

    codec: Callable[[MessageLimits, Options], Codec[GrpcRequest, GrpcResponse]]
    methods: Mapping[str, MethodKind]
    file_descriptors: Callable[[], tuple[bytes, ...]] = tuple
    """Serialized FileDescriptorProtos for server reflection, dependencies first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamBinding:
    """A protocol over a byte stream.

    Attributes:
        ordered: Answers come in the order of the questions; otherwise as they come, matched by
            `Frame.correlation`.
        carriers: What stands for it in URLs: `protocol+carrier://`; "unix" has a path, the others
            host and port.
        names_models: A request may name its model; otherwise a listener needs a default.
        is_frame: Whether a connection that begins with these bytes is of this protocol, or may
            still be; needed where its port answers HTTP too.
        http_prefixes: Paths of its HTTP form that are answered on the same port.
        grpc_methods: Methods of its gRPC form that are answered there too.
    """

    codec: Callable[[MessageLimits, Options], Codec[Frame, Frame]]
    server_framer: Callable[[MessageLimits], Framer]
    client_framer: Callable[[MessageLimits], Framer]
    ordered: bool = True
    carriers: tuple[str, ...] = ("tcp", "unix")
    names_models: bool = False
    is_frame: Callable[[bytes], bool] | None = None
    http_prefixes: tuple[str, ...] = ()
    grpc_methods: Mapping[str, MethodKind] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtocolSpec:
    """What one protocol's folder exports, as `SPEC`.

    Attributes:
        options: Checks a mapping of options and returns it; raises ValueError naming the key.
        settle: Completes an upstream's options by the name that its server gives itself ("" when
            it gives none); None where every server of the protocol is alike. Options it does not
            change need no server to be asked.
        classifies: Its servers compute classes of outputs; None: some of them do.
        model_keys: Requests name a model by one text, which may hold a version: "name-version".
        default_model: The option that a listener's default model stands for where requests cannot
            name one; "" for none.
    """

    name: str
    http: HttpBinding | None = None
    grpc: GrpcBinding | None = None
    stream: StreamBinding | None = None
    options: Callable[[Options], Options] = field(default=dict)
    resolve_dialect: Callable[[Options, str], Options] | None = None
    classifies: bool | None = False
    model_keys: bool = False
    default_model: str = ""

    @property
    def carriers(self) -> Mapping[str, HttpBinding | GrpcBinding | StreamBinding]:
        """What carries it, by the name that stands in URLs."""
        found: dict[str, HttpBinding | GrpcBinding | StreamBinding] = {}
        if self.http is not None:
            found["http"] = self.http
        if self.grpc is not None:
            found["grpc"] = self.grpc
        if self.stream is not None:
            found |= dict.fromkeys(self.stream.carriers, self.stream)
        return found
