"""`/capture`: what is recorded, and commands that start and stop it."""

from typing import Final, Literal

import msgspec

from gateway.api.admin import AdminNeed, AdminRequest, AdminRoute, Json
from gateway.migration.settings import CAPTURE


class _CaptureBody(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The body of `/capture/start`; absent fields are as in the file."""

    models: tuple[str, ...] | None = None
    percent: float | None = None
    payload: Literal["none", "hash", "full"] | None = None


async def show(request: AdminRequest) -> Json:
    """Return what is recorded; the metrics have the counts."""
    view = request.gateway.config()
    config = view.setting(CAPTURE)
    if config is None:
        text = "nothing is captured; expected 'capture' in the configuration"
        return Json({"error": text}, 404)
    return Json(
        {
            "enabled": config.enabled,
            "directory": str(view.directory / config.directory),
            "models": list(config.models),
            "percent": config.percent,
            "payload": config.payload,
        }
    )


async def start(request: AdminRequest) -> Json:
    """Record from now on."""
    try:
        body = msgspec.json.decode(request.body or b"{}", type=_CaptureBody)
    except ValueError as error:
        return Json({"error": str(error)}, 400)
    return await request.gateway.change("capture", {"enabled": True, **msgspec.to_builtins(body)})


async def stop(request: AdminRequest) -> Json:
    """Record nothing from now on."""
    return await request.gateway.change("capture", {"enabled": False})


ROUTES: Final = (
    AdminRoute(path="/capture", handle=show, summary="What is recorded, and where."),
    AdminRoute(
        path="/capture/start",
        method="POST",
        need=AdminNeed.OPERATE,
        handle=start,
        summary="Records from now on; `models`, `percent` and `payload` replace those of the file.",
    ),
    AdminRoute(
        path="/capture/stop",
        method="POST",
        need=AdminNeed.OPERATE,
        handle=stop,
        summary="Records nothing from now on.",
    ),
)
