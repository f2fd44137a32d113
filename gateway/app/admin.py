"""The operators' own pages: metrics and probes, never on a data port."""

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
"""Gives the metrics page and its content type, in the form that an Accept header asks for."""

_MIB = 1 << 20
_JSON = Headers([("Content-Type", "application/json")])


class AdminFrontend(HttpFrontend):
    """Answers GET on /metrics, /livez and /readyz.

    Args:
        page: What /metrics shows.
        ready: Whether the gateway takes requests and its routes are ready.
        probes: False where only metrics are wanted, as on Triton's metrics port.
    """

    def __init__(
        self, page: Page, ready: Callable[[], Awaitable[bool]], *, probes: bool = True
    ) -> None:
        self._page = page
        self._ready = ready
        self._paths = ("/metrics", "/livez", "/readyz") if probes else ("/metrics",)

    async def __call__(self, wire: HttpRequest, /) -> AsyncGenerator[HttpResponse, None]:
        """Answer one request."""
        if wire.path not in self._paths:
            yield _answer(404, {"error": f"no such page; there is: {', '.join(self._paths)}"})
        elif wire.method not in {"GET", "HEAD"}:
            yield _answer(405, {"error": "only GET"})
        elif wire.path == "/metrics":
            page, content_type = await self._page(wire.headers.get("accept") or "")
            yield HttpResponse(200, Headers([("Content-Type", content_type)]), (page,))
        elif wire.path == "/livez":
            yield _answer(200, {"live": True})
        else:
            ready = await self._ready()
            yield _answer(200 if ready else 503, {"ready": ready})

    def reject(self, error: GatewayError, /) -> HttpResponse:
        """Say that a request could not be read."""
        return _answer(400, {"error": error.message})


async def start_pages(
    admin: AdminConfig | None, page: Page, ready: Callable[[], Awaitable[bool]]
) -> dict[str, Server]:
    """Serve the operators' pages, and return who does by name: "admin", "metrics".

    Args:
        admin: Where; None for the usual addresses, each left out if it cannot be had.
        page: What /metrics shows.
        ready: What /readyz says.

    Raises:
        OSError: An address that was asked for cannot be had.
    """
    wanted = AdminConfig() if admin is None else admin
    pages = {
        "admin": (wanted.address, AdminFrontend(page, ready)),
        "metrics": (wanted.metrics, AdminFrontend(page, ready, probes=False)),
    }
    asked = set() if admin is None else admin.model_fields_set
    started: dict[str, Server] = {}
    for name, (address, frontend) in pages.items():
        if address is None:
            continue
        server = _server(address, frontend)
        try:
            await server.start()
        except OSError as error:
            if ("address" if name == "admin" else name) in asked:
                for other in started.values():
                    await other.stop()
                raise OSError(f"{name}: {reason_of(error)}") from error
            # Nobody asked for this address: the data listeners matter more.
            log.warning("page left out", page=name, address=str(address), reason=str(error))
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


def _answer(status: int, document: object) -> HttpResponse:
    return HttpResponse(status, _JSON, (orjson.dumps(document),))
