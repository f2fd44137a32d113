"""Programs that decide about calls: Envoy's `Check` over gRPC, or a callable in Python."""

from __future__ import annotations

import inspect
from asyncio import get_running_loop
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

from gateway.api.start_error import StartError
from gateway.config.load import LoadedConfig
from gateway.config.models import ListenerConfig
from gateway.config.permissions import ExternalConfig
from gateway.config.tls import client_files
from gateway.ir.calls import Call
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
from gateway.transports.choice import grpc_client
from gateway.transports.contract import ClientLimits, GrpcClient
from gateway.transports.net.tls_files import TlsFiles
from gateway.wire.grpc import GrpcRequest
from gateway.wire.http import HttpRequest

_THREADS: Final = 8
_FORBIDDEN: Final = 403


class ExternalAccess:
    """The program that decides for one process.

    A reload with the same settings keeps it, with its connections.

    Attributes:
        config: Its settings; None for no program.
        tls: Its TLS files; None without TLS.
    """

    def __init__(self) -> None:
        self.config: ExternalConfig | None = None
        self.tls: TlsFiles | None = None
        self._decide: Decide | None = None
        self._clients: list[GrpcClient] = []
        self._threads: ThreadPoolExecutor | None = None

    def layer(
        self, loaded: LoadedConfig, listener: ListenerConfig
    ) -> Callable[..., AskExternal] | None:
        """Return what builds the layer of a listener; None for no layer.

        Raises:
            StartError: The callable cannot be imported.
        """
        settings = loaded.config.security.external
        if settings is None:
            self.tls = None
            return None
        if self._decide is None or settings != self.config:
            self.tls = client_files("external", settings.server_tls, loaded.directory)
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
            default_model=loaded.config.default_model_of(listener),
            request_facts=request_facts,
        )

    def _open(self, settings: ExternalConfig) -> Decide:
        if settings.grpc is not None:
            # Calls in progress may still use the client of an earlier configuration.
            from gateway.access.envoy_check import check  # noqa: PLC0415  # only with such a server

            client = grpc_client("native", settings.address, ClientLimits(), tls=self.tls)
            self._clients.append(client)
            return partial(check, client, settings.timeout)
        try:
            function = load_dotted(settings.python or "")
        except (LookupError, ValueError) as error:
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
