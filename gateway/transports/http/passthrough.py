"""Passthrough: forwards HTTP requests that no protocol claims to an HTTP upstream.

Only end-to-end fields are forwarded; framing, Host and codings belong to each hop.  Bodies are
forwarded without their content coding.  GET and HEAD are allowed, and POST to listed paths, because
the gateway does not know what the server does with a body.  Where no paths are listed, the paths
of a known server may be.
"""

import posixpath
import re
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from fnmatch import fnmatchcase
from urllib.parse import unquote

import structlog

from gateway.ir.errors import ErrorCode, GatewayError, UpstreamProtocolError
from gateway.ir.redaction import without_addresses
from gateway.transports.contract import HttpClient, HttpFrontend
from gateway.transports.http.faults import text_response
from gateway.transports.http.headers import end_to_end
from gateway.wire.errors import HTTP_METHOD_NOT_ALLOWED, HTTP_STATUS, allowed_methods
from gateway.wire.http import Headers, HttpRequest, HttpResponse, size_of, with_headers

log = structlog.get_logger(__name__)

_OURS = frozenset({"host", "accept-encoding", "content-encoding", "grpc-timeout"})
_SAFE = frozenset({"GET", "HEAD"})
_MAX_BODY_BYTES = 1 << 20
_PAGE_S = 1.0
"""How long a server may take for a page that a protocol could write as well."""
ABSENT = frozenset({404, 405, 501})
"""What servers send for pages that they do not have."""
_SLASHES = re.compile(r"/(?:\.?/)+")
# Pages of servers that are for operators: MLServer, KServe and FastAPI have them.
_OPERATORS = ("/metrics*", "/openapi.json", "/docs*", "/redoc*")
# Failures of a forwarded request that keep their status: any other one, such as "too large",
# describes the response, and becomes 502.
_OWN_FAILURES = frozenset(
    {ErrorCode.OVERLOADED, ErrorCode.UNAVAILABLE, ErrorCode.DEADLINE_EXCEEDED}
)


class PassthroughRefusal(HttpResponse, frozen=True):
    """A response of the rules: no server got the request."""


@dataclass(frozen=True, slots=True)
class PassthroughRules:
    """Which requests pass.

    Attributes:
        allow: Patterns of operators' pages that clients may read.
        post: Patterns of paths that clients may POST to, at most 1 MiB.
        post_known: Clients may also POST to the paths that the client of the upstream knows.
        check_body: Raises GatewayError for a body of JSON that must not pass.
    """

    allow: tuple[str, ...] = ()
    post: tuple[str, ...] = ()
    check_body: Callable[[memoryview], None] = lambda _: None
    post_known: bool = False

    def refuse(self, wire: HttpRequest, known: tuple[str, ...] = ()) -> HttpResponse | None:
        """Return the response to a request that does not pass, or None.

        Args:
            wire: The request.
            known: Patterns of paths that the server is known to have for POST.
        """
        path = normal_path(wire.path)
        if wire.method in _SAFE:
            if _matches(path, _OPERATORS) and not _matches(path, self.allow):
                message = f"path {path!r} is for operators (passthrough: allow)"
                return text_response(HTTP_STATUS[ErrorCode.NOT_FOUND], message)
            return None
        may_post = self.names(path, known)
        if wire.method != "POST" or not may_post:
            message = f"{wire.method} is not passed on for this path (passthrough: post)"
            allow = allowed_methods(("GET", "POST") if may_post else ("GET",))
            refused = text_response(HTTP_METHOD_NOT_ALLOWED, message)
            return with_headers(refused, (("Allow", allow),))
        size = size_of(wire.body)
        if size > _MAX_BODY_BYTES:
            message = f"the body has {size} bytes, at most {_MAX_BODY_BYTES} pass here"
            return text_response(HTTP_STATUS[ErrorCode.TOO_LARGE], message)
        try:
            self.check_body(wire.view)
        except GatewayError as error:
            return text_response(HTTP_STATUS[error.code], error.message)
        return None

    def names(self, path: str, known: tuple[str, ...]) -> bool:
        """Return whether clients may POST to *path*; *known* are patterns of the server's paths."""
        post = (*self.post, *known) if self.post_known else self.post
        return bool(post) and _matches(normal_path(path), post)


def normal_path(path: str) -> str:
    """Return *path* as servers compare it: decoded, in lower case, without empty steps."""
    decoded = unquote(path).lower()
    return posixpath.normpath(_SLASHES.sub("/", decoded))


def _matches(path: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(path, pattern.lower()) for pattern in patterns)


