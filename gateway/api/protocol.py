"""The interface of codecs, and of the `SPEC` that a protocol's package exports.

A codec is seven pure functions between one protocol's wire messages and calls of the tensor IR.
They do no I/O, read no clock and raise only `GatewayError`, whatever the bytes are.
"""

import abc
import enum
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Literal, NamedTuple, Protocol, TypeVar

from gateway.api.platform import Platform
from gateway.ir.calls import Call, InferResponse, StreamInferRequest
from gateway.ir.context import ModelRef, Need
from gateway.ir.errors import GatewayError, Unsupported
from gateway.ir.limits import MessageLimits
from gateway.ir.metadata import ServerMetadata
from gateway.wire.grpc import GrpcRequest, GrpcResponse, MethodKind
from gateway.wire.http import HttpRequest, HttpResponse
from gateway.wire.path_claims import PathClaim
from gateway.wire.stream import Frame, Framer

R = TypeVar("R")
Q = TypeVar("Q")
A = TypeVar("A")


class Codec(abc.ABC, Generic[Q, A]):
    """Translates between wire requests Q, wire responses A and calls.

    Attributes:
        name: Such as "oip.http"; also the codec name of every origin that it creates.
        needs: What it cannot write a call without; a policy adds that before `encode_call`.
        prefers_single_reply: An upstream is first asked for a single reply to a stream request,
            because its streams carry less; a decoupled model is then asked for a stream.
        only_known_models: An upstream gets inferences of models only that it knows.
        max_rows: Most rows of one inference; larger ones are divided. None for no limit.
        dialect: How the server of an upstream differs from others, for `ModelMetadata`.
    """

    name: str
    needs: frozenset[Need]
    prefers_single_reply: bool = False
    only_known_models: bool = False
    max_rows: int | None = None
    dialect: str = ""

    @abc.abstractmethod
    def decode_call(self, wire: Q, request_id: str = "", /) -> Call[Any]:
        """Read a client's request. Raises `MalformedMessage` and its kin.

        A codec may give the call *request_id* where the client sent no id, which saves a copy of
        the call.  The caller adds the id where the codec does not.
        """

    @abc.abstractmethod
    def encode_reply(self, call: Call[R], reply: R, /) -> A:
        """Write the response to *call*, which came from `decode_call`."""

    def for_record(self, wire: Q, /) -> Q:
        """Return a request as a recording may keep it: without what names a person."""
        return wire

    def encode_item(self, call: StreamInferRequest, _item: InferResponse, /) -> A:
        """Write one response of a stream. Raises `Unsupported` unless overridden."""
        raise unsupported(call, self.name)

    def has_only_text(self, _call: StreamInferRequest, _item: InferResponse, /) -> bool:
        """Return whether BYTES of one response of a stream can only be text."""
        return False

    @abc.abstractmethod
    def encode_error(self, call: Call[Any] | None, error: GatewayError, /) -> A:
        """Write an error in the protocol's form; *call* is None when it could not be read."""

    def note_request(self, _wire: Q, _error: GatewayError, /) -> None:
        """Note in an error whatever its form depends on, of a request that is not decoded.

        Args:
            _wire: The request without its body.
            _error: Why it is refused; its `origin` may be set.
        """
        return

    @abc.abstractmethod
    def encode_call(self, call: Call[Any], /) -> Q:
        """Write a request to an upstream. Raises `Unsupported` for what the protocol lacks."""

    @abc.abstractmethod
    def decode_reply(self, call: Call[R], wire: A, /) -> R:
        """Read an upstream's response to *call*; raises the error that it contains."""

    def decode_item(self, call: StreamInferRequest, _wire: A, /) -> InferResponse:
        """Read one response of an upstream's stream. Raises `Unsupported` unless overridden."""
        raise unsupported(call, self.name)


