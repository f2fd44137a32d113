"""The routes of an admin port without a socket."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from prometheus_client.core import Metric

from gateway.admin.router import AdminRouter
from gateway.api.admin import AdminNeed, AdminRequest, AdminRoute, Json
from gateway.api.extension import LeadingPart
from gateway.app.admin.running import RunningGateway
from gateway.app.admin.server import admin_routers
from gateway.app.build.parts import LeadingParts
from gateway.app.run.reload import Reloader
from gateway.config.admin import AdminConfig
from gateway.config.load import LoadedConfig, load_text
from gateway.ir.context import Client
from gateway.wire.http import Headers, HttpRequest


class Process:
    """A process without traffic."""

    async def status(self) -> dict[str, Any]:
        """Return a status without routes."""
        return {"routes": []}

    async def ready(self) -> bool:
        """Return that it is ready."""
        return True

    async def page(self, _accept: str, /) -> tuple[bytes, str]:
        """Return no metrics."""
        return b"", "text/plain"

    async def families(self) -> Iterable[Metric]:
        """Return no metrics."""
        return ()


async def _named(request: AdminRequest) -> Json:
    return Json({"name": request.names["name"]})


class NeedsMigrate(LeadingPart):
    """A part with routes that need `migrate`, and one that everybody may ask."""

    routes = (
        AdminRoute(
            path="/api/v1/migrations/{name}/verdict", handle=_named, summary="V.", open="verdict"
        ),
        AdminRoute(
            path="/api/v1/migrations/{name}/samples/{sample}",
            handle=_named,
            summary="A payload.",
            need=AdminNeed.MIGRATE,
        ),
        AdminRoute(
            path="/api/v1/migrations/{name}/pause",
            handle=_named,
            summary="A change.",
            method="POST",
            need=AdminNeed.MIGRATE,
        ),
    )


def router_of(
    loaded: LoadedConfig | str,
    leading: LeadingParts | None = None,
    reloader: Reloader | None = None,
) -> AdminRouter:
    """Return what serves the admin port of a configuration."""
    found = load_text(loaded) if isinstance(loaded, str) else loaded

    async def apply(_loaded: LoadedConfig, _drained: object) -> dict[str, list[str]]:
        return {}

    known = reloader or Reloader(lambda: found, found, apply, clock=lambda: 5.0)
    gateway = RunningGateway(Process(), known, leading or LeadingParts({}))
    return admin_routers(found.config.admin or AdminConfig(), gateway)["admin"]


@dataclass
class Reply:
    """A response."""

    status: int
    headers: Headers
    body: bytes

    @property
    def document(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


async def ask(
    served: AdminRouter,
    path: str,
    method: str = "GET",
    body: bytes = b"",
    query: str = "",
    *,
    address: str = "127.0.0.1",
    headers: Mapping[str, str] | None = None,
) -> Reply:
    """Return the response to a request, by default of a command on this machine."""
    fields = {"Host": "localhost", "x-gateway-admin": "1"} if headers is None else headers
    wire = HttpRequest(
        method, path, query, Headers(list(fields.items())), (body,), client=Client(address)
    )
    parts = [each async for each in served(wire)]
    whole = b"".join(bytes(each.view) for each in parts)
    return Reply(parts[0].status, parts[0].headers, whole)
