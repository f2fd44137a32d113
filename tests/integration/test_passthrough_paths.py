"""Paths of a protocol that the server behind a passthrough has itself: whose response clients get."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

import aiohttp
import pytest

from gateway.app import Gateway
from tests.integration.asking_kit import running
from tests.integration.test_counts import samples

BACK = """
version: 1
listeners: [{http: "127.0.0.1:0"%s}]
admin: {address: null, metrics: null}
lifecycle: {pre_stop: 0s, drain: 1s}
models: {double: {backend: python, options: {callable: "gateway.backends.examples:simple"}}}
"""
FRONT = """
version: 1
listeners: [{http: "127.0.0.1:0", transport: %s, passthrough: %s%s}]
admin: {address: null, metrics: null}
lifecycle: {pre_stop: 0s, drain: 1s}
upstreams: {far: {url: "%s://%s"}}
"""
HAS_ITS_OWN = ", options: {mlflow: {version: 9.9.9}}"
HAS_NONE = ", protocols: [oip]"
OWN = "3.17.2"


@pytest.mark.parametrize("transport", ["native", "reference"])
@pytest.mark.parametrize(
    ("back", "front", "scheme", "expected"),
    [
        (HAS_ITS_OWN, "", "http", "9.9.9"),
        (HAS_NONE, "", "http", OWN),
        (HAS_ITS_OWN, "", "mlflow+http", OWN),
        (HAS_ITS_OWN, ", protocols: [oip, mlflow]", "http", OWN),
        (HAS_ITS_OWN, ", options: {mlflow: {version: 1.1.1}}", "http", "1.1.1"),
    ],
)
async def test_a_page_of_the_server_behind_comes_first(
    transport: str, back: str, front: str, scheme: str, expected: str
) -> None:
    """A protocol that nobody asked for serves only the paths that the server lacks."""
    async with AsyncExitStack() as stack:
        far = await stack.enter_async_context(running(BACK % back))
        text = FRONT % (transport, "far", front, scheme, far.addresses["main.http"])
        gateway = await stack.enter_async_context(running(text))
        assert (200, expected) == await ask(gateway, "GET", "/version")
        counted = samples(gateway, "gateway_requests_total", "protocol", "code")
    is_behind = expected == "9.9.9"
    assert {key for key in counted if key[0] == "passthrough"} == (
        {("passthrough", "ok")} if is_behind else set()
    )


@pytest.mark.parametrize(
    ("passthrough", "is_behind"),
    [("far", False), ('{upstream: far, post: ["/invocations"]}', True)],
)
async def test_the_server_behind_gets_posts_by_name(passthrough: str, is_behind: bool) -> None:
    """The protocol reads the other ones itself, and refuses wrong rows as the server does."""
    async with AsyncExitStack() as stack:
        far = await stack.enter_async_context(running(BACK % HAS_ITS_OWN))
        text = FRONT % ("native", passthrough, "", "http", far.addresses["main.http"])
        gateway = await stack.enter_async_context(running(text))
        status, body = await ask(gateway, "POST", "/invocations", {"instances": "wrong"})
        counted = samples(gateway, "gateway_requests_total", "protocol")
    assert (("passthrough",) in counted, status) == (is_behind, 400), body


async def ask(gateway: Gateway, method: str, path: str, body: Any = None) -> tuple[int, str]:
    """Return the status and the text of a response."""
    url = f"http://{gateway.addresses['main.http']}{path}"
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, url, json=body) as response,
    ):
        return response.status, await response.text()
