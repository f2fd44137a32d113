"""`/stock`, `/api/v1/stock` and its page: who calls what."""

import asyncio
from typing import Any, Final

from gateway.api.admin import AdminRequest, AdminRoute, Json, Page
from gateway.config.load import LoadedConfig
from gateway.migration.callers.inventory import merged_rows
from gateway.migration.settings import STOCK

_MAX_ROWS: Final = 500
_OFF: Final = "stock-taking is off; expected 'stock: {}' and 'state' in the configuration"


async def stock(request: AdminRequest) -> Json:
    """Return who calls what; status 404 where nothing is counted."""
    rows = await asyncio.to_thread(_rows, request)
    return Json({"error": _OFF}, 404) if rows is None else Json({"rows": rows})


async def show(request: AdminRequest) -> Page:
    """Return the page."""
    found = await asyncio.to_thread(_rows, request)
    rows = found or []
    values = {
        "error": _OFF if found is None else "",
        "rows": rows[:_MAX_ROWS],
        "more": max(0, len(rows) - _MAX_ROWS),
    }
    return Page("stock/page.html", values)


def _rows(request: AdminRequest) -> list[dict[str, Any]] | None:
    """Return a row for each caller; None where nothing is counted."""
    loaded = LoadedConfig.of(request.gateway.config())
    state = loaded.config.state
    if loaded.setting(STOCK) is None or state is None:
        return None
    return [row.document() for row in merged_rows(loaded.directory / state.directory)]


_SUMMARY: Final = "Who calls what: inferences by client, agent, protocol, model and inputs."
ROUTES: Final = (
    AdminRoute(path="/stock", handle=stock, summary=_SUMMARY),
    AdminRoute(path="/api/v1/stock", handle=stock, summary=_SUMMARY),
    AdminRoute(path="/ui/stock", menu="Callers", handle=show, summary=_SUMMARY),
)