class StreamCodec(Codec[Q, A]):
    """A codec whose streams end in a form of their own.

    Its `encode_item` also writes items that are errors, see `InferResponse`. By default, a first
    error is an ordinary response, and the end of the body ends the stream, after an error too.
    """

    def is_terminal(self, _call: StreamInferRequest, _error: GatewayError, /) -> bool:
        """Return whether no item can follow an error that is the first item of a stream."""
        return True

    def encode_end(self, _call: StreamInferRequest, _last: InferResponse | None, /) -> A | None:
        """Write the end of a stream without an error; None for nothing.

        Args:
            _call: The request of the stream.
            _last: The last item; None where there was none.
        """
        return None

    def encode_late_error(self, _call: StreamInferRequest, error: GatewayError, /) -> A:
        """Write an error that follows an item; `encode_error` writes one before the first.

        Raises:
            GatewayError: The items have no form for an error, so the body ends early.
        """
        raise error


class ResponseSplitter(Protocol[A]):
    """Cuts one streamed response of an upstream into messages, where the transport has parts."""

    def receive(self, part: A, /) -> Sequence[A]:
        """Return the messages that *part* completes. Raises MalformedMessage, TooLarge."""
        ...

    def end(self) -> Sequence[A]:
        """Return the messages that the end completes. Raises MalformedMessage within a message."""
        ...


class FramingCodec(Codec[Q, A]):
    """A codec whose `decode_item` needs complete messages, which a splitter cuts out."""

    @abc.abstractmethod
    def splitter(self) -> ResponseSplitter[A]:
        """Return the splitter for one response."""


class ServerReadingCodec(Codec[Q, A]):
    """A codec that reads a request as the server of its model would, if it differs from others.

    Attributes:
        most_lenient: The dialect of a server that reads what any server reads.
    """

    most_lenient: str

    @abc.abstractmethod
    def inferred_model(self, wire: Q, /) -> ModelRef | None:
        """Return the model of an inference request; None for any other. Never raises."""

    @abc.abstractmethod
    def decode_for_server(self, wire: Q, dialect: str, request_id: str = "", /) -> Call[Any] | None:
        """Read an inference request that `decode_call` refused.

        Args:
            wire: A request with an inferred model.
            dialect: Of the model's server, as in `ModelMetadata`.
            request_id: The id that the transport made; "" for none.

        Returns None if such a server is no more lenient than `decode_call`.  Raises as that.
        """


class CutThroughCodec(Codec[Q, A]):
    """A codec that reads or writes some requests before their bodies are complete."""

    def early_bytes(self, _wire: Q, /) -> int | None:
        """Return how many bytes of the body `decode_early` needs; None for the whole body.

        Args:
            _wire: The request without its body.
        """
        return None

    def decode_early(self, _wire: Q, /) -> Call[Any] | None:
        """Read a request with the beginning of its body and the stream of the rest.

        Returns None where the whole body is needed.  Raises as `decode_call`.
        """
        return None

    @abc.abstractmethod
    def encode_cut_through(self, call: Call[Any], /) -> Q | None:
        """Write *call*, whose last inputs have not arrived, with the stream of these.

        Returns None where all inputs must have arrived.  Raises as `encode_call`.
        """


def unsupported(call: Call[Any], name: str) -> Unsupported:
    """Return the error for a call that the protocol or codec *name* has no message for."""
    return Unsupported(f"{type(call).__name__} is not supported over {name}", model=call.model)


Options = Mapping[str, Any]
"""Protocol options from YAML; each protocol validates its own."""


def _no_claims(_options: Options, /) -> tuple[PathClaim, ...]:
    return ()


class QuotaNote(NamedTuple):
    """What the client of a call is told of a quota.

    Attributes:
        unit: "calls", "elements", "bytes" or "seconds".
        limit: What the quota allows.
        left: What is left of it.
        reset_s: Seconds until it is whole again.
    """

    unit: str
    limit: int
    left: int
    reset_s: int


