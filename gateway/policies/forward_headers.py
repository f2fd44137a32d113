"""Headers for a target: forwards those of the caller that are listed, and adds others.

Only tracing headers are forwarded by default; credentials are not.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from gateway.accelerator import accelerated
from gateway.api.layer import Entries, Layer, LayerContext
from gateway.ir.calls import (
    Call,
    InferRequest,
    ModelConfigRequest,
    ModelMetadataRequest,
    ModelReadyRequest,
    RepositoryIndexRequest,
    ServerLiveRequest,
    ServerMetadataRequest,
    ServerReadyRequest,
    call_with_metadata,
)
from gateway.ir.context import (
    CREDENTIAL,
    HOP_BY_HOP_HEADERS,
    REPEATED_CREDENTIAL,
    REQUEST_ID,
    TRACING,
    TRITON_PREFIX,
    Metadata,
    has_two_credentials,
)
from gateway.ir.errors import InvalidRequest
from gateway.ir.texts import field_text
from gateway.service import ReplyCoroutine, Service
from gateway.settings.config_view import ConfigView, Finding
from gateway.settings.fields import HeaderName, Names
from gateway.settings.model import Model
from gateway.settings.setting import Setting

R = TypeVar("R")

# Never forwarded, regardless of the configuration: each hop has its own. Codecs write the request
# id from the context.
_NEVER = HOP_BY_HOP_HEADERS | {REQUEST_ID}

_MAX_NAMES = 1024
_MAX_NAME_CHARS = 128

_QUESTIONS: frozenset[type[Call[Any]]] = frozenset(
    {
        ServerLiveRequest,
        ServerReadyRequest,
        ServerMetadataRequest,
        ModelReadyRequest,
        ModelMetadataRequest,
        ModelConfigRequest,
        RepositoryIndexRequest,
    }
)


FORWARD_HEADERS: Final = Setting[tuple[str, ...]](
    key="forward_headers",
    type=Names,
    default=(),
    help=(
        "Client headers that are forwarded; `x-*` are all that begin with `x-`. Of "
        "credentials only `authorization` is, if it stands here in full. Values of `-bin` "
        "names are bytes over gRPC and base64 over HTTP; others that are not printable "
        "ASCII are percent-encoded, with each `%`. Names with `triton_` are refused. "
        "Tracing headers are always forwarded. Default: `[]`."
    ),
    places=("upstream",),
)
CLIENT_HEADER: Final = Setting[str | None](
    key="client_header",
    type=HeaderName | None,
    default=None,
    help=(
        "Header with the name of the client, in place of what the caller sent. `%`, spaces "
        "at its ends and all but printable ASCII are percent-encoded. Clients then share "
        "neither batches nor cached responses. Default: none."
    ),
    places=("upstream",),
)


@dataclass(frozen=True, slots=True)
class AddedHeaders:
    """The headers of every call of an endpoint."""

    headers: Mapping[str, str] = field(default_factory=dict)


class ForwardHeaders:
    """Replaces the metadata of a call by the headers for the target.

    Args:
        inner: The service to call.
        allowed: Case-insensitive names of headers to forward; "x-*" allows a prefix.
        added: Headers of every call; they replace the caller's.
        inference: Handles each InferRequest; None for *inner*.
        plain: Handles each plain inference, see `Entries`; None for *inference*.
    """

    def __init__(
        self,
        inner: Service,
        allowed: Iterable[str],
        added: Mapping[str, str],
        *,
        inference: Service | None = None,
        plain: Service | None = None,
    ) -> None:
        self._inner = inner
        self._inference = inner if inference is None else inference
        self._plain = self._inference if plain is None else plain
        names = [name.lower() for name in allowed]
        self._added = tuple((name.lower(), value) for name, value in added.items())
        self._is_forwarded = _Forwarded(
            frozenset(name for name, _ in self._added) | _NEVER,
            frozenset([*TRACING, *(name for name in names if not name.endswith("*"))]),
            tuple(name[:-1] for name in names if name.endswith("*")),
        )
        self._has_credential = CREDENTIAL in names
        # Callers repeat their headers, and transports then pass the identical tuple.
        self._last: tuple[Metadata, Metadata] = ((), self._added)

    def __call__(self, call: Call[R], /) -> ReplyCoroutine[R]:
        """Call *inner* with the metadata for the target."""
        context = call.context
        metadata = context.metadata
        last, forwarded = self._last
        if metadata is not last:
            forwarded = pairs_named(metadata, self._is_forwarded)
            if self._has_credential and has_two_credentials(forwarded):
                return _refuse(call)
            if self._added:
                forwarded += self._added
            self._last = metadata, forwarded
        inner = self._inner
        if type(call) is InferRequest:
            origin = context.origin
            has_bytes = origin is not None and origin.has_bytes
            inner = self._plain if has_bytes and not call.outputs else self._inference
        return inner(call_with_metadata(call, forwarded))


async def _refuse(call: Call[Any]) -> Any:
    raise InvalidRequest(REPEATED_CREDENTIAL, model=call.model)


def forwards_authorization(upstream: Model) -> bool:
    """Return whether an upstream gets the header `authorization` of clients that have a name."""
    return any(name.lower() == CREDENTIAL for name in FORWARD_HEADERS.of(upstream))


@accelerated
def pairs_named(metadata: Metadata, is_wanted: Mapping[str, bool]) -> Metadata:
    """Return the pairs of *metadata* with the names that are wanted."""
    return tuple([pair for pair in metadata if is_wanted[pair[0]]])


class _Forwarded(dict[str, bool]):
    """Whether the headers of a name are forwarded, for the names that clients send.

    Args:
        own: Names that are not.
        exact: Names that are.
        prefixes: What names begin with that are.
    """

    def __init__(
        self, own: frozenset[str], exact: frozenset[str], prefixes: tuple[str, ...]
    ) -> None:
        super().__init__()
        self._own = own
        self._exact = exact
        self._prefixes = prefixes

    def __missing__(self, name: str) -> bool:
        # A pattern never forwards the credential of a client; its name in full does.
        is_meant = name != CREDENTIAL and name.startswith(self._prefixes)
        is_listed = name in self._exact or is_meant
        found = is_listed and name not in self._own and not name.startswith(TRITON_PREFIX)
        if len(self) < _MAX_NAMES and len(name) <= _MAX_NAME_CHARS:  # clients choose the names
            self[name] = found
        return found


class NamedForwardHeaders(ForwardHeaders):
    """Does the same, and adds a header with the name of the client.

    Args:
        inner: The service to call.
        allowed: Case-insensitive names of headers to forward.
        added: Headers of every call.
        client_header: The header, in lower case; what the caller sent there is dropped.
        inference: Handles each InferRequest; None for *inner*.
        plain: Handles each plain inference, see `Entries`; None for *inference*.
    """

    def __init__(
        self,
        inner: Service,
        allowed: Iterable[str],
        added: Mapping[str, str],
        client_header: str,
        *,
        inference: Service | None = None,
        plain: Service | None = None,
    ) -> None:
        super().__init__(
            inner, allowed, {**added, client_header: ""}, inference=inference, plain=plain
        )
        self._added = tuple(pair for pair in self._added if pair[0] != client_header)
        self._client_header = client_header
        self._last_named: tuple[Metadata | None, str, Metadata] = (None, "", ())

    def __call__(self, call: Call[R], /) -> ReplyCoroutine[R]:
        """Call *inner* with the metadata for the target."""
        context = call.context
        metadata, name = context.metadata, context.client.identity.name
        last, last_name, forwarded = self._last_named
        if metadata is not last or name != last_name:
            # The gateway itself has no name.
            own = ((self._client_header, field_text(name)),) if name else ()
            own = (*self._added, *own)
            forwarded = pairs_named(metadata, self._is_forwarded)
            if self._has_credential and has_two_credentials(forwarded):
                return _refuse(call)
            forwarded += own
            self._last_named = metadata, name, forwarded
        inner = self._inner
        if type(call) is InferRequest:
            origin = context.origin
            has_bytes = origin is not None and origin.has_bytes
            inner = self._plain if has_bytes and not call.outputs else self._inference
        return inner(call_with_metadata(call, forwarded))


def forwarding(
    inner: Service,
    allowed: Iterable[str],
    added: Mapping[str, str],
    client_header: str | None,
    *,
    inference: Service | None = None,
    plain: Service | None = None,
) -> ForwardHeaders:
    """Return what replaces the metadata of calls by the headers for the target.

    Args:
        inner: The service to call.
        allowed: Case-insensitive names of headers to forward.
        added: Headers of every call.
        client_header: The header with the name of the client; None for none.
        inference: Handles each InferRequest; None for *inner*.
        plain: Handles each plain inference, see `Entries`; None for *inference*.
    """
    if client_header is None:
        return ForwardHeaders(inner, allowed, added, inference=inference, plain=plain)
    return NamedForwardHeaders(
        inner, allowed, added, client_header, inference=inference, plain=plain
    )


class QuestionHeaders:
    """Adds headers to calls about readiness, metadata, configuration and index; others pass.

    It is next to the server, because the gateway asks such questions in several layers.

    Args:
        inner: The service to call.
        added: The headers; they replace those of the same name.
    """

    def __init__(self, inner: Service, added: Mapping[str, str]) -> None:
        self._inner = inner
        by_name = {name.lower(): value for name, value in added.items()}
        self._added = tuple(by_name.items())
        self._names = frozenset(by_name)

    def __call__(self, call: Call[R], /) -> ReplyCoroutine[R]:
        """Call *inner*, with the headers if *call* is such a question."""
        if type(call) in _QUESTIONS:
            kept = [pair for pair in call.context.metadata if pair[0] not in self._names]
            call = call.with_metadata((*kept, *self._added))
        return self._inner(call)


def _build(inner: Entries, at: LayerContext) -> Service:
    allowed = at.setting(FORWARD_HEADERS)
    return forwarding(
        inner.questions,
        allowed,
        at.part(AddedHeaders).headers,
        at.setting(CLIENT_HEADER),
        inference=inner.inference,
        plain=inner.plain,
    )


def _build_shared(inner: Entries, at: LayerContext) -> Service:
    allowed = at.setting(FORWARD_HEADERS)
    return forwarding(inner.questions, allowed, {}, at.setting(CLIENT_HEADER))


def _check(config: ConfigView) -> Iterator[Finding]:
    """Yield the upstreams that forward a header that only Triton may set."""
    for path, names in config.values(FORWARD_HEADERS):
        for name in names:
            if name.lower().startswith(TRITON_PREFIX):
                yield (
                    path[:-1],
                    (
                        f"forward_headers must not contain {name!r}: a client could set what "
                        "Triton keeps for itself, and end it"
                    ),
                )
                break


LAYER: Final = Layer(
    "ForwardHeaders",
    "drops the headers that are not forwarded, adds configured ones",
    "endpoint",
    _build,
    settings=(FORWARD_HEADERS, CLIENT_HEADER),
    check=_check,
)
SHARED_LAYER: Final = Layer(
    "ForwardHeaders", "drops the headers that are not forwarded", "model", _build_shared
)
