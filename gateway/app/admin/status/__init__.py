"""`/status` and `/api/v1/status`: routes, upstreams, limits, warnings, traffic; and their changes.

By the server-sent events of `/api/v1/events` the pages renew themselves.
"""

from typing import Final

from gateway.admin.event_hub import TooManyListeners
from gateway.api.admin import AdminRequest, AdminRoute, Content, Events, Json, Redirect
from gateway.app.admin.running import running


async def plain(request: AdminRequest) -> Json | Redirect:
    """Return the status; a browser, which accepts text/html, gets the pages instead."""
    if "text/html" in request.headers.get("accept", ""):
        return Redirect("/ui/")
    return Json(await running(request).plain_status())


async def status(request: AdminRequest) -> Json:
    """Return the status with the traffic of the last minute."""
    return Json(await request.gateway.status())


async def listen(request: AdminRequest) -> Events | Content | Json:
    """Return the events for one listener; for HEAD none, because nobody would read them."""
    if request.method == "HEAD":
        return Content(b"", "text/event-stream")
    try:
        return Events(running(request).events.listen())
    except TooManyListeners as error:
        return Json({"error": str(error)}, 503, (("Retry-After", "5"),))


ROUTES: Final = (
    AdminRoute(
        path="/status",
        open="status",
        handle=plain,
        summary="Routes, upstreams, limits in use and the latest warnings. A browser gets `/ui/`.",
    ),
    AdminRoute(
        path="/api/v1/status",
        handle=status,
        summary="The status with the traffic of the last minute and the weights in force.",
    ),
    AdminRoute(
        path="/api/v1/events",
        handle=listen,
        summary="Server-sent events: what has changed of the status, and of extensions.",
    ),
)
