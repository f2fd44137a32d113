"""`/api/v1/events`: server-sent events, by which the pages renew themselves."""

from typing import Final

from gateway.api.admin import AdminRequest, AdminRoute, Content, Events, Json
from gateway.app.admin.event_hub import TooManyListeners
from gateway.app.admin.running import running


async def listen(request: AdminRequest) -> Events | Content | Json:
    """Return the events for one listener; for HEAD none, because nobody would read them."""
    if request.method == "HEAD":
        return Content(b"", "text/event-stream")
    try:
        return Events(running(request).events.listen())
    except TooManyListeners as error:
        return Json({"error": str(error)}, 503, (("Retry-After", "5"),))


ROUTES: Final = (
    AdminRoute(
        path="/api/v1/events",
        handle=listen,
        summary="Server-sent events: what has changed of the status, and of extensions.",
    ),
)
