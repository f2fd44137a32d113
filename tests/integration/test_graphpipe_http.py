"""GraphPipe over HTTP through whole gateways: whose path it is, and what its clients send."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterator, Mapping
from contextlib import closing
from http.client import HTTPConnection

import pytest

from tests.cases import graphpipe_oracle as oracle
from tests.cases.graphpipe_http import METADATA_REQUEST
from tests.integration.cli_kit import Running, serving

INT32 = 6
FIRST = oracle.PlainTensor(INT32, (1, 16), struct.pack("<16i", *range(16)))
SECOND = oracle.PlainTensor(INT32, (1, 16), struct.pack("<16i", *[1] * 16))
QUESTION = oracle.build_request(oracle.PlainRequest(b"", (), (FIRST, SECOND), ()))
TOO_MANY = oracle.build_request(oracle.PlainRequest(b"", (), (FIRST, SECOND, FIRST), ()))
ANSWER = [struct.pack("<16i", *range(1, 17)), struct.pack("<16i", *range(-1, 15))]

CONFIG = """
version: 1
listeners:
  - http: 127.0.0.1:0
    default_model: simple
  - name: own
    http: 127.0.0.1:0
    protocols: [graphpipe]
    default_model: simple
    options: {graphpipe: {errors: status}}
  - name: nobody
    http: 127.0.0.1:0
    protocols: [graphpipe]
admin: {address: null, metrics: null}
models:
  simple: {backend: python, options: {callable: "gateway.backends.examples:simple"}}
lifecycle: {pre_stop: 0s}
"""


@pytest.fixture(scope="module")
def model_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A gateway with one model, on a port that is shared and on ports that are GraphPipe's own."""
    config = tmp_path_factory.mktemp("graphpipe") / "gateway.yaml"
    config.write_text(CONFIG)
    with serving(str(config)) as running:
        yield running


def ask(
    address: str,
    path: str,
    body: bytes | None = QUESTION,
    headers: Mapping[str, str] | None = None,
    method: str = "POST",
) -> tuple[int, str, bytes]:
    """Return status, content type and body."""
    with closing(HTTPConnection(address, timeout=10)) as connection:
        connection.request(method, path, body, dict(headers or {}))
        answer = connection.getresponse()
        kind = answer.getheader("Content-Type", "").partition(";")[0]
        return answer.status, kind, answer.read()


def outputs(answer: tuple[int, str, bytes]) -> list[bytes]:
    """Return the data of an inference's answer."""
    assert (200, "application/octet-stream") == answer[:2]
    tensors, errors = oracle.read_response(answer[2])
    assert () == errors
    return [tensor.data for tensor in tensors]


@pytest.mark.parametrize(
    "path",
    [
        "/graphpipe",
        "/graphpipe/",
        "/graphpipe/simple",
        "/graphpipe/simple/",
        "/graphpipe/simple/1",
        "/graphpipe/simple/versions/1",
        "/graphpipe?model=simple",
    ],
)
@pytest.mark.parametrize("listener", ["main", "own"])
def test_a_path_is_a_model(model_server: Running, listener: str, path: str) -> None:
    """Every spelling that names the model, and none where there is a default, is answered."""
    assert ANSWER == outputs(ask(model_server.addresses[f"{listener}.http"], path))


@pytest.mark.parametrize("path", ["/", "/api/some-model/", "/a%20b?x=1"])
def test_on_a_port_of_its_own_every_path_is_the_default_model(
    model_server: Running, path: str
) -> None:
    """Clients of a server with one model post anywhere; where others listen too, they may not."""
    assert ANSWER == outputs(ask(model_server.addresses["own.http"], path))
    # Where others listen too the path is theirs (TensorRT v1 has /api, grps a page at /), or free.
    assert ask(model_server.addresses["main.http"], path)[0] in {400, 404, 405}


def test_without_a_default_model_a_path_that_names_none_says_how(model_server: Running) -> None:
    """The error is one that its clients can read."""
    status, _, body = ask(model_server.addresses["nobody.http"], "/")
    assert 200 == status
    _, (error,) = oracle.read_response(body)
    assert "post to /graphpipe/<model>[/<version>]" in str(error)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Content-Type": "application/x-www-form-urlencoded"},
        {"Content-Type": "application/json"},
        {"Content-Type": "text/plain; charset=nonsense"},
        {"Accept-Encoding": "gzip, deflate", "User-Agent": "python-requests"},
    ],
    ids=str,
)
def test_content_types_mean_nothing(model_server: Running, headers: dict[str, str]) -> None:
    """What real clients say of their body is not looked at."""
    assert ANSWER == outputs(
        ask(model_server.addresses["main.http"], "/graphpipe", QUESTION, headers)
    )


