"""The pages under `/ui/` as a program sees them: headers, escapes, rejections and missing pages."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway import admin
from gateway.admin.html import render
from gateway.api.admin import Page
from gateway.app import Gateway
from gateway.app.admin import overview
from tests.integration.test_admin_api import started


@pytest.mark.parametrize(
    ("path", "status", "text"),
    [
        ("", 200, "<h1>Overview</h1>"),
        ("configuration", 200, "hosts:"),
        ("static/page.css", 200, "color-scheme: light dark"),
        ("static/page.js", 200, '"use strict"'),
        ("static/../pages.py", 404, ""),
        ("static/%2e%2e%2fpages.py", 404, "unknown file"),
        ("nothing", 404, "There is no such page."),
    ],
)
async def test_pages_have_a_strict_policy_and_no_secrets(path: str, status: int, text: str) -> None:
    """Each page is served with a strict content security policy and without secrets."""
    async with started() as gateway:
        await check_page(gateway, path, status, text)


async def check_page(gateway: Gateway, path: str, status: int, text: str) -> None:
    """Check the status and a text of a page, its policy, and that it has no secrets."""
    async with (
        aiohttp.ClientSession(f"http://{gateway.addresses['admin']}") as session,
        session.get(f"/ui/{path}") as response,
    ):
        found = await response.text()
        assert (status, True) == (response.status, text in found)
        assert "hidden-token" not in found
        assert "0123456789abcdef" not in found
        if response.content_type == "text/html":
            assert response.headers["content-security-policy"].startswith("default-src 'none';")
            assert "DENY" == response.headers["x-frame-options"]


async def test_root_redirects_to_the_pages() -> None:
    """A browser that opens the admin port is redirected to the pages."""
    async with (
        started() as gateway,
        aiohttp.ClientSession(f"http://{gateway.addresses['admin']}") as session,
        session.get("/") as response,
    ):
        assert (200, "/ui/") == (response.status, response.url.path)


async def test_pages_reject_foreign_hosts() -> None:
    """A page of another site cannot read them by DNS rebinding."""
    async with started() as gateway, aiohttp.ClientSession() as session:
        url = f"http://{gateway.addresses['admin']}/ui/"
        async with session.get(url, headers={"Host": "evil.example"}) as response:
            assert 403 == response.status
        async with session.post(url) as response:
            assert 405 == response.status


async def test_overview_shows_targets_with_and_without_calls() -> None:
    """A route without calls in the last minute has a row without latencies."""
    row = {"calls": 0, "per_s": 0.0, "errors": 0, "error_share": 0.0}
    latency = {"mean_ms": None, "p50_ms": None, "p99_ms": None}
    async with started() as gateway, aiohttp.ClientSession() as session:
        url = f"http://{gateway.addresses['main.http']}/v2/models/sum/infer"
        tensors = [
            {"name": name, "datatype": "INT32", "shape": [1, 16], "data": [1] * 16}
            for name in ("INPUT0", "INPUT1")
        ]
        async with session.post(url, json={"inputs": tensors}) as response:
            assert response.status in {200, 400}
        admin = f"http://{gateway.addresses['admin']}"
        for _ in range(2):
            async with session.get(f"{admin}/ui/") as response:
                assert (200, True) == (response.status, "local/sum" in await response.text())
    status: dict[str, Any] = {"traffic": {"window_s": 60.0, "targets": [], "endpoints": []}}
    status["traffic"]["routes"] = [{"route": "own", **row, **latency}]
    listed = [{"name": "own", "ready": True, "reason": ""}]
    rest = {"weights": {}, "routes": listed, "upstreams": [], "warnings": [], "listeners": {}}
    facts = {"ready": True, "reason": "", "version": "1", "started": "", "config": {"file": "f"}}
    runtime = {"runtime": {"changes": {}, "lines": ["route own: a=1"]}}
    shown = overview._overview({**status, **rest, **facts, **runtime})
    page = render(Page("overview/page.html", shown), overview.ROUTES[0], ())
    assert b"<li>route own: a=1</li>" in page
    assert b">own<" in page


def test_tables_broke_names_in_the_middle() -> None:
    """Names of routes, models and endpoints stay whole, and their table scrolls instead."""
    style = (Path(admin.__file__).parent / "static" / "page.css").read_text("utf-8")
    rules = dict(re.findall(r"^([^{}\n]+) \{ ([^{}\n]*) \}$", style, re.MULTILINE))
    assert "white-space: nowrap;" == rules["tbody th, .name"]
    assert "anywhere" not in rules["td, tbody th"]
    assert "overflow-x: auto" in rules[".scroll"]
    template = (Path(overview.__file__).parent / "page.html").read_text("utf-8")
    for value in ("target.name", "endpoint.address"):
        assert f'<td class="name">{{{{ {value} }}}}</td>' in template
