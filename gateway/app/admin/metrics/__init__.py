"""`/metrics`: the page that Prometheus reads."""

from typing import Final

from gateway.api.admin import AdminRequest, AdminRoute, Content
from gateway.app.admin.running import running


async def metrics(request: AdminRequest) -> Content:
    """Return the metrics in the format that the `accept` field asks for."""
    accept = request.headers.get("accept", "")
    return Content(*await running(request).process.page(accept))


ROUTES: Final = (
    AdminRoute(
        path="/metrics",
        open="metrics",
        handle=metrics,
        summary="The metrics, in the text format of Prometheus or in OpenMetrics.",
    ),
)
