"""The interface of codecs, and of the `SPEC` that a protocol's package exports.

A codec is a table of pure functions, `Codec.calls`, between one protocol's wire messages and calls
of the tensor IR; `Codec` looks calls up in it. They do no I/O, read no clock and raise only
`GatewayError`, whatever the bytes are.
"""

import abc
import enum
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final, Generic, Literal, NamedTuple, NoReturn, Protocol, TypeVar, cast

from google.protobuf.descriptor import Descriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool

from gateway.api.platform import Platform
from gateway.ir.calls import (
    Call,
    InferRequest,
    InferResponse,
    OpaqueCall,
    StreamInferRequest,
    inference_of,
    words_of,
)
from gateway.ir.context import ModelRef, Need, Origin
from gateway.ir.errors import (
    GatewayError,
    InvalidOutput,
    InvalidRequest,
    InvalidTensor,
    MalformedMessage,
    Unsupported,
)
from gateway.ir.limits import MessageLimits
from gateway.ir.metadata import ServerMetadata
from gateway.wire.errors import refuses_caller
from gateway.wire.grpc import GrpcRequest, GrpcResponse, MethodKind
from gateway.wire.heads.path_claims import PathClaim
from gateway.wire.http import HttpRequest, HttpResponse
from gateway.wire.protobuf.wire_format import WireError
from gateway.wire.stream import Frame, Framer

R = TypeVar("R")
Q = TypeVar("Q")
A = TypeVar("A")
Q_contra = TypeVar("Q_contra", contravariant=True)
A_co = TypeVar("A_co", covariant=True)


@dataclass(frozen=True, slots=True)  # a named tuple reads its fields slower
class Handling:
    """How a codec handles one kind of call; None where the protocol has no such message.

    Of a request for a stream, the replies are its items.

    Attributes:
        encode_call: Writes the request to an upstream, from the call.
        decode_reply: Reads the reply, from the call and the upstream's response.
        encode_reply: Writes the response to a client, from the call and the reply.
        by_status: Returns the reply where the status of the upstream's response tells it, from this
            response; None where it does not. It decides what no error is, such as "not ready" and
            any response to a request that is passed on. Beside the latter, a response that
            refuses the caller is an error and is not passed to it.
        send_on: Writes a whole message to an upstream, from the call and the message; see
            `Codec.send_on`. Requests for streams are whole only where they have it.
        pass_on: Writes a whole response to a client, from the call and the response; None where
            the form of the messages suffices. See `Codec.pass_on`.
    """

    encode_call: Callable[[Any], Any] | None = None
    decode_reply: Callable[[Any, Any], Any] | None = None
    encode_reply: Callable[[Any, Any], Any] | None = None
    by_status: Callable[[Any], Any] | None = None
    send_on: Callable[[Any, Origin], Any] | None = None
    pass_on: Callable[[Any, Origin], Any] | None = None


def with_replies(
    calls: Mapping[type[Call[Any]], Handling],
    replies: Mapping[type[Call[Any]], Callable[[Any, Any], Any]],
    passed: Mapping[type[Call[Any]], Callable[[Any, Origin], Any]] = MappingProxyType({}),
) -> Mapping[type[Call[Any]], Handling]:
    """Return the table of a client's side, with what writes responses to clients.

    Args:
        calls: The table.
        replies: What writes the response to each kind of call.
        passed: What writes a whole response, where the form of the messages does not suffice.
    """
    kinds = {**dict.fromkeys(calls), **dict.fromkeys(replies)}
    return {
        kind: replace(
            calls.get(kind, _NOT_HANDLED),
            encode_reply=replies.get(kind),
            pass_on=passed.get(kind),
        )
        for kind in kinds
    }


_NOT_HANDLED: Final = Handling()
_SENT_ON: Final = frozenset({InferRequest, StreamInferRequest, OpaqueCall})


