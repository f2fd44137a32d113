"""`/api/v1/residency`, its page, and `/residency/...`: which models are loaded, and changes."""

from typing import Any, Final

import msgspec

from gateway.api.admin import AdminNeed, AdminRequest, AdminRoute, Json, Page
from gateway.app.admin.running import running


class _ModelBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `/residency/pin` and others."""

    name: str


async def residency(request: AdminRequest) -> Json:
    """Return which models each endpoint holds."""
    return Json(await _document(request))


async def show(request: AdminRequest) -> Page:
    """Return the page."""
    document = await _document(request)
    return Page("residency/page.html", {"title": "Loaded models", "document": document})


async def _document(request: AdminRequest) -> dict[str, Any]:
    status = await running(request).plain_status()
    return {"upstreams": status.get("residency", {})}


async def pin(request: AdminRequest) -> Json:
    """Load a model, and keep it."""
    return await _change(request, "pin")


async def unpin(request: AdminRequest) -> Json:
    """Let a model be unloaded for others again."""
    return await _change(request, "unpin")


async def evict(request: AdminRequest) -> Json:
    """Unload a model at the end of its running calls."""
    return await _change(request, "evict")


async def _change(request: AdminRequest, action: str) -> Json:
    try:
        name = msgspec.json.decode(request.body, type=_ModelBody).name
    except ValueError as error:
        return Json({"error": str(error)}, 400)
    try:
        return Json(await running(request).residency.request(action, name))
    except LookupError as error:
        return Json({"error": str(error.args[0])}, 404)


_SUMMARY: Final = "Which models each endpoint of an upstream with `residency` holds, and their use."
ROUTES: Final = (
    AdminRoute(path="/api/v1/residency", handle=residency, summary=_SUMMARY),
    AdminRoute(path="/ui/residency", menu="Models", handle=show, summary=_SUMMARY),
    AdminRoute(
        path="/residency/pin",
        method="POST",
        need=AdminNeed.OPERATE,
        handle=pin,
        summary='Loads a model, and never unloads it for another one: `{"name": "MODEL"}`.',
    ),
    AdminRoute(
        path="/residency/unpin",
        method="POST",
        need=AdminNeed.OPERATE,
        handle=unpin,
        summary="Lets it be unloaded for others again.",
    ),
    AdminRoute(
        path="/residency/evict",
        method="POST",
        need=AdminNeed.OPERATE,
        handle=evict,
        summary="Unloads a model at the end of its running calls; the next call loads it again.",
    ),
)
