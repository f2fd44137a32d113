"""The context of a call: its caller, its deadline, and what its reply must contain.

Values on the path of every call are msgspec structs: creating and copying one takes a tenth of the
time of a frozen dataclass.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from gateway.ir.identity import ANONYMOUS, GATEWAY, Identity

Parameter = bool | int | float | str
Parameters = Mapping[str, Parameter]

Metadata = tuple[tuple[str, str], ...]
Members = Mapping[str, Parameter | tuple[Parameter, ...]]

NO_PARAMETERS: Parameters = {}


class JsonParameter(str):
    """The JSON text of a parameter that is a list or an object.

    Only JSON over HTTP carries the value itself. To other protocols it is a text.
    """

    __slots__ = ()


_SURROGATE = re.compile("[\ud800-\udfff]")


def replace_surrogates(text: str) -> str:
    """Return *text* with U+FFFD for each lone surrogate, which no protocol can carry.

    They stand for bytes of a server that were not UTF-8, as with `surrogateescape`.
    """
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


REQUEST_ID = "x-request-id"
TRACING = ("traceparent", "tracestate")
CREDENTIAL = "authorization"
REPEATED_CREDENTIAL = "the request has several 'authorization' fields; expected one"


def has_two_credentials(pairs: Iterable[tuple[str, str]]) -> bool:
    """Return whether fields have several `authorization`, of which a server reads any one."""
    return sum(name.lower() == CREDENTIAL for name, _ in pairs) > 1


# Triton acts upon metadata of these names. One of them ends it on a stream with an error (server
# 8708, repaired in 2.68).
TRITON_PREFIX = "triton_"

# Headers of one message or one connection: each hop writes its own and never forwards them.
HOP_BY_HOP_HEADERS = frozenset(
    {
        "accept",
        "accept-encoding",
        "connection",
        "content-encoding",
        "content-length",
        "content-type",
        "expect",
        "host",
        "inference-header-content-length",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "user-agent",
    }
)


_OF_ORIGIN = frozenset({"origin", "has_nonfinite_words", "has_null_infinities", "has_half_in_json"})


class IgnoresOrigin(Struct, frozen=True):
    """A value whose equality, hash and repr exclude what tells of its origin."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, IgnoresOrigin) or type(other) is not type(self):
            return NotImplemented
        return self._fields() == other._fields()

    def __hash__(self) -> int:
        return hash(tuple(self._fields()))

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in self._fields())
        return f"{type(self).__name__}({fields})"

    def _fields(self) -> list[tuple[str, Any]]:
        names = self.__struct_fields__
        return [(name, getattr(self, name)) for name in names if name not in _OF_ORIGIN]


class ModelRef(Struct, frozen=True):
    """A model by name and version; "" means any version."""

    name: str
    version: str = ""

    def __str__(self) -> str:
        return f"{self.name} version {self.version}" if self.version else self.name


def with_version(requested: ModelRef, found: ModelRef | None) -> ModelRef:
    """Return *requested*, with the version of *found* if it has none."""
    if requested.version or found is None:
        return requested
    return ModelRef(requested.name, found.version)


class Need(enum.Enum):
    """What `Complete` must add to or restore in a message, because a protocol cannot express it.

    To encode a message, a codec needs NAMES, DATATYPES, SHAPES, BATCHING or OUTPUTS. BATCHING is a
    separate batch size with shapes of one item. OUTPUTS is the name of every requested output in a
    request, and outputs in the model's order in a reply. FLAT_MEMBERS: replies of streams may hold
    outputs by name alone (`InferResponse.flat_members`). UNTYPED: outputs of replies are JSON
    without datatypes (`UntypedData`). ITEMS, with BATCHING: a request has one item, so that a batch
    becomes several requests.

    A message that a codec decoded needs SUBSTITUTES, WIDENED or NUMERIC_VERSIONS. SUBSTITUTES: the
    protocol sends BOOL as UINT8 and BF16 as FP32. WIDENED: the protocol sends a datatype it does
    not have as the next wider one, and unsigned integers as signed; a value out of range is an
    error. NUMERIC_VERSIONS: versions are numbers, and 1 also stands for any other version or none.
    TEXTS: the call has a task on texts, and inputs without names (`InferRequest.texts`).

    TENSORS: a layer reads the tensors of the reply, even where its message goes to the client as it
    came.
    """

    NAMES = "names"
    DATATYPES = "datatypes"
    SHAPES = "shapes"
    BATCHING = "batching"
    OUTPUTS = "outputs"
    SUBSTITUTES = "stand-ins"
    WIDENED = "widened"
    NUMERIC_VERSIONS = "numbers"
    FLAT_MEMBERS = "flat members"
    TEXTS = "texts"
    UNTYPED = "untyped"
    ITEMS = "items"
    TENSORS = "tensors"

    # Enum's hash is written in Python and takes ten times as long; every call uses it repeatedly.
    __hash__ = object.__hash__