@dataclass(frozen=True, slots=True, kw_only=True)
class Limitations:
    """What a protocol cannot carry to an upstream.

    Attributes:
        title: The protocol, for errors.
        sequences, classes, shared_memory, versions: True for what it has no message for.
    """

    title: str = ""
    sequences: bool = False
    classes: bool = False
    shared_memory: bool = False
    versions: bool = False

    def check(self, call: Call[Any], /) -> None:
        """Refuse an inference that the protocol cannot carry, streamed or not.

        Raises:
            Unsupported: It has something that changes the reply, and no message carries it.
        """
        request, model = inference_of(call), call.model
        if request is None:
            return
        if self.sequences and request.sequence is not None:
            raise Unsupported(f"{self.title} has no sequences", model=model)
        if self.versions and model is not None and model.version:
            raise Unsupported(
                f"{self.title} has no versions, and the call is for version {model.version!r}",
                model=model,
            )
        for output in request.outputs:
            if self.classes and output.classes:
                raise Unsupported(
                    f"{self.title} has no classes: output {output.name!r} is requested as classes",
                    model=model,
                )
            if self.shared_memory and output.shared is not None:
                raise Unsupported(
                    f"{self.title} has no shared memory: output {output.name!r} is requested in it",
                    model=model,
                )


_NO_LIMITATIONS: Final = Limitations()


class WholeMessages(Protocol[Q_contra, A_co]):
    """How messages of one form pass as they came."""

    def is_plain(self, wire: Q_contra, /) -> bool:
        """Return whether every reader of a request reads the same: nothing occurs twice.

        Only what `decode_call` has read, or refused for another reason, comes here.
        """
        ...

    def passed(self, reply: Origin, /) -> A_co:
        """Return the response of a server as the client gets it."""
        ...


