"""`/reload`, `/upstream/...` and `/route/weights`, which change the running gateway."""

from typing import Any, Final

import msgspec

from gateway.api.admin import AdminNeed, AdminRequest, AdminRoute, Json
from gateway.app.admin.running import running
from gateway.app.run.reload import ReloadResult
from gateway.app.run.runtime_changes import runtime_document
from gateway.telemetry.reload_metrics import APPLIED
from gateway.transports.net.certificates import CERTIFICATES


class _EndpointBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `/upstream/drain` and `/upstream/enable`."""

    name: str


class _WeightsBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `/route/weights`; without weights, those of the file apply again."""

    route: str
    weights: dict[str, int] | None = None


async def reload(request: AdminRequest) -> Json:
    """Read the configuration file again."""
    return reload_response(await running(request).reloader.reload())


async def drain(request: AdminRequest) -> Json:
    """Send no new calls to endpoints of an upstream."""
    return await _set_drained(request, drained=True)


async def enable(request: AdminRequest) -> Json:
    """Send calls to endpoints of an upstream again."""
    return await _set_drained(request, drained=False)


async def _set_drained(request: AdminRequest, *, drained: bool) -> Json:
    try:
        name = msgspec.json.decode(request.body, type=_EndpointBody).name
    except ValueError as error:
        return Json({"error": str(error)}, 400)
    return await running(request).apply(
        lambda changes, config: changes.with_drained(config, name, drained=drained)
    )


async def set_weights(request: AdminRequest) -> Json:
    """Set weights of a route's targets."""
    try:
        body = msgspec.json.decode(request.body, type=_WeightsBody)
    except ValueError as error:
        return Json({"error": str(error)}, 400)
    if any(weight < 0 for weight in (body.weights or {}).values()):
        return Json({"error": "a weight is negative; expected 0 or more"}, 400)
    return await running(request).apply(
        lambda changes, config: changes.with_weights(config, body.route, body.weights)
    )


def reload_response(result: ReloadResult) -> Json:
    """Return the response to a reload: status 200, or 422 with the errors."""
    document: dict[str, Any] = {
        "ok": result.outcome == APPLIED,
        "outcome": result.outcome,
        "file": result.source,
        "sha256_before": result.before,
        "sha256": result.sha256,
    }
    if result.outcome == APPLIED:
        changes = dict(result.changes)
        certificates = changes.pop(CERTIFICATES, [])
        runtime = runtime_document(result.runtime)
        applied = {"changes": changes, CERTIFICATES: certificates, "runtime": runtime}
        return Json(document | applied)
    problems = [problem.entry() for problem in result.problems]
    return Json(document | {"error": result.error, "problems": problems}, 422)


ROUTES: Final = (
    AdminRoute(
        path="/reload",
        method="POST",
        need=AdminNeed.OPERATE,
        handle=reload,
        summary="Reads the configuration file again: 200 with what changed, 422 with its errors.",
    ),
    AdminRoute(
        path="/upstream/drain",
        method="POST",
        need=AdminNeed.OPERATE,
        handle=drain,
        summary='Sends no new calls to an upstream or one of its endpoints: `{"name": '
        '"UPSTREAM/ENDPOINT"}`.',
    ),
    AdminRoute(
        path="/upstream/enable",
        method="POST",
        need=AdminNeed.OPERATE,
        handle=enable,
        summary="Sends calls there again.",
    ),
    AdminRoute(
        path="/route/weights",
        method="POST",
        need=AdminNeed.OPERATE,
        handle=set_weights,
        summary='Sets weights of targets: `{"route": "NAME", "weights": {"TARGET": 1}}`. Without '
        "`weights`, those of the file apply again.",
    ),
)
