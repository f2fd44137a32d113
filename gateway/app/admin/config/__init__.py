"""`/config`, `/api/v1/config` and its page: the configuration in force, without secrets."""

import asyncio
from typing import Any, Final

import yaml

from gateway.api.admin import AdminRequest, AdminRoute, Json, Page
from gateway.app.admin.running import running


async def config(request: AdminRequest) -> Json:
    """Return the configuration in force, without secrets."""
    return Json(await asyncio.to_thread(_document, request))


async def show(request: AdminRequest) -> Page:
    """Return the page."""
    return Page("config/page.html", await asyncio.to_thread(_values, request))


def _values(request: AdminRequest) -> dict[str, Any]:
    document = _document(request)
    changes = document["changes"]
    return {
        "title": "Configuration in force",
        "document": document,
        "lines": _lines(document["config"]),
        "changes": _lines(changes) if any(changes.values()) else [],
    }


def _document(request: AdminRequest) -> dict[str, Any]:
    reloader = running(request).reloader
    loaded = reloader.loaded
    return {
        "file": loaded.source,
        "sha256": loaded.sha256,
        "changes": reloader.runtime_changes.document(),
        "config": loaded.without_secrets(),
    }


def _lines(value: Any) -> list[str]:
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=100).splitlines()


_SUMMARY: Final = "The configuration in force, without secrets, and what was changed at run time."
ROUTES: Final = (
    AdminRoute(path="/config", handle=config, summary=_SUMMARY),
    AdminRoute(path="/api/v1/config", handle=config, summary=_SUMMARY),
    AdminRoute(path="/ui/configuration", menu="Configuration", handle=show, summary=_SUMMARY),
)