class Codec(abc.ABC, Generic[Q, A]):
    """Translates between wire requests Q, wire responses A and calls.

    A codec has a table of the calls that it handles, `calls`.  It may instead override
    `encode_reply`, `encode_call`, `decode_reply`, `send_on` and `pass_on`, which read this table.

    Attributes:
        calls: How it handles each kind of call. Other kinds are `Unsupported`.
        limitations: What it refuses to write to an upstream.
        name: Such as "oip.http"; also the codec name of every origin that it creates.
        needs: What it cannot write a call without; a policy adds that before `encode_call`.
        prefers_single_reply: An upstream is first asked for a single reply to a stream request,
            because its streams carry less.
        only_known_models: An upstream gets inferences of models only that it knows.
        max_rows: Most rows of one inference; larger ones are divided. None for no limit.
        dialect: How the server of an upstream differs from others, for `ModelMetadata`.
        whole: The form of messages that pass as they came between two codecs with the same one; ""
            where an option changes what they say.
        messages: How these messages pass; None where none do.
    """

    calls: Mapping[type[Call[Any]], Handling] = MappingProxyType({})
    limitations: Limitations = _NO_LIMITATIONS
    name: str
    needs: frozenset[Need]
    prefers_single_reply: bool = False
    only_known_models: bool = False
    max_rows: int | None = None
    dialect: str = ""
    whole: str = ""
    messages: WholeMessages[Q, A] | None = None

    def sends_on(self, call: Call[Any], /) -> bool:
        """Return whether an upstream gets the message of *call* as it came, with its own model."""
        origin = call.context.origin
        return (
            origin is not None
            and origin.whole != ""
            and origin.whole == self.whole
            and (type(call) is not StreamInferRequest or self._passes_streams())
            and self.is_plain(origin.wire)
        )

    def _passes_streams(self) -> bool:
        return self.calls.get(StreamInferRequest, _NOT_HANDLED).send_on is not None

    def is_plain(self, wire: Q, /) -> bool:
        """Return whether every reader of a client's message reads the same."""
        return self.messages is not None and self.messages.is_plain(wire)

    def decode_unread(self, _wire: Q, _refused: GatewayError, /) -> Call[Any] | None:
        """Return the call of a request that `decode_call` refused, if a server may read it.

        Its origin is whole, and has *_refused* for a target of any other form.
        """
        return None

    def send_on(self, call: Call[Any], message: Origin, /) -> Q:
        """Write a whole message to an upstream: the client's, with the model and headers of *call*.

        Raises:
            Unsupported: The server has no message for the model.
        """
        write = self.calls.get(type(call), _NOT_HANDLED).send_on
        if write is None:
            raise unsupported(call, self.name)
        written: Q = write(call, message)
        return written

    def pass_on(self, call: Call[Any], reply: Origin, /) -> A:
        """Write the whole response of a server to the client, with the model of *call*.

        The form of *reply* is the model that the server was asked for.
        """
        write = self.calls.get(type(call), _NOT_HANDLED).pass_on
        if write is not None:
            written: A = write(call, reply)
            return written
        if self.messages is None:
            raise unsupported(call, self.name)
        return self.messages.passed(reply)

    @abc.abstractmethod
    def decode_call(self, wire: Q, request_id: str = "", /) -> Call[Any]:
        """Read a client's request. Raises `MalformedMessage` and its kin.

        A codec may give the call *request_id* where the client sent no id, which saves a copy of
        the call.  The caller adds the id where the codec does not.
        """

    def encode_reply(self, call: Call[R], reply: R, /) -> A:
        """Write the response to *call*, which came from `decode_call`.

        Raises:
            Unsupported: There is no such response, or it cannot carry the reply.
            InvalidOutput: An output is not what the protocol needs.
        """
        found: Any = reply
        if type(found) is InferResponse:
            if found.origin and found.origin.whole:
                own = call.context.origin
                if own is not None and own.whole == found.origin.whole:
                    return self.pass_on(call, found.origin)
            if found.error is not None:
                raise found.error.copy()  # its traceback will hold the reply
        elif type(found) is Origin and found.whole and found.codec == self.name:
            return self.pass_on(call, found)
        write = self.calls.get(type(call), _NOT_HANDLED).encode_reply
        if write is None:
            raise unsupported(call, self.name)
        try:
            written: A = write(call, reply)
        except ValueError as error:  # lone surrogates in a name, numbers over 64 bits
            raise Unsupported(f"reply cannot be written: {error}", model=call.model) from error
        return written

    def for_record(self, wire: Q, /) -> Q:
        """Return a request as a recording may keep it: without what names a person."""
        return wire

    def encode_item(self, call: StreamInferRequest, item: InferResponse, /) -> A:
        """Write one response of a stream; raises as `encode_reply`."""
        encode: Callable[[Any, Any], A] = self.encode_reply
        return encode(call, item)

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

    def encode_call(self, call: Call[Any], /) -> Q:
        """Write a request to an upstream. Raises `Unsupported` for what the protocol lacks."""
        origin = call.message if type(call) is OpaqueCall else call.context.origin
        if origin and (origin.whole or origin.refusal) and type(call) in _SENT_ON:
            if origin.whole and origin.whole == self.whole:
                return self.send_on(call, origin)
            if origin.refusal is not None:
                raise origin.refusal.copy()
        write = self.calls.get(type(call), _NOT_HANDLED).encode_call
        if write is None:
            raise unsupported(call, self.name)
        if type(call) is OpaqueCall:
            if call.message.codec != self.name:
                raise Unsupported(
                    f"a request that only {call.message.codec} understands cannot be sent over "
                    f"{self.name}",
                    model=call.model,
                )
        elif self.limitations is not _NO_LIMITATIONS:
            self.limitations.check(call)
        try:
            written: Q = write(call)
        except InvalidOutput as error:  # the tensor is an input here
            text = error.message.replace("output", "input", 1)
            raise Unsupported(text, model=call.model) from error
        except ValueError as error:  # as in `encode_reply`
            raise Unsupported(
                f"{words_of(call)} cannot be written: {error}", model=call.model
            ) from error
        return written

    def decode_reply(self, call: Call[R], wire: A, /) -> R:
        """Read an upstream's response to *call*; raises the error that it contains.

        Raises:
            GatewayError: The error in the response, with the response as origin.
            MalformedMessage, InvalidTensor: The response cannot be used.
        """
        found = self.calls.get(type(call), _NOT_HANDLED)
        if found.by_status is not None and (type(call) is OpaqueCall or not refuses_caller(wire)):
            known = found.by_status(wire)
            if known is not None:
                return cast("R", known)  # its type is the reply's
        failure = self.error_in(call, wire)
        if failure is not None:
            try:
                raise failure
            finally:
                del failure  # its traceback holds this frame
        if type(call) is OpaqueCall and call.message.whole:
            return cast("R", Origin(self.name, wire, call.model, whole=call.message.whole))
        origin = call.context.origin
        if origin and origin.whole and origin.whole == self.whole and type(call) in _SENT_ON:
            return cast("R", self._whole_reply(found, call, wire))
        read = found.decode_reply
        if read is None:
            raise unsupported(call, self.name)
        try:
            reply: R = read(call, wire)
        except (WireError, InvalidRequest) as error:
            raise_for_response(error)
        return reply

    def _whole_reply(self, found: Handling, call: Call[Any], wire: A) -> InferResponse:
        """Return the reply to a message that was sent on; its error, where it cannot be read.

        Raises:
            TooLarge: A limit is exceeded.
        """
        own = Origin(self.name, wire, call.model, whole=self.whole)
        message = cast("Origin", call.context.origin)
        unread: GatewayError | None = message.refusal
        if unread is None:
            try:
                reply: InferResponse = read_response(cast("Any", found.decode_reply), call, wire)
                return reply.changed(origin=own)
            except (InvalidRequest, Unsupported) as error:
                if error.origin is not None:
                    raise  # the error in the response
                error.__traceback__ = None  # its frames hold the response
                unread = error
        model = call.model or ModelRef("")
        is_final = type(call) is InferRequest
        return InferResponse(model=model, outputs=(), error=unread, origin=own, is_final=is_final)

    def error_in(self, _call: Call[Any], _wire: A, /) -> GatewayError | None:
        """Return the error in an upstream's response, with it as origin; None for a success."""
        return None

    def is_item(self, _call: StreamInferRequest, _wire: A, /) -> bool:
        """Return whether one response of an upstream's stream is an item; others are left out."""
        return True

    def decode_item(self, call: StreamInferRequest, wire: A, /) -> InferResponse:
        """Read one response of an upstream's stream; raises as `decode_reply`."""
        if self.calls.get(type(call), _NOT_HANDLED).decode_reply is None:
            raise unsupported(call, self.name)
        decode: Callable[[Any, A], Any] = self.decode_reply
        item: InferResponse = decode(call, wire)
        return item


