"""The admin pages: metrics and probes, on addresses of their own."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable

import orjson
import structlog

from gateway.app.errors import reason_of
from gateway.config.models import AdminConfig
from gateway.config.units import Address
from gateway.ir.errors import GatewayError
from gateway.transports.admission import MemoryBudget
from gateway.transports.contract import HttpFrontend, HttpMount, Server, ServerLimits
from gateway.transports.reference.http_server import HttpServer
from gateway.wire.http import Headers, HttpRequest, HttpResponse

log = structlog.get_logger(__name__)

Page = Callable[[str], Awaitable[tuple[bytes, str]]]
"""Returns the metrics page and its content type; the argument is the Accept header."""

_MIB = 1 << 20
_JSON = Headers([("Content-Type", "application/json")])


class AdminFrontend(HttpFrontend):
    """Serves GET on /metrics, /livez and /readyz.

    Args:
        page: Renders /metrics.
        ready: Returns the result of /readyz.
        probes: False to serve only /metrics, like Triton's metrics port.
    """

    def __init__(
        self, page: Page, ready: Callable[[], Awaitable[bool]], *, probes: bool = True
    ) -> None:
        self._page = page
        self._ready = ready
        self._paths = ("/metrics", "/livez", "/readyz") if probes else ("/metrics",)

    async def __call__(self, wire: HttpRequest, /) -> AsyncGenerator[HttpResponse, None]:
        """Handle one request."""
        if wire.path not in self._paths:
            paths = ", ".join(self._paths)
            yield _response(404, {"error": f"unknown path {wire.path!r}; expected one of {paths}"})
        elif wire.method not in {"GET", "HEAD"}:
            yield _response(405, {"error": f"method {wire.method!r} is not allowed; expected GET"})
        elif wire.path == "/metrics":
            page, content_type = await self._page(wire.headers.get("accept") or "")
            yield HttpResponse(200, Headers([("Content-Type", content_type)]), (page,))
        elif wire.path == "/livez":
            yield _response(200, {"live": True})
        else:
            ready = await self._ready()
            yield _response(200 if ready else 503, {"ready": ready})

    def is_probe(self, wire: HttpRequest, /) -> bool:
        """Tell whether *wire* asks about health."""
        return wire.path != "/metrics"

    def reject(self, error: GatewayError, /) -> HttpResponse:
        """Return the response to a malformed request."""
        return _response(400, {"error": error.message})


async def start_pages(
    admin: AdminConfig | None, page: Page, ready: Callable[[], Awaitable[bool]]
) -> dict[str, Server]:
    """Start the admin pages and return their servers by name: "admin", "metrics".

    Args:
        admin: Their addresses. None for the default ones; a default address in use is skipped.
        page: Renders /metrics.
        ready: Returns the result of /readyz.

    Raises:
        OSError: The gateway cannot listen on an address of the configuration.
    """
    config = AdminConfig() if admin is None else admin
    pages = {
        "admin": (config.address, AdminFrontend(page, ready)),
        "metrics": (config.metrics, AdminFrontend(page, ready, probes=False)),
    }
    configured = set() if admin is None else admin.model_fields_set
    started: dict[str, Server] = {}
    for name, (address, frontend) in pages.items():
        if address is None:
            continue
        server = _server(address, frontend)
        try:
            await server.start()
        except OSError as error:
            if ("address" if name == "admin" else name) in configured:
                for other in started.values():
                    await other.stop()
                raise OSError(f"{name}: {reason_of(error)}") from error
            # A default address in use must not stop the data listeners.
            log.warning(
                "admin page not started", page=name, address=str(address), reason=str(error)
            )
            continue
        started[name] = server
    return started


def _server(address: Address, frontend: AdminFrontend) -> Server:
    return HttpServer(
        address.host,
        address.port,
        mounts=[HttpMount(("",), frontend)],
        limits=ServerLimits(message_bytes=_MIB, connections=64, connections_per_address=64),
        budget=MemoryBudget(8 * _MIB),
        reserve=True,
    )


def _response(status: int, document: object) -> HttpResponse:
    return HttpResponse(status, _JSON, (orjson.dumps(document),))
