"""`/api/v1/quotas` and its page: what clients have used of each quota."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from gateway.api.admin import AdminRequest, AdminRoute, Json, Page

MOST_BUDGETS: Final = 1000

Budgets = Callable[[], Awaitable[list[dict[str, Any]]]]
"""Returns what is used of each budget."""


async def quotas(budgets: Budgets, request: AdminRequest) -> Json:
    """Return the budgets."""
    return Json(await _document(budgets, request))


async def show(budgets: Budgets, request: AdminRequest) -> Page:
    """Return the page."""
    document = await _document(budgets, request)
    return Page("page.html", {"title": "Quotas", "document": document})


async def _document(budgets: Budgets, request: AdminRequest) -> dict[str, Any]:
    """Return the budgets of which most is used, of one quota or of one client if asked so."""
    found = await budgets()
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


def routes_of(budgets: Budgets) -> tuple[AdminRoute, ...]:
    """Return the routes, which show the budgets."""
    return (
        AdminRoute(path="/api/v1/quotas", handle=partial(quotas, budgets), summary=_SUMMARY),
        AdminRoute(
            path="/ui/quotas", menu="Quotas", handle=partial(show, budgets), summary=_SUMMARY
        ),
    )