def read_response(read: Callable[[Any, Any], Any], call: Call[Any], wire: object) -> Any:
    """Return what *read* reads of an upstream's response, whose errors are the upstream's.

    Raises:
        GatewayError: The error in the response; *read* gives it an origin.
        MalformedMessage, InvalidTensor: The response cannot be used.
    """
    try:
        return read(call, wire)
    except (WireError, InvalidRequest) as error:
        raise_for_response(error)


def raise_for_response(error: WireError | InvalidRequest) -> NoReturn:
    """Raise *error*, which came of reading an upstream's response, as that of the upstream."""
    if isinstance(error, WireError):
        raise MalformedMessage(f"response cannot be read: {error}") from error
    if error.origin is not None or isinstance(error, MalformedMessage | InvalidTensor):
        raise error
    raise MalformedMessage(error.message) from error


class StreamCodec(Codec[Q, A]):
    """A codec whose streams end in a form of their own.

    Its `encode_item` also writes items that are errors, see `InferResponse`. By default, a first
    error is an ordinary response, and the end of the body ends the stream, after an error too.
    """

    def is_terminal(self, _call: StreamInferRequest, _error: GatewayError, /) -> bool:
        """Return whether no item can follow an error that is the first item of a stream."""
        return True

    def writes_end_mark(self, _call: StreamInferRequest, /) -> bool:
        """Return whether `encode_item` writes an item that only marks the end of the stream."""
        return False

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
    return Unsupported(f"{words_of(call)} is not supported over {name}", model=call.model)


