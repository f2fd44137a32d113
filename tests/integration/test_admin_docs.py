"""docs/admin-api.md and the routes of a running gateway."""

from __future__ import annotations

from pathlib import Path

import aiohttp
import pytest

from gateway.app import Gateway
from gateway.app.admin.server import ROUTES
from gateway.app.build.parts import LeadingParts, OwnProcess
from gateway.app.run.reload import Reloader
from gateway.config.load import load_text
from schemas.admin_api import PAGE, all_routes, page_text

pytestmark = pytest.mark.migration
CONFIG = """
version: 1
listeners: [{http: "127.0.0.1:0"}]
admin: {address: "127.0.0.1:0", metrics: null}
lifecycle: {pre_stop: 0s, drain: 1s}
state: {directory: state}
stock: {}
models:
  sum: {backend: python, options: {callable: "gateway.backends.examples:simple"}}
"""


def test_the_page_about_the_admin_port_is_generated() -> None:
    """`make regenerate` writes it."""
    assert page_text(all_routes()) == PAGE.read_text("utf-8")


async def test_each_route_of_a_running_gateway_is_documented(tmp_path: Path) -> None:
    """With a key of the migration kit it has the same routes, and each path is served."""
    loaded = load_text(CONFIG, directory=tmp_path)
    gateway = Gateway(loaded)
    leading = LeadingParts.of(OwnProcess(loaded))
    await gateway.start(Reloader(lambda: loaded, loaded, gateway.reload), leading)
    text, routes = PAGE.read_text("utf-8"), (*ROUTES, *leading.routes)
    try:
        async with aiohttp.ClientSession(f"http://{gateway.addresses['admin']}") as session:
            for route in routes:
                assert f"| {route.method} | `{route.path}` |" in text
                path = route.path.format(name="x", sample="y", file="page.css")
                async with session.delete(path, headers={"x-gateway-admin": "1"}) as response:
                    assert (path, 405) == (path, response.status)
                    allow = response.headers["allow"].split(", ")
                    assert route.method in allow
                    assert ("HEAD" in allow) is ("GET" in allow)
                if "HEAD" in allow:
                    async with session.head(path) as response:
                        assert (path, True) == (path, response.status != 405)
    finally:
        await gateway.stop()
    assert len(routes) == text.count("| GET |") + text.count("| POST |")
