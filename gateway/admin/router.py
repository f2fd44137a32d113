"""AdminRouter: the routes of the admin port, matched, checked and answered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qsl, unquote

import orjson
import structlog

from gateway.admin.access import PROBES, AdminAccess, Refusal
from gateway.admin.audit import NO_FACTS, AuditLog, facts_of
from gateway.admin.html import UI, render
from gateway.api.admin import (
    AdminGateway,
    AdminNeed,
    AdminRequest,
    AdminResult,
    AdminRoute,
    Content,
    Events,
    Json,
    Page,
    Redirect,
)
from gateway.ir.errors import ErrorCode, GatewayError
from gateway.telemetry.faults import FAULTS
from gateway.transports.contract import HttpFrontend
from gateway.wire.errors import HTTP_STATUS, allowed_methods
from gateway.wire.http import Headers, HttpRequest, HttpResponse, response_parts

log = structlog.get_logger(__name__)

API: Final = "/api/v1/"

# So that no browser stores a response, or takes it for anything else.
_SAFE: Final = (
    ("Cache-Control", "no-store"),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
)
_JSON: Final = Headers([("Content-Type", "application/json"), *_SAFE])
_EVENTS: Final = Headers([("Content-Type", "text/event-stream"), *_SAFE])
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HTML: Final = Headers(
    [
        ("Content-Type", "text/html; charset=utf-8"),
        ("Content-Security-Policy", _POLICY),
        ("X-Frame-Options", "DENY"),
        *_SAFE,
    ]
)
_ASK_TOKEN: Final = ("WWW-Authenticate", 'Basic realm="Tensor Gateway", charset="UTF-8"')
_UNAUTHORIZED: Final = 401
# The transport raises errors before and after a response is made. An unknown coding is 415.
_STATUS: Final = HTTP_STATUS | {ErrorCode.UNSUPPORTED: 415}
_NO_PAGE: Final = Page(
    "error.html", {"title": "Not found", "page": "", "text": "There is no such page."}, 404
)


class AdminRouter(HttpFrontend):
    """Serves routes.

    Args:
        gateway: What they show.
        routes: Those of the gateway, then those of extensions.
        access: Decides who may ask.
        audit: Gets a line for each change, view of payloads and refusal; None for none.

    Raises:
        ValueError: Two routes have one path and method.
    """

    def __init__(
        self,
        gateway: AdminGateway,
        routes: Sequence[AdminRoute],
        access: AdminAccess,
        audit: AuditLog | None = None,
    ) -> None:
        self._gateway = gateway
        self._access = access
        self._audit = audit
        self._table = _RouteTable(routes)
        self._menu = tuple((route.path, route.menu) for route in routes if route.menu)
        self._probes = frozenset(route.path for route in routes if route.open == PROBES)

    async def __call__(self, wire: HttpRequest, /) -> AsyncGenerator[HttpResponse, None]:
        """Yield the response to one request."""
        outcome = await self._outcome(wire)
        result, route = outcome.result, outcome.route
        if isinstance(result, Events):
            await self._note(wire, outcome, 200)
            async with aclosing(result.events) as received:
                async for event in received:
                    yield HttpResponse(200, _EVENTS, (event,))
            return
        try:
            response = await self._response(result, route)
        except FAULTS as error:  # a template of an extension, perhaps
            log.exception("internal error", path=wire.path)
            response = await self._response(_failed(error), None)
        await self._note(wire, outcome, response.status)
        for part in response_parts(response):
            yield part

    async def _note(self, wire: HttpRequest, outcome: _Outcome, status: int) -> None:
        """Write a line of the audit log, if the request needs one."""
        if self._audit is not None and outcome.audit_role is not None:
            facts = outcome.facts(wire)
            await self._audit.write(wire, outcome.caller, outcome.audit_role, status, facts)

    async def _outcome(self, wire: HttpRequest) -> _Outcome:
        """Return the result for a request, and what else is known about it."""
        found = self._table.find(wire.path)
        if found is None:
            return await self._unknown(wire)
        route = found.routes.get("GET" if wire.method == "HEAD" else wire.method)
        checked = route or next(iter(found.routes.values()))
        refusal = await self._refusal(wire, checked.need, checked.open)
        if refusal is not None:
            caller = self._access.caller(wire)
            return _Outcome(_refused(refusal), None, checked.need, caller)
        if route is None:
            expected = " or ".join(found.routes)
            text = f"method {wire.method!r} is not allowed; expected {expected}"
            return _Outcome(Json({"error": text}, 405, (("Allow", allowed_methods(found.routes)),)))
        role = None if route.need is AdminNeed.READ else route.need
        caller = self._access.caller(wire)  # a reload may end its token
        try:
            return _Outcome(
                await route.handle(self._request(wire, found.names)), route, role, caller
            )
        except asyncio.CancelledError:  # the client left, and the change may be made all the same
            if self._audit is not None and role is not None:
                self._audit.put(wire, caller, role, None, facts_of(None, bytes(wire.view)))
            raise
        except FAULTS as error:  # of an extension, perhaps: it costs this request alone
            log.exception("internal error", path=wire.path)
            return _Outcome(_failed(error), None, role, caller)

    async def _refusal(
        self, wire: HttpRequest, need: AdminNeed, opened: str = ""
    ) -> Refusal | None:
        """Return why a request is refused, by the present content of the files of tokens."""
        if not self._access.is_unchecked(opened):
            await self._access.renew()
        return self._access.refusal(wire, need, opened)

    def _request(self, wire: HttpRequest, names: Mapping[str, str]) -> AdminRequest:
        query = dict(parse_qsl(wire.query, keep_blank_values=True))
        headers = dict(reversed(wire.headers.lowered))
        body = bytes(wire.view)
        return AdminRequest(self._gateway, wire.method, wire.path, names, query, headers, body)

    async def _unknown(self, wire: HttpRequest) -> _Outcome:
        """Return the result for a path without a route."""
        root = next((each for each in (API, UI) if wire.path.startswith(each)), None)
        if root is not None and self._table.has(root):
            refusal = await self._refusal(wire, AdminNeed.READ)
            if refusal is not None:
                caller = self._access.caller(wire)
                return _Outcome(_refused(refusal), None, AdminNeed.READ, caller)
            if root == UI:
                return _Outcome(_NO_PAGE)
        paths = ", ".join(self._table.listed(root))
        text = f"unknown path {wire.path!r}; expected one of {paths}"
        return _Outcome(Json({"error": text}, 404))

    async def _response(
        self, result: Json | Page | Content | Redirect, route: AdminRoute | None
    ) -> HttpResponse:
        match result:
            case Json(document, status, headers):
                fields = Headers((*_JSON.pairs, *headers)) if headers else _JSON
                return HttpResponse(status, fields, (orjson.dumps(document, default=str),))
            case Page(_, _, status):
                page = await asyncio.to_thread(render, result, route, self._menu)
                return HttpResponse(status, _HTML, (page,))
            case Content(body, kind):
                return HttpResponse(200, Headers([("Content-Type", kind), *_SAFE]), (body,))
            case Redirect(location, status):
                return HttpResponse(status, Headers([("Location", location)]))

    def is_probe(self, wire: HttpRequest, /) -> bool:
        """Tell whether *wire* asks about health."""
        return wire.path in self._probes

    def reject(self, error: GatewayError, /) -> HttpResponse:
        """Return the response to a malformed request, or to one for which there is no room."""
        body = orjson.dumps({"error": error.message})
        return HttpResponse(_STATUS[error.code], _JSON, (body,))


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What became of a request.

    Attributes:
        result: The result.
        route: The route that has it; None for none.
        audit_role: What the request needs, if the audit log has a line for it; else None.
        caller: Who asked for that, as `AdminAccess.caller` has it.
    """

    result: AdminResult
    route: AdminRoute | None = None
    audit_role: AdminNeed | None = None
    caller: str | None = None

    def facts(self, wire: HttpRequest) -> Mapping[str, Any]:
        """Return what the audit log tells of a request that was not refused."""
        if self.route is None or not isinstance(self.result, Json):
            return NO_FACTS
        return facts_of(self.result.document, bytes(wire.view))


