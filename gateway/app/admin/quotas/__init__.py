"""`/api/v1/quotas` and its page: what clients have used of each quota."""

from typing import Any, Final

from gateway.api.admin import AdminRequest, AdminRoute, Json, Page
from gateway.app.admin.running import running

MOST_BUDGETS: Final = 1000


async def quotas(request: AdminRequest) -> Json:
    """Return the budgets."""
    return Json(await _document(request))


async def show(request: AdminRequest) -> Page:
    """Return the page."""
    document = await _document(request)
    return Page("quotas/page.html", {"title": "Quotas", "document": document})


async def _document(request: AdminRequest) -> dict[str, Any]:
    """Return the budgets of which most is used, of one quota or of one client if asked so."""
    found = await running(request).quotas()
    query = request.query
    for name in ("quota", "client"):
        if query.get(name):
            found = [
                each for each in found if query[name] in {each.get(name), each["by"].get(name)}
            ]
    found.sort(
        key=lambda each: (-each["used"] / each["limit"], each["quota"], *each["by"].values())
    )
    return {"budgets": found[:MOST_BUDGETS], "count": len(found)}


_SUMMARY: Final = (
    "What is used of each quota, by client or what else it is counted by, over all workers and "
    f"replicas; the {MOST_BUDGETS} budgets of which most is used."
)
ROUTES: Final = (
    AdminRoute(path="/api/v1/quotas", handle=quotas, summary=_SUMMARY),
    AdminRoute(path="/ui/quotas", menu="Quotas", handle=show, summary=_SUMMARY),
)
