"""A page of the admin port, by an extension."""

from gateway import api

from .policy import LIMIT  # the folder is no package until it is installed


async def show(request: api.AdminRequest) -> api.Page:
    rows = dict(request.gateway.config().values(LIMIT))
    return api.Page("limits.html", {"rows": {".".join(map(str, key)): rows[key] for key in rows}})


async def fail(_request: api.AdminRequest) -> api.Json:
    raise ZeroDivisionError("of the page")


class Toy(api.Extension):
    name = "toy"

    def lead(self, _processes: api.Processes, /) -> api.LeadingPart:
        return ToyPart()


class ToyPart(api.LeadingPart):
    routes = (
        api.AdminRoute(path="/ui/limits", menu="Limits", summary="Largest inputs.", handle=show),
        api.AdminRoute(path="/api/v1/toy", summary="Fails.", handle=fail),
    )
