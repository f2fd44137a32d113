"""`/livez` and `/readyz`, which orchestrators and load balancers ask."""

from collections.abc import Mapping
from typing import Any, Final

from gateway.admin.access import PROBES
from gateway.api.admin import AdminRequest, AdminRoute, Json
from gateway.app.admin.running import running


async def live(_request: AdminRequest) -> Json:
    """Return that the process runs."""
    return Json({"live": True})


async def ready(request: AdminRequest) -> Json:
    """Return whether the gateway accepts inferences; with `?verbose` also why not."""
    process = running(request).process
    if "verbose" in request.query:
        document = _readiness(await process.status())
        return Json(document, 200 if document["ready"] else 503)
    is_ready = await process.ready()
    return Json({"ready": is_ready}, 200 if is_ready else 503)


def _readiness(status: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a status that tells why the gateway is ready, or not."""
    missing = [route for route in status["routes"] if not route["ready"]]
    return {
        "ready": status["ready"],
        "reason": status["reason"],
        "missing": [
            {key: route[key] for key in ("name", "required", "reason")} for route in missing
        ],
    }


ROUTES: Final = (
    AdminRoute(path="/livez", open=PROBES, handle=live, summary="Whether the process runs."),
    AdminRoute(
        path="/readyz",
        open=PROBES,
        handle=ready,
        summary="Whether the gateway accepts inferences: 200 or 503. `?verbose` names the routes "
        "that are not ready, and why.",
    ),
)
