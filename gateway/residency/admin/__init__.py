"""`/api/v1/residency`, its page, and `/residency/...`: which models are loaded, and changes."""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final

import msgspec

from gateway.api.admin import AdminNeed, AdminRequest, AdminRoute, Json, Page

Change = Callable[[str, str], Awaitable[Mapping[str, Any]]]
"""Pins, unpins or evicts a model, by its name. Raises LookupError if no server has it."""


class _ModelBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `/residency/pin` and others."""

    name: str


async def residency(request: AdminRequest) -> Json:
    """Return which models each endpoint holds."""
    return Json(await _document(request))


async def show(request: AdminRequest) -> Page:
    """Return the page."""
    document = await _document(request)
    return Page("page.html", {"title": "Loaded models", "document": document})


async def _document(request: AdminRequest) -> dict[str, Any]:
    status = await request.gateway.plain_status()
    return {"upstreams": status.get("residency", {})}


async def _change(change: Change, action: str, request: AdminRequest) -> Json:
    try:
        name = msgspec.json.decode(request.body, type=_ModelBody).name
    except ValueError as error:
        return Json({"error": str(error)}, 400)
    try:
        return Json(await change(action, name))
    except LookupError as error:
        return Json({"error": str(error.args[0])}, 404)


_SUMMARY: Final = "Which models each endpoint of an upstream with `residency` holds, and their use."
_CHANGES: Final = {
    "pin": 'Loads a model, and never unloads it for another one: `{"name": "MODEL"}`.',
    "unpin": "Lets it be unloaded for others again.",
    "evict": "Unloads a model at the end of its running calls; the next call loads it again.",
}


def routes_of(change: Change) -> tuple[AdminRoute, ...]:
    """Return the routes, which change what is loaded by *change*."""
    shown = (
        AdminRoute(path="/api/v1/residency", handle=residency, summary=_SUMMARY),
        AdminRoute(path="/ui/residency", menu="Models", handle=show, summary=_SUMMARY),
    )
    changes = [
        AdminRoute(
            path=f"/residency/{action}",
            method="POST",
            need=AdminNeed.OPERATE,
            handle=partial(_change, change, action),
            summary=summary,
        )
        for action, summary in _CHANGES.items()
    ]
    return (*shown, *changes)
