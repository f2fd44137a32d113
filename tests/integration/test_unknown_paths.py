"""On a listener of one protocol, the error of any path is in that protocol's own form."""

from __future__ import annotations

import json
from typing import Any

import aiohttp
import pytest

from gateway.registry import protocol, protocol_names
from tests.integration.asking_kit import running

CONFIG = """
version: 1
listeners: [{{http: "127.0.0.1:0", protocols: {protocols}}}]
admin: {{address: off}}
lifecycle: {{pre_stop: 0s, drain: 1s}}
models: {{m: {{backend: python, options: {{callable: "gateway.backends.examples:identity_fp32"}}}}}}
"""
PATH = "/no/such/path"
# Where the text of the error stands in the body; () for a body that is the text, None for none.
FORMS: dict[str, tuple[int, tuple[str, ...] | None]] = {
    "graphpipe": (404, ()),
    "grps": (404, ("status", "msg")),
    "mlflow": (404, ("detail",)),
    "oip": (404, ("error",)),
    "openai": (404, ("error", "message")),
    "seldon": (404, ("status", "info")),
    "tfs": (404, None),
    "torchserve": (404, ("message",)),
    "trtis": (400, None),
}


async def response_of(protocols: str) -> tuple[int, bytes]:
    """Return status and body of the response to a path that nothing serves."""
    async with running(CONFIG.format(protocols=protocols)) as gateway:
        url = f"http://{gateway.addresses['main.http']}{PATH}"
        async with aiohttp.ClientSession() as session, session.get(url) as found:
            return found.status, await found.read()


def test_every_protocol_has_a_form() -> None:
    """A new protocol over HTTP is added here."""
    assert FORMS.keys() == {name for name in protocol_names() if protocol(name).http}


@pytest.mark.parametrize("name", FORMS)
async def test_an_unknown_path_has_the_form_of_the_only_protocol(name: str) -> None:
    """A client reads the error as any other one of its protocol, and finds the path in it."""
    expected, places = FORMS[name]
    status, body = await response_of(f"[{name}]")
    assert expected == status
    if places is None:
        assert body == b""
        return
    text: Any = json.loads(body) if places else body.decode()
    for place in places:
        text = text[place]
    assert PATH in text


async def test_an_unknown_path_of_several_protocols_has_the_form_of_none() -> None:
    """Which of them is meant is not known."""
    status, body = await response_of("[openai, mlflow]")
    assert (404, {"error": f"nothing is served at {PATH!r}"}) == (status, json.loads(body))
