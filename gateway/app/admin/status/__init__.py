"""`/status` and `/api/v1/status`: routes, upstreams, limits, warnings, traffic."""

from typing import Final

from gateway.api.admin import AdminRequest, AdminRoute, Json, Redirect
from gateway.app.admin.running import running


async def plain(request: AdminRequest) -> Json | Redirect:
    """Return the status; a browser, which accepts text/html, gets the pages instead."""
    if "text/html" in request.headers.get("accept", ""):
        return Redirect("/ui/")
    return Json(await running(request).plain_status())


async def status(request: AdminRequest) -> Json:
    """Return the status with the traffic of the last minute."""
    return Json(await request.gateway.status())


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
)