def _failed(error: BaseException) -> Json:
    return Json({"error": f"internal error: {type(error).__name__}"}, 500)


def _refused(refusal: Refusal) -> Json:
    asks = (_ASK_TOKEN,) if refusal.status == _UNAUTHORIZED else ()
    return Json({"error": refusal.reason}, refusal.status, asks)


@dataclass(frozen=True, slots=True)
class _FoundRoutes:
    """The routes of a path by method, and the values of its `{name}` parts."""

    routes: dict[str, AdminRoute]
    names: Mapping[str, str] = field(default_factory=dict)


class _RouteTable:
    """Routes by path."""

    def __init__(self, routes: Iterable[AdminRoute]) -> None:
        self._paths: dict[str, dict[str, AdminRoute]] = {}
        for route in routes:
            methods = self._paths.setdefault(route.path, {})
            if route.method in methods:
                raise ValueError(f"two admin routes for {route.method} {route.path}; expected one")
            methods[route.method] = route
        self._patterns = [(path.split("/"), path) for path in self._paths if "{" in path]

    def find(self, path: str) -> _FoundRoutes | None:
        """Return the routes of a path as on the wire; None for none."""
        if "{" not in path and path in self._paths:
            return _FoundRoutes(self._paths[path])
        segments = [unquote(segment) for segment in path.split("/")]
        for pattern, key in self._patterns:
            names = _match(pattern, segments)
            if names is not None:
                return _FoundRoutes(self._paths[key], names)
        return None

    def has(self, root: str) -> bool:
        """Return whether a path begins with *root*."""
        return any(path.startswith(root) for path in self._paths)

    def listed(self, root: str | None) -> list[str]:
        """Return the paths below *root*; with None those below neither root, and the roots."""
        if root is not None:
            return [path for path in self._paths if path.startswith(root)]
        own = (path for path in self._paths if path != "/")
        others = [path for path in own if not f"{path}/".startswith((API, UI))]
        return [*others, *(root for root in (API, UI) if self.has(root))]


def _match(pattern: Sequence[str], segments: Sequence[str]) -> dict[str, str] | None:
    """Return the values of a pattern's names; None if the segments do not match it."""
    if len(pattern) != len(segments):
        return None
    names = {}
    for expected, segment in zip(pattern, segments, strict=True):
        if expected.startswith("{"):
            names[expected[1:-1]] = segment
        elif expected != segment:
            return None
    return names