def test_a_body_in_chunks_is_whole(model_server: Running) -> None:
    """A client that does not know the length beforehand is understood."""
    address = model_server.addresses["main.http"]
    with closing(HTTPConnection(address, timeout=10)) as connection:
        pieces = iter([QUESTION[:7], QUESTION[7:100], QUESTION[100:]])
        connection.request("POST", "/graphpipe", pieces, encode_chunked=True)
        answer = connection.getresponse()
        assert ANSWER == outputs((answer.status, "application/octet-stream", answer.read()))


def test_a_client_that_waits_for_100_is_told_to_go_on(model_server: Running) -> None:
    """TensorFlow's remote op asks before it sends a large body."""
    host, _, port = model_server.addresses["main.http"].rpartition(":")
    head = (
        f"POST /graphpipe HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\n"
        f"Content-Length: {len(QUESTION)}\r\nConnection: close\r\n\r\n"
    )
    with closing(socket.create_connection((host, int(port)), timeout=10)) as sock:
        sock.sendall(head.encode())
        assert sock.recv(64).startswith(b"HTTP/1.1 100 ")
        sock.sendall(QUESTION)
        data = b"".join(iter(lambda: sock.recv(65536), b""))
    assert data.startswith(b"HTTP/1.1 200 ")
    assert ANSWER == outputs((200, "application/octet-stream", data.partition(b"\r\n\r\n")[2]))


def test_errors_of_an_inference_stand_in_the_body(model_server: Running) -> None:
    """A real client looks for them in an answer of status 200 and nowhere else."""
    status, kind, body = ask(model_server.addresses["main.http"], "/graphpipe", TOO_MANY)
    assert (200, "application/octet-stream") == (status, kind)
    _, (error,) = oracle.read_response(body)
    assert "has 2 inputs, the message has 3" in str(error)


def test_errors_stand_in_the_status_where_a_listener_says_so(model_server: Running) -> None:
    """Clients that never look into the body see the status, and the text."""
    address = model_server.addresses["own.http"]
    assert (400, "text/plain") == ask(address, "/", TOO_MANY)[:2]
    assert (400, "text/plain") == ask(address, "/", b"no message")[:2]
    assert (404, "text/plain") == ask(address, "/graphpipe/none")[:2]


@pytest.mark.parametrize("listener", ["main", "own"])
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
def test_metadata_that_cannot_be_had_never_looks_like_metadata(
    model_server: Running, listener: str, method: str
) -> None:
    """Every client reads an answer of status 200 as metadata, whatever is in it."""
    body = METADATA_REQUEST if method == "POST" else None
    address = model_server.addresses[f"{listener}.http"]
    status, kind, text = ask(address, "/graphpipe/none", body, method=method)
    assert (404, "text/plain") == (status, kind)
    assert (method == "HEAD") is (text == b"")


def test_head_has_the_length_of_get_and_no_body(model_server: Running) -> None:
    """The connection goes on after it."""
    with closing(HTTPConnection(model_server.addresses["main.http"], timeout=10)) as connection:
        seen = []
        for method in ("HEAD", "GET", "HEAD"):
            connection.request(method, "/graphpipe/simple")
            answer = connection.getresponse()
            seen.append((answer.status, answer.getheader("Content-Length"), len(answer.read())))
    length = seen[1][1]
    assert [(200, length, 0), (200, length, int(length or 0)), (200, length, 0)] == seen


def test_other_methods_are_refused(model_server: Running) -> None:
    """With the methods there are."""
    with closing(HTTPConnection(model_server.addresses["own.http"], timeout=10)) as connection:
        connection.request("DELETE", "/")
        answer = connection.getresponse()
        answer.read()
        assert (405, "GET, HEAD, POST") == (answer.status, answer.getheader("Allow"))


def test_the_root_lists_the_models(model_server: Running) -> None:
    """Who does not know what is there may ask."""
    status, kind, body = ask(model_server.addresses["nobody.http"], "/", None, method="GET")
    assert (200, "application/json") == (status, kind)
    assert ["simple"] == [model["Name"] for model in json.loads(body)["Models"]]


@pytest.mark.parametrize("path", ["/graphpipe/simple", "/graphpipe", "/graphpipe/simple/1"])
def test_the_path_of_an_upstream_is_its_model(model_server: Running, path: str) -> None:
    """`graphpipe+http://HOST:PORT/path` is one model, by whatever name it is asked for."""
    url = f"graphpipe+http://{model_server.addresses['main.http']}{path}"
    with serving(
        "--upstream", url, "--http", "127.0.0.1:0", "--grpc", "off", "--admin", "off"
    ) as front:
        assert ANSWER == outputs(ask(front.addresses["main.http"], "/graphpipe/any-name"))
        body = json.dumps(
            {
                "inputs": [
                    {"name": name, "datatype": "INT32", "shape": [1, 16], "data": [2] * 16}
                    for name in ("INPUT0", "INPUT1")
                ]
            }
        ).encode()
        status, _, text = ask(front.addresses["main.http"], "/v2/models/other/infer", body)
        assert (200, [4] * 16) == (status, json.loads(text)["outputs"][0]["data"])
