"""Errors of codecs, as clients read them: they name no class of the gateway."""

from __future__ import annotations

import re
from typing import Any

import pytest

from gateway.api.protocol import unsupported
from gateway.frontend.frontend import Frontend
from gateway.ir import calls
from gateway.ir.calls import Call, InferRequest, StreamInferRequest
from gateway.ir.context import ModelRef
from gateway.ir.errors import GatewayError
from tests.properties.amplified import small_messages
from tests.properties.registered import REGISTERED, body_of

KINDS: list[type[Call[Any]]] = [
    each
    for each in vars(calls).values()
    if isinstance(each, type) and issubclass(each, Call) and each is not Call
]
_CLASSES = re.compile("|".join(rf"\b{each.__name__}\b" for each in KINDS).encode())
MODEL = ModelRef("m")


def _calls() -> list[Call[Any]]:
    """Return a call of each kind that needs no more than a model."""
    found: list[Call[Any]] = [
        StreamInferRequest(model=MODEL, request=InferRequest(model=MODEL)),
    ]
    for kind in KINDS:
        try:
            found.append(kind(model=MODEL))
        except TypeError:
            continue  # it needs more
    return found


@pytest.mark.parametrize("name", REGISTERED)
def test_unsupported_calls_have_words(name: str) -> None:
    """What a codec refuses to write to a server is said in words, by its frontend too."""
    codec = REGISTERED[name].make({})
    count = 0
    for call in _calls():
        error = _refusal(codec, call)
        if error is not None:
            count += 1
            shown = b"".join(map(bytes, body_of(codec.encode_error(None, error))))
            assert not _CLASSES.search(error.message.encode() + shown)
    assert count


def _refusal(codec: Any, call: Call[Any]) -> GatewayError | None:
    try:
        codec.encode_call(call)
    except GatewayError as error:
        return error
    return None


@pytest.mark.parametrize("name", REGISTERED)
async def test_frontends_name_no_class_where_a_target_supports_nothing(name: str) -> None:
    """A client whose target has no message for its call reads words."""
    frontend = Frontend(REGISTERED[name].make({}), _supports_nothing)
    seeds = [each for each in small_messages()[name] if each.call is None]
    assert seeds
    for seed in seeds:
        async for response in frontend(seed.wire):
            assert not _CLASSES.search(b"".join(map(bytes, body_of(response)))), seed.name


async def _supports_nothing(call: Call[Any], /) -> Any:
    raise unsupported(call, "the server")
