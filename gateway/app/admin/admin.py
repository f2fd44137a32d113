"""The admin pages: metrics and probes, on addresses of their own."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Final

import orjson
import structlog

from gateway.app.admin.api import API, AdminApi
from gateway.app.admin.control import Control
from gateway.app.admin.pages import UI, AdminPages
from gateway.app.admin.status import Document, Status, readiness_document, status_page
from gateway.app.errors import reason_of
from gateway.app.transports import http_alpn
from gateway.config.models import AdminConfig
from gateway.ir.errors import ErrorCode, GatewayError
from gateway.settings.units import Address
from gateway.transports.admission import MemoryBudget
from gateway.transports.contract import HttpFrontend, HttpMount, Server, ServerLimits
from gateway.transports.http1.server import HttpServer
from gateway.transports.net.tls_files import TlsFiles
from gateway.wire.errors import HTTP_STATUS
from gateway.wire.http import Headers, HttpRequest, HttpResponse

log = structlog.get_logger(__name__)

Page = Callable[[str], Awaitable[tuple[bytes, str]]]
"""Returns the metrics page and its content type; the argument is the Accept header."""

PAGE_DRAIN_S: Final = 1.0
"""Longest time for the pages that are being read when another gateway takes over."""

_MIB = 1 << 20
_HTML = Headers(
    [
        ("Content-Type", "text/html; charset=utf-8"),
        ("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'"),
    ]
)
_JSON = Headers([("Content-Type", "application/json")])
# The transport raises errors before and after a page is made. An unknown coding is 415.
_STATUS = HTTP_STATUS | {ErrorCode.UNSUPPORTED: 415}


class AdminFrontend(HttpFrontend):
    """Serves GET on /metrics, /livez, /readyz and /status, and the paths of `Control`.

    Args:
        page: Renders /metrics.
        ready: Returns the result of /readyz.
        probes: False to serve only /metrics, like Triton's metrics port.
        control: Handles the pages about the configuration; None for no such pages.
        status: Returns the document of /status; None for no such page.
        api: Serves /api/v1/ and /ui/; None for neither.
    """

    def __init__(
        self,
        page: Page,
        ready: Callable[[], Awaitable[bool]],
        *,
        probes: bool = True,
        control: Control | None = None,
        status: Status | None = None,
        api: AdminApi | None = None,
    ) -> None:
        self._page = page
        self._ready = ready
        self._status = status
        pages = ("/metrics", "/livez", "/readyz") if probes else ("/metrics",)
        pages = pages if status is None else (*pages, "/status")
        self._control = control
        self._paths = pages if control is None else (*pages, *control.paths)
        self._api = api
        self._pages = None if api is None else AdminPages(api)

    async def __call__(self, wire: HttpRequest, /) -> AsyncGenerator[HttpResponse, None]:
        """Handle one request."""
        if self._api is not None and wire.path.startswith(API):
            async with aclosing(self._api(wire)) as responses:
                async for response in responses:
                    yield response
        elif self._pages is not None and wire.path in {"/", UI[:-1]}:
            yield HttpResponse(308, Headers([("Location", UI)]))
        elif self._pages is not None and wire.path.startswith(UI):
            yield await self._pages(wire)
        elif wire.path not in self._paths:
            paths = ", ".join((*self._paths, *(() if self._api is None else (API, UI))))
            yield _response(404, {"error": f"unknown path {wire.path!r}; expected one of {paths}"})
        elif self._control is not None and wire.path in self._control.paths:
            yield _response(*await self._control(wire))
        else:
            yield await self._probe_response(wire)

    async def _probe_response(self, wire: HttpRequest) -> HttpResponse:
        """Return metrics, liveness, readiness or the status."""
        if wire.method not in {"GET", "HEAD"}:
            return _response(405, {"error": f"method {wire.method!r} is not allowed; expected GET"})
        if wire.path == "/metrics":
            page, content_type = await self._page(wire.headers.get("accept") or "")
            return HttpResponse(200, Headers([("Content-Type", content_type)]), (page,))
        if wire.path == "/livez":
            return _response(200, {"live": True})
        if wire.path == "/status" and self._status is not None:
            document = await self._status()
            if self._control is not None:
                document = document | {"runtime": self._control.runtime()}
            return _status_response(document, wire.headers.get("accept") or "")
        if self._status is not None and _is_verbose(wire.query):
            readiness = readiness_document(await self._status())
            return _response(200 if readiness["ready"] else 503, readiness)
        ready = await self._ready()
        return _response(200 if ready else 503, {"ready": ready})

    def is_probe(self, wire: HttpRequest, /) -> bool:
        """Tell whether *wire* asks about health."""
        return wire.path in {"/livez", "/readyz"}

    def reject(self, error: GatewayError, /) -> HttpResponse:
        """Return the response to a malformed request, or to one for which there is no room."""
        return _response(_STATUS[error.code], {"error": error.message})


async def start_pages(  # noqa: PLR0913  # the last two by name
    admin: AdminConfig | None,
    page: Page,
    ready: Callable[[], Awaitable[bool]],
    control: Control | None = None,
    status: Status | None = None,
    api: AdminApi | None = None,
    *,
    tls: TlsFiles | None = None,
    reuse_port: bool = False,
) -> dict[str, Server]:
    """Start the admin pages and return their servers by name: "admin", "metrics".

    Args:
        admin: Their addresses. None for the default ones; a default address in use is skipped.
        page: Renders /metrics.
        ready: Returns the result of /readyz.
        control: Handles the pages about the configuration; None for no such pages.
        status: Returns the document of /status; None for no such page.
        api: Serves /api/v1/ and /ui/; None for neither.
        tls: The TLS files; None for no TLS.
        reuse_port: Share the addresses with another gateway.

    Raises:
        OSError: The gateway cannot listen on an address of the configuration.
    """
    config = AdminConfig() if admin is None else admin
    pages = {
        "admin": (
            config.address,
            AdminFrontend(page, ready, control=control, status=status, api=api),
        ),
        "metrics": (config.metrics, AdminFrontend(page, ready, probes=False)),
    }
    configured = set() if admin is None else admin.model_fields_set
    started: dict[str, Server] = {}
    for name, (address, frontend) in pages.items():
        if address is None:
            continue
        server = _server(address, frontend, tls, reuse_port=reuse_port)
        try:
            await server.start()
        except OSError as error:
            if ("address" if name == "admin" else name) in configured:
                for other in started.values():
                    await other.stop()
                raise OSError(f"{name}: {reason_of(error)}") from error
            _log_unstarted(name, address, error, started)  # it must not stop the data listeners
            continue
        started[name] = server
    return started


def _log_unstarted(
    name: str, address: Address, error: OSError, started: Mapping[str, Server]
) -> None:
    """Log that a default address is in use, as that of the metrics is next to a Triton."""
    if name == "metrics" and "admin" in started:
        instead = f"http://{started['admin'].address}/metrics"
        log.info("port of the metrics is in use", address=str(address), instead=instead)
        return
    log.warning("admin page not started", page=name, address=str(address), reason=str(error))


def _server(
    address: Address, frontend: AdminFrontend, tls: TlsFiles | None, *, reuse_port: bool
) -> Server:
    return HttpServer(
        address.host,
        address.port,
        tls=None if tls is None else tls.context(*http_alpn("native")),
        mounts=[HttpMount(("",), frontend)],
        limits=ServerLimits(message_bytes=_MIB, connections=64, connections_per_address=64),
        budget=MemoryBudget(8 * _MIB),
        reserve=True,
        reuse_port=reuse_port,
    )


def _is_verbose(query: str) -> bool:
    return query.partition("=")[0] == "verbose"


def _status_response(document: Document, accept: str) -> HttpResponse:
    """Return the status as JSON, or as a page for a browser, which accepts text/html."""
    if "text/html" not in accept:
        return _response(200, document)
    return HttpResponse(200, _HTML, (status_page(document).encode(),))


def _response(status: int, document: object) -> HttpResponse:
    return HttpResponse(status, _JSON, (orjson.dumps(document),))
