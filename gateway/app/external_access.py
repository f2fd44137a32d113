"""Programs that decide about calls: Envoy's `Check` over gRPC, or a callable in Python."""

from __future__ import annotations

import inspect
import time
from asyncio import get_running_loop
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

from gateway.app.errors import StartError
from gateway.app.transports import grpc_client
from gateway.config.models import Config, ListenerConfig
from gateway.config.permissions import ExternalConfig
from gateway.ir.calls import Call
from gateway.ir.errors import UpstreamProtocolError
from gateway.ir.identity import Identity
from gateway.policies.access.external import (
    ALLOWED,
    DENIED,
    AskExternal,
    Decide,
    ExternalFacts,
    ExternalVerdict,
)
from gateway.policies.access.operations import expanded
from gateway.registry import load_dotted
from gateway.transports.contract import ClientLimits, GrpcClient
from gateway.wire.grpc import GrpcRequest, GrpcResponse, GrpcStatus
from gateway.wire.http import HttpRequest
from gateway.wire.protobuf import (
    LEN,
    VARINT,
    WireError,
    fields,
    put_bytes,
    put_text,
    put_varint,
    tag,
    text,
    varint,
)

CHECK: Final = "/envoy.service.auth.v3.Authorization/Check"
_THREADS: Final = 8
_MAX_FIELDS: Final = 1000
_OK: Final = 200
_FORBIDDEN: Final = 403
_TOO_MANY: Final = 429


class ExternalAccess:
    """The program that decides for one process.

    A reload with the same settings keeps it, with its connections.

    Attributes:
        config: Its settings; None for no program.
    """

    def __init__(self) -> None:
        self.config: ExternalConfig | None = None
        self._decide: Decide | None = None
        self._clients: list[GrpcClient] = []
        self._threads: ThreadPoolExecutor | None = None

    def layer(self, config: Config, listener: ListenerConfig) -> Callable[..., AskExternal] | None:
        """Return what builds the layer of a listener; None for no layer.

        Raises:
            StartError: The callable cannot be imported.
        """
        settings = config.security.external
        if settings is None:
            return None
        if self._decide is None or settings != self.config:
            self._decide, self.config = self._open(settings), settings
        return partial(
            AskExternal,
            decide=self._decide,
            timeout_s=settings.timeout,
            allows_on_failure=settings.on_failure == "allow",
            cache_s=settings.cache,
            operations=expanded(settings.operations),
            headers=frozenset(settings.headers),
            listener=listener.name,
            default_model=config.default_model_of(listener),
            request_facts=request_facts,
        )

    def _open(self, settings: ExternalConfig) -> Decide:
        if settings.grpc is not None:
            # Calls in progress may still use the client of an earlier configuration.
            client = grpc_client("native", settings.grpc, ClientLimits(), tls=None)
            self._clients.append(client)
            return partial(check, client, settings.timeout)
        try:
            function = load_dotted(settings.python or "")
        except (ImportError, AttributeError, LookupError, ValueError) as error:
            raise StartError(f"security.external.python: {error}") from error
        if inspect.iscoroutinefunction(function):
            return partial(_ask_coroutine, function)
        if self._threads is None:
            self._threads = ThreadPoolExecutor(_THREADS, "external-decision")
        return partial(_ask_function, function, self._threads)

    async def close(self) -> None:
        """Close all connections; idempotent."""
        clients, self._clients = self._clients, []
        for client in clients:
            await client.close()
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)


def request_facts(call: Call[Any]) -> Mapping[str, Any]:
    """Return method, path and host of the request of a call, as far as its carrier has them."""
    origin = call.context.origin
    wire = None if origin is None else origin.wire
    if isinstance(wire, HttpRequest):
        host = wire.headers.get("host") or ""
        return {"method": wire.method, "path": wire.path, "host": host}
    if isinstance(wire, GrpcRequest) and call.context.session is None:
        return {"path": wire.method}
    return {}


async def _ask_coroutine(function: Any, client: Identity, facts: ExternalFacts) -> ExternalVerdict:
    return _verdict_of(await function(client, facts))


