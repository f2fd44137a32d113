"""What travels beside a question: who asked, until when, and what its answer needs.

Values on the path of every call, here and beside, are structs of msgspec: frozen as a dataclass
can be, made and copied at a tenth of its cost.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

Parameter = bool | int | float | str
Parameters = Mapping[str, Parameter]

Metadata = tuple[tuple[str, str], ...]
Members = Mapping[str, Parameter | tuple[Parameter, ...]]

NO_PARAMETERS: Parameters = {}

REQUEST_ID = "x-request-id"
TRACING = ("traceparent", "tracestate")

# Headers about one message or one connection: written anew on each hop, never passed on.
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


class IgnoresOrigin(Struct, frozen=True):
    """A value whose `origin` takes no part in what it says: not in its equality, hash and repr."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, IgnoresOrigin) or type(other) is not type(self):
            return NotImplemented
        return self._said() == other._said()

    def __hash__(self) -> int:
        return hash(tuple(self._said()))

    def __repr__(self) -> str:
        said = ", ".join(f"{name}={value!r}" for name, value in self._said())
        return f"{type(self).__name__}({said})"

    def _said(self) -> list[tuple[str, Any]]:
        names = self.__struct_fields__
        return [(name, getattr(self, name)) for name in names if name != "origin"]


class ModelRef(Struct, frozen=True):
    """A model by name and, where the caller chose one, version ("" means any)."""

    name: str
    version: str = ""

    def __str__(self) -> str:
        return f"{self.name} version {self.version}" if self.version else self.name


class Need(enum.Enum):
    """What a codec cannot write a message without, or cannot tell of one it has read.

    BATCHING is the batch size apart from shapes of one item. OUTPUTS is every output asked for by
    name in a request, and outputs in the model's own order in an answer. STAND_INS is what a codec
    has read: the protocol writes BOOL as UINT8 and BF16 as FP32, and the model knows which it was.
    WIDENED is likewise: what the protocol lacks is the next wider datatype, UINT16, UINT32 and
    UINT64 among them as signed integers, and a value beyond what was meant is an error. NUMBERS is
    likewise: the protocol's versions are numbers, and 1 may stand for what has another version or
    none.
    """

    NAMES = "names"
    DATATYPES = "datatypes"
    SHAPES = "shapes"
    BATCHING = "batching"
    OUTPUTS = "outputs"
    SUBSTITUTES = "stand-ins"
    WIDENED = "widened"
    NUMERIC_VERSIONS = "numbers"

    # Enum's own, in Python, takes ten times as long: every call asks several times.
    __hash__ = object.__hash__


class Sequence(Struct, frozen=True):
    """A place in a stateful sequence of inferences.

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
        codec: Name of the codec that decoded it; only that codec may look inside.
        wire: The wire value itself (HttpRequest, GrpcResponse ...).
        form: What the codec noted for its own answer, such as which outputs go out as binary.
    """

    codec: str
    wire: Any
    form: Any = None


class Context(IgnoresOrigin, frozen=True):
    """Everything about a call that is not the question.

    Attributes:
        protocol: Codec name of the frontend ("oip.http"); "" inside the gateway.
        metadata: Headers or gRPC metadata the caller sent, names in lower case, text only.
        request_id: `x-request-id`, the caller's or one made by the gateway.
        deadline: On the clock of `time.monotonic`, in seconds; None for no deadline.
        session: Number of the connection or stream the call came on.
        needs: What the caller's codec needs in the reply.
        origin: The wire request; dropped by `Call.changed`; takes no part in equality.
    """

    protocol: str = ""
    metadata: Metadata = ()
    request_id: str = ""
    deadline: float | None = None
    session: int | None = None
    needs: frozenset[Need] = frozenset()
    origin: Origin | None = None

    def changed(self, **fields: Any) -> Context:
        """Return a copy with *fields* changed."""
        return replace(self, **fields)


NO_CONTEXT = Context()
