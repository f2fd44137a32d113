"""A sidecar before the real MLflow, Seldon, infinity and Triton changes no status, body or header.

The same drawn requests go to the server itself and through the gateway. Each server has members
and forms that no common form has, and refuses some requests in words of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

import pytest

from tests.integration.drawn_messages import drawn_json
from tests.integration.whole_messages import JSON, WAYS, Answer, Sent, post, sending
from tests.interop.gateways import FREE_PORTS, serving
from tests.interop.servers.infinity import start as infinity
from tests.interop.servers.mlflow import start as mlflow
from tests.interop.servers.process import Command, Ports, RunningServer, running
from tests.interop.servers.seldon import start as seldon

pytestmark = [pytest.mark.interop, pytest.mark.asyncio, pytest.mark.timeout(300)]

DRAWN: Final = 200
# What differs in two answers of the server itself.
_OF_ONE_ANSWER: Final = re.compile(rb'"(created|id|puid)": ?("[^"]*"|\d+)')
_FORM: Final = "application/x-www-form-urlencoded"
_PARTS: Final = b'--b\r\nContent-Disposition: form-data; name="strData"\r\n\r\ntext\r\n--b--\r\n'
_OF_A_CONNECTION: Final = ("connection", "access-control-")
_FRAME = (
    b'{"dataframe_split": {"columns": ["a", "b", "s"], "data": [[1.5, 2, "x"]]}}',
    b'{"dataframe_records": [{"a": 0.5, "b": 1, "s": "y"}, {"s": "z", "b": 2, "a": 2.0}]}',
    b'{"dataframe_records": [{"a": 0.5, "b": 1, "s": "y"}], "params": {"scale": 2.0}}',
    b'{"inputs": [{"a": 1.0, "b": 2, "s": "x"}]}',
    b'{"instances": [{"a": 1.0, "b": 2, "s": "x"}]}',
    b'{"dataframe_split": {"columns": ["a", "b"], "data": [[1.5, 2]]}}',
    b'{"dataframe_split": {"columns": ["a", "b", "s"], "data": [[null, 2, "x"]]}}',
    b'{"dataframe_split": {"columns": ["a", "b", "s"], "data": [[[1], 2, "x"]]}}',
    b'{"nothing": 1}',
)


@dataclass(frozen=True)
class Place:
    """A server, and what its clients send.

    Attributes:
        url: The scheme of the upstream.
        prepare: Returns the command that serves.
        requests: What is drawn from.
    """

    url: str
    prepare: Callable[[Path, Ports], Command]
    requests: tuple[Sent, ...]


PLACES: Final = {
    "mlflow tensor": Place(
        "mlflow+http",
        mlflow.serving("digits"),
        (
            *(
                post("/invocations", body)
                for body in (
                    b'{"inputs": [[1.0, 2.0, 0.5, 2.5]]}',
                    b'{"instances": [[1.0, 2.0, 0.5, 2.5], [2.0, 1.0, 1.0, 1.0]]}',
                    b'{"inputs": [[1.0, 2.0]]}',
                    b'{"inputs": [["a"]]}',
                    b'{"inputs": []}',
                )
            ),
            Sent("GET", "/ping", b""),
            Sent("GET", "/version", b""),
        ),
    ),
    "mlflow table": Place(
        "mlflow+http",
        mlflow.serving("frame"),
        (
            *(post("/invocations", body) for body in _FRAME),
            post("/invocations", b"a,b,s\n1.5,2,x\n", "text/csv"),
            post("/invocations", b"a,b,s\n,2,x\n", "text/csv"),
            post("/invocations", b'{"a": 1.5, "b": 2, "s": "x"}\n', "application/jsonlines"),
            post("/invocations", b"text", "text/plain"),
            post("/invocations", _FRAME[0], f"{JSON}; charset=utf-8"),
            Sent("GET", "/health", b""),
            Sent("GET", "/nothing", b""),
        ),
    ),
    "seldon": Place(
        "seldon+http",
        seldon.prepare,
        (
            post("/predict", b"json=%7B%22strData%22%3A%22a%22%7D", _FORM),
            post("/predict", _PARTS, "multipart/form-data; boundary=b"),
            post("/api/v0.1/predictions", b'{"strData": "a"}'),
            post("/api/v1.0/feedback", b'{"request": {"strData": "a"}, "reward": 1.0}'),
            Sent("GET", "/predict?json=%7B%22strData%22%3A%22a%22%7D", b""),
            Sent("GET", "/nothing", b""),
            *(
                post(path, body)
                for path in ("/api/v1.0/predictions", "/predict")
                for body in (
                    b'{"data": {"names": ["a", "b"], "ndarray": [[1.0, 2.5]]}}',
                    b'{"data": {"tensor": {"shape": [1, 2], "values": [1.0, 2.0]}}}',
                    b'{"strData": "text", "meta": {"tags": {"own": 1}}}',
                    b'{"strData": "refuse"}',
                    b'{"binData": "AAEC"}',
                    b'{"jsonData": {"a": [1, {"b": null}]}, "meta": {"puid": "p"}}',
                    b'{"data": {"ndarray": [["a", 1]]}}',
                    b'{"nothing": 1}',
                )
            ),
        ),
    ),
    "infinity": Place(
        "openai+http",
        infinity.prepare,
        (
            *(
                post(f"/v1/{path}", body)
                for path, body in (
                    ("embeddings", b'{"model": "dummy", "input": "text"}'),
                    ("embeddings", b'{"model": "dummy", "input": ["a", "bc"]}'),
                    (
                        "embeddings",
                        b'{"model": "dummy", "input": ["a"], "encoding_format": "base64"}',
                    ),
                    ("embeddings", b'{"model": "dummy", "input": ["a"], "dimensions": 3}'),
                    ("embeddings", b'{"model": "dummy", "input": []}'),
                    ("embeddings", b'{"model": "dummy", "input": 1.5}'),
                    ("embeddings", b'{"model": "other", "input": "a"}'),
                    ("rerank", b'{"model": "dummy", "query": "a", "documents": ["b", "c"]}'),
                    ("chat/completions", b'{"model": "dummy", "messages": []}'),
                )
            ),
            Sent("GET", "/v1/models", b""),
            Sent("GET", "/nothing", b""),
        ),
    ),
}


@pytest.fixture(scope="module", params=PLACES)
def place(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Place, RunningServer, str]]:
    """Run a server, and a sidecar before it."""
    found = PLACES[request.param]
    with running(
        request.param.split()[0], found.prepare, tmp_path_factory.mktemp("server")
    ) as server:
        upstream = f"{found.url}://{server.http_address}"
        with serving("--upstream", upstream, *FREE_PORTS) as gateway:
            yield found, server, gateway.addresses["main.http"]


async def test_a_sidecar_changes_nothing(place: tuple[Place, RunningServer, str]) -> None:
    """Status, body and headers are those that a client gets of the server itself."""
    found, server, front = place
    rng, statuses, odd = Random(found.url), set(), []  # noqa: S311
    way = WAYS[f"{found.url.partition('+')[0]}.http"]
    async with sending(way) as send:
        for number in range(DRAWN):
            request = found.requests[number % len(found.requests)]
            if request.kind.partition(";")[0] == JSON and request.body:
                request = request._replace(body=drawn_json(rng, request.body))
            direct = _comparable(await send(server.http_address, request))
            through = _comparable(await send(front, request))
            if direct != through:
                odd.append((request, direct, through))
            statuses.add(direct.status)
    assert [] == odd
    assert 200 in statuses


def _comparable(answer: Answer) -> Answer:
    """Return an answer without what differs in two of one server, or ends at a gateway."""
    headers = [each for each in answer.headers if not each[0].startswith(_OF_A_CONNECTION)]
    return answer._replace(
        body=_OF_ONE_ANSWER.sub(rb'"\1": 0', answer.body), headers=tuple(sorted(headers))
    )
