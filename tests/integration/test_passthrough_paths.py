"""Paths of a protocol that the server behind a passthrough has itself: whose response clients get."""

from __future__ import annotations

import json
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
    ("passthrough", "is_behind", "expected"),
    [("far", False, 404), ('{upstream: far, post: ["/invocations"]}', True, 400)],
)
async def test_the_server_behind_gets_posts_by_name(
    passthrough: str, is_behind: bool, expected: int
) -> None:
    """The protocol reads the other ones itself, and has no model for them here."""
    async with AsyncExitStack() as stack:
        far = await stack.enter_async_context(running(BACK % HAS_ITS_OWN))
        text = FRONT % ("native", passthrough, "", "http", far.addresses["main.http"])
        gateway = await stack.enter_async_context(running(text))
        status, body = await ask(gateway, "POST", "/invocations", {"instances": "wrong"})
        counted = samples(gateway, "gateway_requests_total", "protocol")
    assert (("passthrough",) in counted, status) == (is_behind, expected), body


@pytest.mark.parametrize("transport", ["native", "reference"])
async def test_the_list_of_models_without_a_key_is_that_of_the_server_behind(
    transport: str,
) -> None:
    """langchain-kserve takes any list for OpenAI's form, and a server without one for its own."""
    options = ", options: {tfs: {root: true}}"
    async with AsyncExitStack() as stack:
        index = ", options: {oip: {repository_index: true}}"
        far = await stack.enter_async_context(running(BACK % (HAS_NONE + index)))
        text = FRONT % (transport, "far", options, "http", far.addresses["main.http"])
        gateway = await stack.enter_async_context(running(text))
        assert 404 == (await ask(gateway, "GET", "/v1/models"))[0]
        key = {"Authorization": "Bearer sk-key"}
        status, body = await ask(gateway, "GET", "/v1/models", headers=key)
        assert (200, ["double"]) == (status, [each["id"] for each in json.loads(body)["data"]])
        assert 200 == (await ask(gateway, "GET", "/v1/models/double"))[0]
        text = FRONT % (
            transport,
            "far",
            ", protocols: [oip, tfs]",
            "http",
            far.addresses["main.http"],
        )
        listed = await stack.enter_async_context(running(text))
        assert 404 != (await ask(listed, "GET", "/v1/models"))[0]


@pytest.mark.parametrize("transport", ["native", "reference"])
async def test_a_server_that_writes_the_list_of_models_gives_it_to_all(transport: str) -> None:
    """With and without a key, for the list has members that only its server knows."""
    async with AsyncExitStack() as stack:
        of_far = ", protocols: [oip, openai], options: {openai: {owned_by: far}}"
        far = await stack.enter_async_context(running(BACK % of_far))
        front, address = ", options: {tfs: {root: true}}", far.addresses["main.http"]
        text = FRONT % (transport, "far", front, "openai+http", address)
        gateway = await stack.enter_async_context(running(text))
        for headers in ({}, {"Authorization": "Bearer sk-key"}):
            status, body = await ask(gateway, "GET", "/v1/models", headers=headers)
            assert (200, ["far"]) == (
                status,
                [each["owned_by"] for each in json.loads(body)["data"]],
            )


async def test_the_protocol_replies_for_an_unavailable_server() -> None:
    """A probe is not refused for want of a server: it says what the gateway knows."""
    text = FRONT % ("native", "far", "", "http", "127.0.0.1:1")
    async with running(text) as gateway:
        assert (200, OWN) == await ask(gateway, "GET", "/version")
        assert 503 == (await ask(gateway, "GET", "/nowhere"))[0]


async def ask(
    gateway: Gateway, method: str, path: str, body: Any = None, headers: Any = None
) -> tuple[int, str]:
    """Return the status and the text of a response."""
    url = f"http://{gateway.addresses['main.http']}{path}"
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, url, json=body, headers=headers) as response,
    ):
        return response.status, await response.text()
