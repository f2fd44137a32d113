"""The operators' own pages: metrics and probes, never on a data port."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable

import orjson

from gateway.ir.errors import GatewayError
from gateway.telemetry.metrics import Metrics
from gateway.wire.http import Headers, HttpRequest, HttpResponse

_JSON = Headers([("Content-Type", "application/json")])


class AdminFrontend:
    """Answers GET on /metrics, /livez and /readyz.

    Args:
        metrics: What /metrics shows.
        ready: Whether the gateway takes requests and its routes are ready.
        probes: False where only metrics are wanted, as on Triton's metrics port.
    """

    def __init__(
        self, metrics: Metrics, ready: Callable[[], Awaitable[bool]], *, probes: bool = True
    ) -> None:
        self._metrics = metrics
        self._ready = ready
        self._paths = ("/metrics", "/livez", "/readyz") if probes else ("/metrics",)

    async def __call__(self, wire: HttpRequest, /) -> AsyncGenerator[HttpResponse, None]:
        """Answer one request."""
        if wire.path not in self._paths:
            yield _answer(404, {"error": f"no such page; there is: {', '.join(self._paths)}"})
        elif wire.method not in {"GET", "HEAD"}:
            yield _answer(405, {"error": "only GET"})
        elif wire.path == "/metrics":
            page, content_type = self._metrics.page(wire.headers.get("accept") or "")
            yield HttpResponse(200, Headers([("Content-Type", content_type)]), (page,))
        elif wire.path == "/livez":
            yield _answer(200, {"live": True})
        else:
            ready = await self._ready()
            yield _answer(200 if ready else 503, {"ready": ready})

    def refuse(self, error: GatewayError, /) -> HttpResponse:
        """Say that a request could not be read."""
        return _answer(400, {"error": error.message})


def _answer(status: int, document: object) -> HttpResponse:
    return HttpResponse(status, _JSON, (orjson.dumps(document),))