class PassthroughClient:
    """A client that a passthrough uses until it gets another one.

    Each request in progress refers to this object, and other users of the client do not.

    Args:
        client: The client of the upstream.
        posts: Returns patterns of paths that the server is known to have for POST.
        gets_authorization: Whether the upstream gets `authorization` of clients that have a name.
        client_header: The header with the name of the client, in lower case; "" for none.
    """

    __slots__ = ("__weakref__", "client_header", "gets_authorization", "posts", "send", "stream")

    def __init__(
        self,
        client: HttpClient,
        posts: Callable[[], tuple[str, ...]] = tuple,
        *,
        gets_authorization: bool = False,
        client_header: str = "",
    ) -> None:
        self.send = client.send
        self.stream = client.stream
        self.posts = posts
        self.gets_authorization = gets_authorization
        self.client_header = client_header


class Passthrough(HttpFrontend):
    """A frontend that forwards requests.

    Args:
        client: The client of the upstream.
        rules: Which requests are allowed.
        forwarded: Whether to send the client's Host as X-Forwarded-Host.

    Attributes:
        client: Sends the requests that begin now; see `replace_client`.
    """

    def __init__(
        self,
        client: PassthroughClient,
        rules: PassthroughRules = PassthroughRules(),
        *,
        forwarded: bool = False,
    ) -> None:
        self.client = client
        self._rules = rules
        self._is_forwarded = forwarded

    def replace_client(self, client: PassthroughClient) -> None:
        """Forward all requests that begin from now on over *client*."""
        self.client = client

    def claims(self, wire: HttpRequest, /) -> bool:
        """Return whether the rules name the path of a POST, or the server is known to have it."""
        return wire.method == "POST" and self._rules.names(wire.path, self.client.posts())

    async def offer(
        self, wire: HttpRequest, /
    ) -> HttpResponse | AsyncGenerator[HttpResponse, None] | None:
        """Return what the server sends for a page that it has, or for a POST that it claims.

        The result is None for all other requests, and where the server does not answer in time.
        """
        if wire.method not in _SAFE:
            return self(wire) if self.claims(wire) else None
        if _wants_events(wire):
            return None
        try:
            (response,) = [each async for each in self.page(wire)]
        except GatewayError:
            return None
        return None if response.status in ABSENT else response

    async def page(self, wire: HttpRequest, /) -> AsyncGenerator[HttpResponse, None]:
        """Yield the response to a request for a page that the server may not have.

        Raises:
            GatewayError: The server does not answer in time.
        """
        latest = time.monotonic() + _PAGE_S
        deadline = latest if wire.deadline is None else min(wire.deadline, latest)
        yield await self._response(self.client, wire, deadline)

    async def __call__(self, wire: HttpRequest, /) -> AsyncGenerator[HttpResponse, None]:
        """Forward *wire* and yield the response; an event stream is forwarded in pieces."""
        begun, client = False, self.client
        refusal = self._rules.refuse(wire, client.posts())
        if refusal is not None:
            yield PassthroughRefusal(refusal.status, refusal.headers, refusal.body)
            return
        try:
            if wire.method == "HEAD" or not _wants_events(wire):
                yield await self._response(client, wire, wire.deadline)
                return
            async with aclosing(_stream(client, self._request(wire), wire.deadline)) as answers:
                async for answer in answers:
                    begun = True
                    yield answer
        except GatewayError as error:
            if begun:
                raise  # the transport cuts the stream: its end must not look like one
            yield self._failed(error)

    def reject(self, error: GatewayError, /) -> HttpResponse:
        """Return *error* as a response, for a request that was not read completely."""
        return text_response(HTTP_STATUS[error.code], error.message)

    async def _response(
        self, client: PassthroughClient, wire: HttpRequest, deadline: float | None
    ) -> HttpResponse:
        found: HttpResponse = await client.send(self._request(wire), deadline=deadline)
        # The response to HEAD has no body, and not the length of one.
        return HttpResponse(found.status, found.headers) if wire.method == "HEAD" else found

    def _failed(self, error: GatewayError) -> HttpResponse:
        log.debug("passthrough failed", code=error.code.value, error=error.message)
        if error.code not in _OWN_FAILURES:
            error = UpstreamProtocolError(error.message)
        return text_response(HTTP_STATUS[error.code], without_addresses(error).message)

    def _request(self, wire: HttpRequest) -> HttpRequest:
        pairs = [pair for pair in end_to_end(wire.headers) if pair[0].lower() not in _OURS]
        host = wire.headers.get("host")
        if self._is_forwarded and host is not None:
            pairs.append(("X-Forwarded-Host", host))
        return HttpRequest(wire.method, wire.path, wire.query, Headers(pairs), wire.body)


def _wants_events(wire: HttpRequest) -> bool:
    return "text/event-stream" in (wire.headers.get("accept") or "")


async def _stream(
    client: PassthroughClient, request: HttpRequest, deadline: float | None
) -> AsyncGenerator[HttpResponse, None]:
    """Iterate over a client's stream and see to it that it is closed."""
    answers = client.stream(request, deadline=deadline)
    try:
        async for answer in answers:
            yield answer
    finally:
        close = getattr(answers, "aclose", None)
        if close is not None:
            await close()