QuotaHeaders = Callable[[Sequence[QuotaNote]], tuple[tuple[str, str], ...]]
"""Returns the headers of a response that tell of quotas in the words of a protocol."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpBinding:
    """A protocol over HTTP: its codec, and the paths that it serves on a listener.

    Attributes:
        path_option: The option that the path of an upstream's URL sets, where it replaces the
            protocol's own paths or their beginning; "" where it is a prefix of these paths.
        sets_root_path: The path "/" sets that option too; otherwise it is no path.
        any_path: It serves every path of a listener without another protocol.
        root: It serves the path "/" where nothing else claims it.
        public: Paths below these that ask for the health of the server.
        claims: Returns one row for each further path, from a listener's options. They say who has a
            path that another protocol of the listener claims, too. The codec of a listener gets
            those `SHARED` ones that another protocol yields, as the option `shared`.
        quota_headers: Further headers that tell its clients of quotas; None for none.
        request_headers: Headers that its clients send, in lower case, which web pages of other
            origins may send, too; besides those of all protocols.
        response_headers: Headers of its responses, in lower case, which these pages may read.
    """

    codec: Callable[[MessageLimits, Options], Codec[HttpRequest, HttpResponse]]
    prefixes: tuple[str, ...] = ()
    path_option: str = ""
    sets_root_path: bool = False
    any_path: bool = False
    root: bool = False
    public: tuple[str, ...] = ()
    claims: Callable[[Options], tuple[PathClaim, ...]] = _no_claims
    quota_headers: QuotaHeaders | None = None
    request_headers: tuple[str, ...] = ()
    response_headers: tuple[str, ...] = ()

    def all_claims(self, options: Options) -> tuple[PathClaim, ...]:
        """Return a row for each path that the protocol claims on a listener with *options*.

        Raises:
            ValueError: An option is wrong.
        """
        return (*[PathClaim(path) for path in self.prefixes], *self.claims(options))


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcBinding:
    """A protocol over gRPC: its codec, and the methods that it serves, by full path.

    Attributes:
        public: Methods that ask for the health of the server.
    """

    codec: Callable[[MessageLimits, Options], Codec[GrpcRequest, GrpcResponse]]
    methods: Mapping[str, MethodKind]
    file_descriptors: Callable[[], tuple[bytes, ...]] = tuple
    """Serialized FileDescriptorProtos for server reflection, dependencies first."""
    public: tuple[str, ...] = ()


def _unchanged(frame: Frame, /) -> Frame:
    return frame


def _no_credentials(_frame: Frame, /) -> tuple[str, str]:
    return "", ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamBinding:
    """A protocol over a byte stream.

    Attributes:
        is_ordered: Responses have the order of their requests; otherwise `Frame.correlation`
            matches them.
        carriers: Its names in URLs, `protocol+carrier://`; "unix" has a path, the others host and
            port.
        names_models: A request may name its model; otherwise a listener needs a default.
        is_frame: Returns whether a connection that begins with these bytes can be of this
            protocol.  Required where its port serves HTTP too.
        http_prefixes: Paths of its HTTP form that the same port serves.
        grpc_methods: Methods of its gRPC form that the same port serves.
        credentials: Returns the credentials that a frame carries, and the method that it calls.
        without_credentials: Returns a frame without the credentials that it carries.
        closes_denied: A connection ends after a frame whose credentials are missing or wrong.
        public: Methods that ask for the health of the server.
    """

    codec: Callable[[MessageLimits, Options], Codec[Frame, Frame]]
    server_framer: Callable[[MessageLimits], Framer]
    client_framer: Callable[[MessageLimits], Framer]
    is_ordered: bool = True
    carriers: tuple[str, ...] = ("tcp", "unix")
    names_models: bool = False
    is_frame: Callable[[bytes], bool] | None = None
    http_prefixes: tuple[str, ...] = ()
    grpc_methods: Mapping[str, MethodKind] = field(default_factory=dict)
    credentials: Callable[[Frame], tuple[str, str]] = _no_credentials
    without_credentials: Callable[[Frame], Frame] = _unchanged
    closes_denied: bool = False
    public: tuple[str, ...] = ()


class DefectKind(enum.Enum):
    """Whether the gateway does something only before servers that may have a defect."""

    CANCELLED_CALLS = "cancelled calls"
    """Cancellation is withheld from the server, see `cancellation` of an upstream."""

    EMPTY_CLASSES = "empty classes"
    """The gateway computes the classes of outputs that may be empty."""

    OTHER = "other"
    """The defence is the same before every server."""


_VERSION: Final = re.compile(r"(\d+)\.(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerDefect:
    """One weakness of a server: what a request can do to it, and what the gateway does.

    Attributes:
        name: Name of the defect, and of its test in tests/interop.
        server: `name` in the server's metadata, in lower case; "" for every server of the protocol,
            which no log line mentions.
        source: Issue or CVE.
        repaired: The first version without the defect; None if there is none.
        request: The request of a client that triggers it.
        effect: The effect on the server.
        defence: The defence of the gateway.
        option: Configuration key or option that changes the defence; "" for none.
        carrier: The carrier to the server over which it exists; "" for all.
        kind: What the gateway does before servers that may have it.
    """

    name: str
    server: str
    source: str
    repaired: tuple[int, int] | None
    request: str
    effect: str
    defence: str
    option: str = ""
    carrier: str = ""
    kind: DefectKind = DefectKind.OTHER

    @property
    def repaired_version(self) -> str:
        """The first version without the defect, as text; "" if there is none."""
        return "" if self.repaired is None else f"{self.repaired[0]}.{self.repaired[1]}.0"

    def affects(self, server: ServerMetadata, carrier: str = "") -> bool:
        """Return whether a server has the defect; an unreadable version counts as old.

        Args:
            server: Its metadata.
            carrier: The carrier to it; "" for any.
        """
        if self.server not in ("", server.name.lower()) or not self.exists_over(carrier):
            return False
        found = _VERSION.match(server.version)
        if self.repaired is None or found is None:
            return True
        return (int(found[1]), int(found[2])) < self.repaired

    def exists_over(self, carrier: str) -> bool:
        """Return whether it exists over *carrier*; "" is any."""
        return not carrier or self.carrier in ("", carrier)

    def line(self, server: ServerMetadata, defence: str = "") -> str:
        """Return one line for a server: its version, the defect and the defence.

        Args:
            server: It has the defect.
            defence: What the gateway does, if not that of the table.
        """
        repaired = f", repaired in {self.repaired_version}" if self.repaired else ""
        return (
            f"{server.name} {server.version}: {self.request}: {self.effect} "
            f"({self.source}{repaired}); {defence or self.defence}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionValue:
    """Values of a listener's option that need all calls in one process.

    Attributes:
        key: The option.
        values: Its values, as they may stand in YAML.
        reason: What happens with several workers, after "this"; `{model}` is a model of *needs*.
        needs: The models that it is about, which the file must have: models in the gateway's own
            process, or models with cached replies; "" if models do not matter.
    """

    key: str
    values: frozenset[str | bool]
    reason: str
    needs: Literal["", "in_process", "cached"] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SidecarDefaults:
    """What `gateway serve --upstream` sets for a protocol, as it would stand in YAML.

    Attributes:
        options: Options of the listener: they change nothing at any server.
        own_options: The same, if an upstream has the protocol too.
        default_model: The model of requests without one, if the only upstream has the protocol; ""
            for none.
        upstream_options: Options of that upstream, which knows the default model.
    """

    options: Options = field(default_factory=dict)
    own_options: Options = field(default_factory=dict)
    default_model: str = ""
    upstream_options: Options = field(default_factory=dict)


def no_options(_number: int, _count: int, /) -> Options:
    """Return no options, for a protocol that processes need not share."""
    return {}


def no_posts(_server: str, /) -> tuple[str, ...]:
    """Return no path: clients of the server POST to those of the protocol only."""
    return ()


ReadDeclaration = Callable[[Mapping[str, Any], Callable[[str], str]], object]
"""Returns a declaration in YAML, typed; reads a file by its path in YAML with the second argument,
which raises ValueError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtocolSpec:
    """One protocol, as its package exports it.

    Attributes:
        name: Its name in YAML and URLs: lower-case letters.
        title: Its name for people.
        page: Its page: a file in docs/protocols, or a URL.
        options: Checks a mapping of options and returns it; raises ValueError, which names the key.
        resolve_dialect: Completes an upstream's options by the name in its server's metadata, ""
            when it has none.  None where all servers of the protocol behave alike.  Options that
            it does not change need no request to the server.
        classifies: Its servers compute classes of outputs; None: some of them do.
        has_model_keys: Requests name a model by one text, which may contain a version:
            "name-version".
        default_model: The option that a listener's default model sets, where requests cannot name
            a model; "" for none.
        extension_status: Returns the extensions that a listener's options enable, and the others.
            None for a protocol without extensions.
        defects: What requests can do to its servers.
        example: Returns a command to try, from the URL of a listener (`http://HOST:PORT`) and a
            model; "" for no model.  None for no command over HTTP.
        one_process: Values of a listener's options that need `workers: 1`.
        process_options: Returns options that YAML has not, from the number of a worker (1 to count)
            and the count of workers.  Called once in a process; all its listeners get them.
        sidecar: What `gateway serve --upstream` sets.
        own_posts: Returns the patterns of paths outside of the protocol that clients of a server
            POST to, by the name of the server.
        declaration: Checks what the configuration declares of a model for the protocol, and returns
            it; it is in `ModelMetadata.declarations`.  Raises ValueError, or `OptionError` with
            the key.  None for a protocol that needs to be told nothing.
        platform: The platform whose containers speak the protocol; None for none.
    """

    name: str
    title: str
    page: str
    http: HttpBinding | None = None
    grpc: GrpcBinding | None = None
    stream: StreamBinding | None = None
    options: Callable[[Options], Options] = field(default=dict)
    resolve_dialect: Callable[[Options, str], Options] | None = None
    classifies: bool | None = False
    has_model_keys: bool = False
    default_model: str = ""
    extension_status: Callable[[Options], tuple[Sequence[str], Sequence[str]]] | None = None
    defects: tuple[ServerDefect, ...] = ()
    example: Callable[[str, str], str] | None = None
    one_process: tuple[OptionValue, ...] = ()
    process_options: Callable[[int, int], Options] = no_options
    sidecar: SidecarDefaults = SidecarDefaults()
    own_posts: Callable[[str], tuple[str, ...]] = no_posts
    declaration: ReadDeclaration | None = None
    platform: Platform | None = None

    @property
    def carriers(self) -> Mapping[str, HttpBinding | GrpcBinding | StreamBinding]:
        """Its bindings, by their names in URLs."""
        found: dict[str, HttpBinding | GrpcBinding | StreamBinding] = {}
        if self.http is not None:
            found["http"] = self.http
        if self.grpc is not None:
            found["grpc"] = self.grpc
        if self.stream is not None:
            found |= dict.fromkeys(self.stream.carriers, self.stream)
        return found

    def may_have(self, kind: DefectKind, server: ServerMetadata | None, carrier: str) -> bool:
        """Return whether a server may have a defect of *kind*, as an unknown one may.

        Args:
            kind: The kind of the defect.
            server: The server's metadata; None if they are unknown.
            carrier: The carrier to it.
        """
        return any(
            defect.exists_over(carrier) if server is None else defect.affects(server, carrier)
            for defect in self.defects
            if defect.kind is kind
        )
