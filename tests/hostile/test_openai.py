"""Hostile requests in OpenAI's form: no 5xx for a client's fault, and others wait for 0.5 s at most."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.hostile.costly import Http, check_delay
from tests.hostile.process import Gateway, eventually, running
from tests.hostile.wire import get, post

pytest.importorskip("tokenizers")
pytestmark = pytest.mark.hostile

EMBEDDINGS, RERANK, COMPLETIONS = "/v1/embeddings", "/v2/rerank", "/v1/completions"
LONG = "one two three four hello world " * 30


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    """A gateway with the default limits and models of texts."""
    with running("tests/hostile/openai.yaml") as gateway:
        embeddings(input="a").send(gateway)
        yield gateway


def message(body: Any, path: str = EMBEDDINGS) -> Http:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Http(post(data, "Content-Type: application/json", path=path))


def embeddings(model: str = "embed_text", **members: Any) -> Http:
    return message({"model": model, **members})


def rerank(**members: Any) -> Http:
    return message({"model": "embed_ids", "query": "q", **members}, RERANK)


def nested(depth: int) -> bytes:
    return b'{"model":"embed_text","input":' + b"[" * depth + b"]" * depth + b"}"


# What costs much, with the status that is expected.
COSTLY: dict[str, tuple[Callable[[], Http], str]] = {
    "long_texts": (lambda: embeddings("embed_ids", input=[LONG] * 2000), "200"),
    "million_inputs": (lambda: embeddings(input=["a"] * 1_000_000), "400"),
    "million_ids": (lambda: embeddings("embed_ids", input=[1] * 1_000_000), "400"),
    "million_lists": (lambda: embeddings("embed_ids", input=[[1]] * 1_000_000), "400"),
    "many_members": (lambda: message({f"m{each}": 1 for each in range(200_000)}), "400"),
    "many_null_members": (lambda: message({f"m{each}": None for each in range(200_000)}), "413"),
    "one_long_text": (lambda: embeddings("embed_ids", input="one " * 3_000_000), "200"),
    "one_long_word": (lambda: embeddings("embed_ids", input="one," * 3_000_000), "200"),
    "only_spaces": (lambda: embeddings("embed_ids", input=" " * 12_000_000), "200"),
    "many_documents": (lambda: rerank(documents=[{"text": "a"}] * 100_000), "400"),
    "long_pairs": (lambda: rerank(documents=[LONG] * 1000), "200"),
    "keys_of_a_document": (
        lambda: rerank(documents=[{f"m{each}": "a" for each in range(200_000)}]),
        "400",
    ),
    "deep": (lambda: message(nested(100_000)), "400"),
    "long_stop": (
        lambda: message(
            {"model": "complete_text", "prompt": "a" * 1_000_000, "stop": ["b" * 100_000]},
            COMPLETIONS,
        ),
        "200",
    ),
}


@pytest.mark.parametrize("name", COSTLY)
def test_costly_requests_delay_no_other_client(gateway: Gateway, name: str) -> None:
    """Requests that cost much are refused early, or work off the event loop."""
    check_delay(gateway, *COSTLY[name])


WRONG = [
    b"",
    b"null",
    b"[1]",
    b"{",
    b"\xff",
    b'{"model":"embed_text","input":NaN}',
    b'{"model":"embed_text","input":"\\ud800"}',
    b'{"model":"embed_text","input":"a","input":"b"}',
    b'{"model":"embed_text","inp\\u0075t":"a","input":"b"}',
    b'{"model":"embed_text","input":"a","x":1}',
    b'{"model":"..","input":"a"}',
    b'{"model":"a\\u0000","input":"a"}',
    b'{"model":1,"input":"a"}',
    b'{"model":"embed_text","input":["a",1]}',
    b'{"model":"embed_text","input":[true]}',
    b'{"model":"embed_text","input":[1.0]}',
    b'{"model":"embed_text","input":[[]]}',
    b'{"model":"embed_text","input":{"a":"b"}}',
    b'{"model":"embed_ids","input":[99999999999999999999]}',
    b'{"model":"embed_ids","input":[-1]}',
    b'{"model":"embed_text","input":"a","dimensions":true}',
    b'{"model":"embed_text","input":"a","dimensions":99999999999}',
    b'{"model":"embed_text","input":"a","encoding_format":[]}',
    b'{"model":"embed_text","input":"a","input_type":"x"}',
]


@pytest.mark.parametrize("body", WRONG, ids=range(len(WRONG)))
def test_wrong_requests_are_errors_of_the_client(gateway: Gateway, body: bytes) -> None:
    """A fault of the client has a status below 500."""
    for path in (EMBEDDINGS, RERANK, COMPLETIONS):
        status = int(message(body, path).send(gateway).split()[0])
        assert 400 <= status < 500, (path, status)


def test_the_memory_of_requests_is_returned(gateway: Gateway) -> None:
    """Large requests, whether they are served or refused, hold none of the budget afterwards."""
    for name in ("million_inputs", "many_members", "long_texts"):
        make, expected = COSTLY[name]
        assert make().send(gateway).startswith(expected)
    assert eventually(lambda: _held_bytes(gateway) == 0, 20)


def _held_bytes(gateway: Gateway) -> float:
    page = get(gateway.addresses["admin"], "/metrics").decode()
    lines = [line for line in page.splitlines() if line.startswith("gateway_in_flight_bytes ")]
    return sum(float(line.split()[1]) for line in lines) if lines else -1.0