def named_model(title: str, call: Call[Any]) -> ModelRef:
    """Return the model of a call to an upstream of the protocol *title*.

    Raises:
        Unsupported: The call names no model.
    """
    if call.model is None or not call.model.name:
        raise Unsupported(f"{words_of(call)} names no model: {title} needs one")
    return call.model


Options = Mapping[str, Any]
"""Protocol options from YAML; each protocol validates its own."""


def _no_claims(_options: Options, /) -> tuple[PathClaim, ...]:
    return ()


class QuotaNote(NamedTuple):
    """What the client of a call is told of a quota.

    Attributes:
        unit: "calls", "elements", "bytes" or "seconds".
        limit: What the quota allows.
        left: What is left of it; 0 if it has refused the call.
        reset_s: Seconds until it is whole again.
        name: The name of the quota.
        window_s: The seconds in which it allows that.
    """

    unit: str
    limit: int
    left: int
    reset_s: int
    name: str = ""
    window_s: int = 0


QuotaHeaders = Callable[[Sequence[QuotaNote]], tuple[tuple[str, str], ...]]
"""Returns the headers of a response that tell of quotas in the words of a protocol."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpBinding:
    """A protocol over HTTP: its codec, and the paths that it serves on a listener.

    Attributes:
        path_option: The option that the path of an upstream's URL sets; "" where it is a prefix of
            the protocol's own paths.
        sets_root_path: The path "/" sets that option too; otherwise it is no path.
        root: It serves the path "/" where nothing else claims it.
        public: Paths below these that ask for the health of the server.
        claims: Returns one row for each further path, from a listener's options. They say who has a
            path that another protocol of the listener claims, too. The codec of a listener gets
            those `SHARED` ones that another protocol yields, as the option `shared`.
        quota_headers: Further headers that tell its clients of quotas; None for none.
        request_headers: Headers that web pages of other origins may send, in lower case, besides
            those of all protocols.
        response_headers: Headers of responses that these pages may read, in lower case.
    """

    codec: Callable[[MessageLimits, Options], Codec[HttpRequest, HttpResponse]]
    prefixes: tuple[str, ...] = ()
    path_option: str = ""
    sets_root_path: bool = False
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

    def message_types(self) -> Mapping[str, tuple[Descriptor, Descriptor]]:
        """Return the types of the request and the reply of each described method, by its path."""
        pool, files = DescriptorPool(), self.file_descriptors()
        for each in files:
            pool.AddSerializedFile(each)
        found = [pool.FindFileByName(FileDescriptorProto.FromString(each).name) for each in files]
        return {
            f"/{service.full_name}/{method.name}": (method.input_type, method.output_type)
            for file in found
            for service in file.services_by_name.values()
            for method in service.methods
        }


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
            when it has none. None where all servers behave alike.  Options that it does not change
            need no request to the server.
        classifies: Its servers compute classes of outputs; None: some of them do.
        has_model_keys: Requests name a model by one text, which may contain a version:
            "name-version".
        default_model: The option that a listener's default model sets, where requests cannot name
            a model; "" for none.
        extension_status: Returns the extensions that a listener's options enable, and the others.
            None for a protocol without extensions.
        defects: What requests can do to its servers, for `cancellation: auto` and `weaknesses` in
            `/status`.
        example: Returns the command of the log line `try`, from the URL of a listener
            (`http://HOST:PORT`) and a model; "" for no model.  None for no command over HTTP.
        one_process: Values of a listener's options that need `workers: 1`.
        process_options: Returns options that YAML has not, from the number of a worker, from 1, and
            the count of workers.  Called once in a process; all its listeners get them.
        sidecar: What `gateway serve --upstream` sets.
        own_posts: Returns the default of `passthrough.post`, by the name of a server.
        declaration: Checks what the configuration declares of a model for the protocol, and returns
            it; it is in `ModelMetadata.declarations`.  Raises ValueError, or `OptionError` with
            the key.  None for a protocol that needs to be told nothing.
        platform: The platform whose containers speak the protocol; None for none.
        varying: Members of replies that differ from call to call, such as `id`, or `meta.puid`
            within another one. Lists are passed through. Whole messages are compared without them.
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
    varying: frozenset[str] = frozenset()

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
