"""The table of routes of the admin port: matching, methods, and routes of extensions."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from structlog.testing import capture_logs

from gateway.admin.router import AdminRouter
from gateway.api.admin import AdminNeed, AdminRequest, AdminResult, AdminRoute, Json, Page, Redirect
from gateway.api.extension import Extension, LeadingPart, PartSetup, check_spelling
from gateway.api.start_error import StartError
from gateway.app.admin.server import ROUTES
from gateway.app.build import parts
from gateway.app.build.parts import LeadingParts, OwnProcess
from gateway.config.load import load_text
from gateway.residency.admin import routes_of
from tests.admin_kit import ask, router_of

CONFIG = "version: 1\nlisteners: [{http: 8000}]\nupstreams: {a: {url: 'http://b:1'}}\n"


class Part(LeadingPart):
    """The leading part of an extension that has routes alone."""

    def __init__(self, *routes: AdminRoute) -> None:
        self._routes = routes

    @property
    def routes(self) -> tuple[AdminRoute, ...]:
        """The routes."""
        return self._routes


def served(*routes: AdminRoute) -> AdminRouter:
    return router_of(CONFIG, LeadingParts({"own": Part(*routes)}))


def route(path: str, handle: Callable[[AdminRequest], Awaitable[AdminResult]]) -> AdminRoute:
    return AdminRoute(path=path, handle=handle, summary="Of a test.")


async def echo(request: AdminRequest) -> Json:
    return Json([request.method, dict(request.names), dict(request.query), request.headers["x-a"]])


async def test_a_route_of_an_extension_gets_its_names_and_query() -> None:
    """Segments are decoded, and of a repeated field the first counts."""
    router = served(route("/api/v1/toys/{name}/parts/{part}", echo))
    headers = {"Host": "localhost", "X-A": "1", "x-a": "2"}
    reply = await ask(
        router, "/api/v1/toys/a%2Fb/parts/c", "HEAD", query="as=x&flag", headers=headers
    )
    assert ["HEAD", {"name": "a/b", "part": "c"}, {"as": "x", "flag": ""}, "1"] == reply.document


@pytest.mark.parametrize(
    ("path", "method", "status", "text"),
    [
        ("/nothing", "GET", 404, "expected one of /metrics, /livez, /readyz, /status, /config"),
        ("/api/v1/nothing", "GET", 404, "/api/v1/status"),
        ("/api/v1/toys/{name}", "GET", 200, ""),
        ("/metrics", "POST", 405, "method 'POST' is not allowed; expected GET"),
        ("/reload", "GET", 405, "method 'GET' is not allowed; expected POST"),
        ("/ui/", "POST", 405, "expected GET"),
    ],
)
async def test_unknown_paths_and_methods_are_refused(
    path: str, method: str, status: int, text: str
) -> None:
    """The text names what is expected; a path that looks like a pattern is a path."""

    async def named(request: AdminRequest) -> Json:
        assert {"name": "{name}"} == request.names
        return Json({"error": ""})

    reply = await ask(served(route("/api/v1/toys/{name}", named)), path, method)
    assert (status, True) == (reply.status, text in reply.document["error"])


async def fail(_request: AdminRequest) -> Json:
    raise RuntimeError("of the extension")


async def without_template(_request: AdminRequest) -> Page:
    return Page("missing.html", {})


async def no_json(_request: AdminRequest) -> Json:
    return Json({1: "a key that is no text"})


@pytest.mark.parametrize(
    ("handle", "error"),
    [(fail, "RuntimeError"), (without_template, "TemplateNotFound"), (no_json, "TypeError")],
)
async def test_a_route_that_fails_costs_its_request_alone(
    handle: Callable[[AdminRequest], Awaitable[AdminResult]], error: str
) -> None:
    """The log has the path and the traceback, and the response no text of the exception."""
    router = served(route("/toys", handle))
    with capture_logs() as logs:
        reply = await ask(router, "/toys")
    assert (500, {"error": f"internal error: {error}"}) == (reply.status, reply.document)
    assert [("internal error", "/toys")] == [(each["event"], each["path"]) for each in logs]
    assert 200 == (await ask(router, "/livez")).status


async def test_an_extension_has_pages_with_the_frame_of_all_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its template stands beside its module, is escaped, and its name is in the menu."""
    template = "{% extends 'base.html' %}{% block content %}<p>{{ text }}</p>{% endblock %}"
    (tmp_path / "toys").mkdir()
    (tmp_path / "toys" / "page.html").write_text(template)
    module = ModuleType("toys_of_a_package")
    module.__file__ = str(tmp_path / "toys" / "__init__.py")
    monkeypatch.setitem(sys.modules, module.__name__, module)

    async def show(_request: AdminRequest) -> Page:
        return Page("toys/page.html", {"text": "<b>"})

    show.__module__ = module.__name__
    own = AdminRoute(path="/ui/toys", handle=show, summary="Of a test.", menu="Toys")
    reply = await ask(served(own), "/ui/toys")
    page = reply.body.decode()
    assert "<h1>Toys</h1>" in page
    assert '<li><a href="/ui/toys" aria-current="page">Toys</a></li>' in page
    assert "<p>&lt;b&gt;</p>" in page
    assert (reply.headers.get("content-security-policy") or "").startswith("default-src 'none'")