async def _ask_function(
    function: Any, threads: ThreadPoolExecutor, client: Identity, facts: ExternalFacts
) -> ExternalVerdict:
    loop = get_running_loop()
    return _verdict_of(await loop.run_in_executor(threads, function, client, facts))


def _verdict_of(answer: object) -> ExternalVerdict:
    """Return what a callable answered: True allows, and False or a text denies."""
    if answer is True:
        return ALLOWED
    if answer is False:
        return DENIED
    if isinstance(answer, str):
        return ExternalVerdict(_FORBIDDEN, answer)
    raise TypeError(f"the callable returned {answer!r:.80}; expected True, False or a text")


async def check(
    client: GrpcClient, timeout_s: float, identity: Identity, facts: ExternalFacts
) -> ExternalVerdict:
    """Ask a server of Envoy's external authorization.

    Raises:
        GatewayError: It cannot be reached, or replies with what cannot be read.

    Source: envoy/service/auth/v3/external_auth.proto.
    """
    request = GrpcRequest(CHECK, (check_request(identity, facts),))
    deadline = time.monotonic() + timeout_s
    response: GrpcResponse = await client.send(request, deadline=deadline)
    if response.status is not GrpcStatus.OK:
        raise UpstreamProtocolError(f"Check ended with {response.status.name}: {response.details}")
    try:
        return read_verdict(response.view)
    except WireError as error:
        raise UpstreamProtocolError(f"not a CheckResponse: {error}") from error


def _key(number: int) -> bytes:
    return varint(tag(number, LEN))


def _message(*parts: tuple[int, bytes | str]) -> bytes:
    """Return a message of texts and messages, by their numbers; empty ones are left out."""
    head = bytearray()
    for number, value in parts:
        if isinstance(value, str):
            if value:
                put_text(head, _key(number), value)
        elif value:
            put_bytes(head, _key(number), value)
    return bytes(head)


def _map(number: int, values: Mapping[str, str]) -> list[tuple[int, bytes | str]]:
    return [(number, _message((1, name), (2, value))) for name, value in values.items()]


def check_request(identity: Identity, facts: ExternalFacts) -> bytes:
    """Return a CheckRequest about a call, without its body and credentials."""
    source = _message((1, _message((1, _message((2, facts.address))))), (4, identity.name))
    http = bytearray(
        _message(
            (1, facts.request_id),
            (2, facts.method),
            *_map(3, dict(facts.headers)),
            (4, facts.path),
            (5, facts.host),
        )
    )
    put_varint(http, varint(tag(9, VARINT)), facts.size_bytes)
    put_text(http, _key(10), facts.protocol)
    extensions = {
        "client": identity.name,
        "groups": ",".join(sorted(identity.groups)),
        "tier": identity.tier,
        "listener": facts.listener,
        "protocol": facts.protocol,
        "operation": facts.operation,
        "model": facts.model,
        "version": facts.version,
        "elements": str(facts.elements),
        "bytes": str(facts.size_bytes),
        "inputs": facts.inputs,
    }
    attributes = _message((1, source), (4, _message((2, bytes(http)))), *_map(10, extensions))
    return _message((1, attributes))


def read_verdict(message: memoryview) -> ExternalVerdict:
    """Read a CheckResponse.

    Raises:
        WireError: It is malformed.
    """
    code, status, body = 0, _FORBIDDEN, ""
    for key, value in fields(message, _MAX_FIELDS):
        if key == tag(1, LEN):
            code = _number(value, 1, code)
        elif key == tag(2, LEN):
            for inner, part in fields(memoryview(value), _MAX_FIELDS):
                if inner == tag(1, LEN):
                    status = _number(part, 1, status)
                elif inner == tag(3, LEN):
                    body = text(part, "body")
    if code == 0:
        return ALLOWED
    return ExternalVerdict(_TOO_MANY if status == _TOO_MANY else _FORBIDDEN, body)


def _number(message: Any, number: int, default: int) -> int:
    """Return an integer field of a nested message; *default* without one."""
    wanted = tag(number, VARINT)
    for key, value in fields(memoryview(message), _MAX_FIELDS):
        if key == wanted:
            default = int(value)
    return default
