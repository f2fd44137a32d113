"""GraphPipe over HTTP through whole gateways: paths, methods, headers and errors."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterator
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
    method: str = "POST",
) -> tuple[int, str, bytes]:
    """Return status, content type and body."""
    with closing(HTTPConnection(address, timeout=60)) as connection:
        connection.request(method, path, body)
        response = connection.getresponse()
        kind = response.getheader("Content-Type", "").partition(";")[0]
        return response.status, kind, response.read()


def outputs(response: tuple[int, str, bytes]) -> list[bytes]:
    """Return the data of an inference response."""
    assert (200, "application/octet-stream") == response[:2]
    tensors, errors = oracle.read_response(response[2])
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
def test_paths_name_the_model(model_server: Running, listener: str, path: str) -> None:
    """Every spelling of the model's path works, and so does a path without a model."""
    assert ANSWER == outputs(ask(model_server.addresses[f"{listener}.http"], path))


@pytest.mark.parametrize("path", ["/", "/api/some-model/", "/a%20b?x=1"])
def test_every_path_of_its_own_port_is_the_default_model(model_server: Running, path: str) -> None:
    """On a port of GraphPipe alone any path works; on a shared port it is rejected."""
    assert ANSWER == outputs(ask(model_server.addresses["own.http"], path))
    # Where others listen too the path is theirs (TensorRT v1 has /api, grps a page at /), or free.
    assert ask(model_server.addresses["main.http"], path)[0] in {400, 404, 405}


def test_path_without_a_model_names_the_expected_form(model_server: Running) -> None:
    """Without a default model the error is a GraphPipe message with the form of the path."""
    status, _, body = ask(model_server.addresses["nobody.http"], "/")
    assert 200 == status
    _, (error,) = oracle.read_response(body)
    assert "post to /graphpipe/<model>[/<version>]" in str(error)


def test_accepts_a_chunked_body(model_server: Running) -> None:
    """A client may send a body without announcing its length."""
    address = model_server.addresses["main.http"]
    with closing(HTTPConnection(address, timeout=60)) as connection:
        pieces = iter([QUESTION[:7], QUESTION[7:100], QUESTION[100:]])
        connection.request("POST", "/graphpipe", pieces, encode_chunked=True)
        response = connection.getresponse()
        assert ANSWER == outputs((response.status, "application/octet-stream", response.read()))


def test_expect_continue_gets_100(model_server: Running) -> None:
    """TensorFlow's remote op waits for 100 before it sends a large body."""
    host, _, port = model_server.addresses["main.http"].rpartition(":")
    head = (
        f"POST /graphpipe HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\n"
        f"Content-Length: {len(QUESTION)}\r\nConnection: close\r\n\r\n"
    )
    with closing(socket.create_connection((host, int(port)), timeout=60)) as sock:
        sock.sendall(head.encode())
        assert sock.recv(64).startswith(b"HTTP/1.1 100 ")
        sock.sendall(QUESTION)
        data = b"".join(iter(lambda: sock.recv(65536), b""))
    assert data.startswith(b"HTTP/1.1 200 ")
    assert ANSWER == outputs((200, "application/octet-stream", data.partition(b"\r\n\r\n")[2]))


def test_inference_errors_are_in_the_body(model_server: Running) -> None:
    """The status is 200, since real clients look for errors in the body only."""
    status, kind, body = ask(model_server.addresses["main.http"], "/graphpipe", TOO_MANY)
    assert (200, "application/octet-stream") == (status, kind)
    _, (error,) = oracle.read_response(body)
    assert "has 2 inputs, the message has 3" in str(error)


def test_listener_option_puts_errors_into_the_status(model_server: Running) -> None:
    """Clients that never read the body see the status; the body is text."""
    address = model_server.addresses["own.http"]
    assert (400, "text/plain") == ask(address, "/", TOO_MANY)[:2]
    assert (400, "text/plain") == ask(address, "/", b"no message")[:2]
    assert (404, "text/plain") == ask(address, "/graphpipe/none")[:2]


@pytest.mark.parametrize("listener", ["main", "own"])
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
def test_missing_metadata_is_404_for_every_method(
    model_server: Running, listener: str, method: str
) -> None:
    """Clients read every response of status 200 as metadata, so an error must be 404."""
    body = METADATA_REQUEST if method == "POST" else None
    address = model_server.addresses[f"{listener}.http"]
    status, kind, text = ask(address, "/graphpipe/none", body, method=method)
    assert (404, "text/plain") == (status, kind)
    assert (method == "HEAD") is (text == b"")


def test_head_has_the_length_of_get_and_no_body(model_server: Running) -> None:
    """The connection stays usable after HEAD."""
    with closing(HTTPConnection(model_server.addresses["main.http"], timeout=60)) as connection:
        seen = []
        for method in ("HEAD", "GET", "HEAD"):
            connection.request(method, "/graphpipe/simple")
            response = connection.getresponse()
            seen.append(
                (response.status, response.getheader("Content-Length"), len(response.read()))
            )
    length = seen[1][1]
    assert [(200, length, 0), (200, length, int(length or 0)), (200, length, 0)] == seen


def test_other_methods_are_405(model_server: Running) -> None:
    """The Allow header lists the methods."""
    with closing(HTTPConnection(model_server.addresses["own.http"], timeout=60)) as connection:
        connection.request("DELETE", "/")
        response = connection.getresponse()
        response.read()
        assert (405, "GET, HEAD, POST") == (response.status, response.getheader("Allow"))


def test_root_lists_the_models(model_server: Running) -> None:
    """GET on the root returns the names of all models."""
    status, kind, body = ask(model_server.addresses["nobody.http"], "/", None, method="GET")
    assert (200, "application/json") == (status, kind)
    assert ["simple"] == [model["Name"] for model in json.loads(body)["Models"]]


@pytest.mark.parametrize("path", ["/graphpipe/simple", "/graphpipe", "/graphpipe/simple/1"])
def test_upstream_path_is_its_model(model_server: Running, path: str) -> None:
    """`graphpipe+http://HOST:PORT/path` is one model, whatever name a client uses."""
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