async def test_a_package_leads_with_routes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """What its part leaves out is as in `LeadingPart`."""

    class Alone(LeadingPart):
        routes = (route("/toys", echo),)

    class Package:
        def lead(self, _processes: object) -> Alone:
            return Alone()

    monkeypatch.setattr(parts, "extensions", lambda: {"toys": Package()})
    leading = LeadingParts.of(OwnProcess(load_text(CONFIG)))
    assert ["/toys"] == [each.path for each in leading.routes]
    assert [] == list(leading.collect())
    assert {"toys": PartSetup()} == leading.setups(1)
    assert "metrics" == leading.on_process_ended("metrics")
    await leading.start()
    leading.lead()
    await leading.stop()


class Misspelt(LeadingPart):
    """A part whose method nobody calls."""

    def on_process_end(self, metrics: object) -> object:
        """Do nothing."""
        return metrics


@pytest.mark.parametrize(
    ("part", "reason"),
    [
        (Misspelt(), "has 'on_process_end'; expected 'on_process_ended', as a LeadingPart has"),
        (object(), "has no 'change'; expected a class derived from gateway.api.LeadingPart"),
    ],
    ids=["misspelt", "incomplete"],
)
def test_a_part_that_is_not_typed_stops_the_start(
    part: object, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A method under another name had no effect, and nobody knew."""
    package = SimpleNamespace(lead=lambda _processes: part)
    monkeypatch.setattr(parts, "extensions", lambda: {"toys": package})
    with pytest.raises(StartError, match=f"the leading part of extension 'toys' {reason}"):
        LeadingParts.of(OwnProcess(load_text(CONFIG)))


@pytest.mark.parametrize("member", ["serv", "check_", "settting", "lead_"])
def test_an_extension_that_misspells_a_member_is_refused(member: str) -> None:
    """The text names the member that was probably meant."""
    own = SimpleNamespace(name="toys", **{member: None})
    with pytest.raises(LookupError, match=f"extension 'toys' has '{member}'; expected"):
        check_spelling("extension 'toys'", own, Extension)


def test_private_names_of_an_extension_are_its_own() -> None:
    """A helper is no misspelt member, although its name is almost one."""
    own = SimpleNamespace(name="toys", _check=None, _lead=None, __serve=None)
    check_spelling("extension 'toys'", own, Extension)


async def test_a_redirect_names_the_path() -> None:
    """The request of the browser is repeated there."""

    async def elsewhere(_request: AdminRequest) -> Redirect:
        return Redirect("/ui/")

    reply = await ask(served(route("/toys", elsewhere)), "/toys")
    assert (307, "/ui/") == (reply.status, reply.headers.get("location"))


def test_two_routes_of_one_path_and_method_are_an_error() -> None:
    """An extension cannot replace a route of the gateway."""
    with pytest.raises(ValueError, match="two admin routes for GET /metrics; expected one"):
        served(route("/metrics", echo))


async def _unused(_action: str, _name: str) -> dict[str, object]:
    return {}


@pytest.mark.parametrize("each", [*ROUTES, *routes_of(_unused)], ids=lambda it: it.path)
def test_each_route_needs_the_role_of_what_it_does(each: AdminRoute) -> None:
    """Changes need `operate`, and all else is `read`."""
    expected = AdminNeed.READ
    if each.path.startswith(("/reload", "/upstream/", "/route/", "/residency/")):
        expected = AdminNeed.OPERATE
    assert expected is each.need
    assert each.need is AdminNeed.READ or not each.open
    assert each.method == "GET" or each.need is not AdminNeed.READ
