"""`/ui/`: the page with routes, endpoints, models, workers and warnings."""

from collections.abc import Mapping
from typing import Any, Final

from gateway.admin.html import UI
from gateway.api.admin import AdminRequest, AdminRoute, Page, Redirect

Document = dict[str, Any]


async def show(request: AdminRequest) -> Page:
    """Return the page."""
    return Page("overview/page.html", _overview(await request.gateway.status()))


async def to_pages(_request: AdminRequest) -> Redirect:
    """Send a browser to the pages."""
    return Redirect(UI, 308)


def _overview(status: Mapping[str, Any]) -> Document:
    traffic = status["traffic"]
    by_route = {row["route"]: row for row in traffic["routes"]}
    by_target = {(row["route"], row["target"]): row for row in traffic["targets"]}
    by_endpoint = {(row["upstream"], row["address"]): row for row in traffic["endpoints"]}
    weights = status["weights"]
    routes = [
        {
            **route,
            "traffic": by_route.get(route["name"]),
            "targets": [
                {"name": name, "weight": weight, "traffic": by_target.get((route["name"], name))}
                for name, weight in weights.get(route["name"], {}).items()
            ],
        }
        for route in status["routes"]
    ]
    endpoints = [
        {
            "server": "",
            **endpoint,
            "upstream": upstream["name"],
            "traffic": by_endpoint.get((upstream["name"], endpoint["address"])),
        }
        for upstream in status["upstreams"]
        for endpoint in upstream["endpoints"]
    ]
    return {
        "status": {"models": (), "workers": (), **status},
        "routes": routes,
        "endpoints": endpoints,
        "warnings": [_warning(each) for each in reversed(status["warnings"])],
    }


def _warning(entry: Document) -> Document:
    named = {key: str(entry.get(key, "")) for key in ("timestamp", "level", "event")}
    rest = [f"{key}: {value}" for key, value in entry.items() if key not in named]
    return {**named, "details": "; ".join(rest)}


ROUTES: Final = (
    AdminRoute(
        path=UI,
        menu="Overview",
        handle=show,
        summary="Routes, endpoints, models, workers, and what happened in the last minute.",
    ),
    AdminRoute(path="/", open="redirects", handle=to_pages, summary="Leads to `/ui/`."),
    AdminRoute(path=UI[:-1], open="redirects", handle=to_pages, summary="Leads to `/ui/`."),
)