class CallSequence(Struct, frozen=True):
    """The position of an inference in a stateful sequence.

    Attributes:
        id: Integer or text, never 0 or "".
        start: First request of the sequence.
        end: Last request of the sequence.
    """

    id: int | str
    start: bool = False
    end: bool = False


class Origin(Struct, frozen=True):
    """The wire form a value was decoded from.

    Attributes:
        codec: Name of the codec that decoded it; only that codec may read `wire` and `form`.
        wire: The wire value (HttpRequest, GrpcResponse ...).
        form: What the codec needs to encode the reply, such as which outputs are binary.
        has_bytes: Every input certainly has its bytes: none is streamed or in shared memory. False
            where the codec has not looked.
        whole: The form of the message, such as "tfs.http": a server of this form may get its bytes,
            for the value says nothing else. "" where it must be written anew.
        refusal: The error of a message that only such a server reads, for a call to any other
            target: the call has no tensors.
        recorded: What recordings keep of `wire`, where that names a person; None for all of it.
        unknown: Members or fields of the message that the common form lacks, as a codec of the same
            name writes them into a message that it writes anew.
    """

    codec: str
    wire: Any
    form: Any = None
    has_bytes: bool = False
    whole: str = ""
    refusal: Any = None
    recorded: Any = None
    unknown: bytes = b""

    def rewritten(self) -> Origin:
        """Return a copy that is not whole: the message must be written anew."""
        return replace(self, whole="")


def unknown_of(origin: Origin | None, codec: str) -> bytes:
    """Return what a message of *codec* has that the common form lacks; b"" for any other."""
    return b"" if origin is None or origin.codec != codec else origin.unknown


class Client(Struct, frozen=True):
    """The program that sent a call.

    Attributes:
        address: Its IP address; "" for a unix socket, and inside the gateway.
        agent: Its `user-agent`; "" for none.
        identity: Whom its credentials name.
    """

    address: str = ""
    agent: str = ""
    identity: Identity = ANONYMOUS


NO_CLIENT = Client()

GATEWAY_CLIENT = Client(identity=GATEWAY)
"""The caller of questions that the gateway asks for itself."""


class Context(IgnoresOrigin, frozen=True):
    """Everything about a call other than its contents.

    Attributes:
        protocol: Codec name of the frontend ("oip.http"); "" inside the gateway.
        metadata: Headers or gRPC metadata of the caller, names in lower case, text only.
        request_id: `x-request-id`, from the caller or generated by the gateway.
        deadline: On the clock of `time.monotonic`, in seconds; None for no deadline.
        session: Number of the connection or stream that carries the call.
        needs: What the caller's codec needs in the reply.
        origin: The wire request; `Call.changed` removes it, and equality ignores it.
        client: The caller.
    """

    protocol: str = ""
    metadata: Metadata = ()
    request_id: str = ""
    deadline: float | None = None
    session: int | None = None
    needs: frozenset[Need] = frozenset()
    origin: Origin | None = None
    client: Client = NO_CLIENT

    def changed(self, **fields: Any) -> Context:
        """Return a copy with *fields* changed."""
        return replace(self, **fields)


NO_CONTEXT = Context()
