"""Metadata whose key ends with "-bin": bytes over gRPC, base64 over HTTP."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import grpc
import pytest

from gateway.schema import open_inference_pb2 as pb
from tests.integration.cli_kit import Running, serving

SERVICE = "inference.GRPCInferenceService"
INFER = f"/{SERVICE}/ModelInfer"
SECRET = b"\x00\xff\xfe, bytes"
BASE64 = base64.b64encode(SECRET).decode()
CONFIG = """
version: 1
listeners:
  - {{grpc: 127.0.0.1:0, http: 127.0.0.1:0, transport: {make}}}
admin: {{address: null, metrics: null}}
upstreams:
  over_grpc: {{url: "oip+grpc://{grpc}", transport: {make}, forward_headers: [x-key-bin]}}
  over_http: {{url: "oip+http://{http}", transport: {make}, forward_headers: [x-key-bin]}}
routes:
  - {{match: {{model: g}}, targets: [{{upstream: over_grpc}}]}}
  - {{match: {{model: h}}, targets: [{{upstream: over_http}}]}}
lifecycle: {{pre_stop: 0s}}
"""
_REPLY = {"outputs": [{"name": "y", "datatype": "INT32", "shape": [1], "data": [1]}]}


class Servers:
    """Two model servers.

    Attributes:
        seen: The last metadata of an inference.
    """

    def __init__(self) -> None:
        self.seen: Any = None

    def infer(self, _message: bytes, context: grpc.ServicerContext) -> bytes:
        """Answer over gRPC."""
        return bytes(self._response(context).SerializeToString())

    def stream(self, messages: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        """Answer each message of a stream."""
        for _ in messages:
            reply = pb.ModelStreamInferResponse(infer_response=self._response(context))
            yield reply.SerializeToString()

    def _response(self, context: grpc.ServicerContext) -> Any:
        self.seen = [each for each in context.invocation_metadata() if each[0].startswith("x-")]
        reply = pb.ModelInferResponse(model_name="g", raw_output_contents=[b"\1\0\0\0"])
        reply.outputs.add(name="y", datatype="INT32", shape=[1])
        return reply

    def http_handler(self) -> type[BaseHTTPRequestHandler]:
        """Return what answers over HTTP."""
        servers = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:  # of the library
                self.rfile.read(int(self.headers["content-length"]))
                if self.path.endswith("/infer"):  # the gateway asks for the index of models, too
                    servers.seen = self.headers.get_all("x-key-bin")
                self._reply({"model_name": "h", **_REPLY})

            def do_GET(self) -> None:
                self._reply({})

            def _reply(self, document: dict[str, Any]) -> None:
                body = json.dumps(document).encode()
                self.send_response(200)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None: ...

        return Handler


@contextmanager
def _running(servers: Servers) -> Iterator[tuple[str, str]]:
    """Run both servers; yield their addresses."""
    methods = {
        "ModelInfer": grpc.unary_unary_rpc_method_handler(servers.infer),
        "ModelStreamInfer": grpc.stream_stream_rpc_method_handler(servers.stream),
    }
    handler = grpc.method_handlers_generic_handler(SERVICE, methods)
    server = grpc.server(ThreadPoolExecutor(2), handlers=[handler])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    http = ThreadingHTTPServer(("127.0.0.1", 0), servers.http_handler())
    thread = threading.Thread(target=http.serve_forever)
    thread.start()
    try:
        yield f"127.0.0.1:{port}", f"127.0.0.1:{http.server_address[1]}"
    finally:
        server.stop(None)
        http.shutdown()
        thread.join()
        http.server_close()


@pytest.fixture(scope="module", params=["native", "reference"])
def gateway(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Running, Servers]]:
    """A gateway of each implementation before both servers."""
    servers = Servers()
    with _running(servers) as (over_grpc, over_http):
        path = Path(tmp_path_factory.mktemp("binary") / "gateway.yaml")
        path.write_text(CONFIG.format(make=request.param, grpc=over_grpc, http=over_http))
        with serving(str(path)) as running:
            yield running, servers


def _call_grpc(running: Running, model: str, *, streams: bool = False) -> None:
    message = pb.ModelInferRequest(model_name=model, raw_input_contents=[b"\1\0\0\0"])
    message.inputs.add(name="x", datatype="INT32", shape=[1])
    data, metadata = message.SerializeToString(), (("x-key-bin", SECRET), ("x-other-bin", b"no"))
    with grpc.insecure_channel(running.addresses["main.grpc"]) as channel:
        if streams:
            call = channel.stream_stream(INFER.replace("ModelInfer", "ModelStreamInfer"))
            assert 1 == len(list(call(iter([data]), metadata=metadata, timeout=60)))
        else:
            channel.unary_unary(INFER)(data, metadata=metadata, timeout=60)


def _call_http(running: Running, model: str, value: str = BASE64) -> None:
    body = {"inputs": [{"name": "x", "datatype": "INT32", "shape": [1], "data": [1]}]}
    headers = {"X-Key-Bin": value, "x-other-bin": BASE64}
    url = urlsplit(running.url(f"/v2/models/{model}/infer"))
    with closing(HTTPConnection(url.netloc, timeout=60)) as connection:
        connection.request("POST", url.path, json.dumps(body), headers)
        assert 200 == connection.getresponse().status


@pytest.mark.parametrize("streams", [False, True])
def test_bytes_over_grpc_arrive_as_bytes(gateway: tuple[Running, Servers], streams: bool) -> None:
    """Only listed keys are forwarded, of calls and of streams."""
    running, servers = gateway
    _call_grpc(running, "g", streams=streams)
    assert [("x-key-bin", SECRET)] == [each for each in servers.seen if each[0] != "x-request-id"]


def test_bytes_over_grpc_arrive_as_base64_over_http(gateway: tuple[Running, Servers]) -> None:
    """A server over HTTP gets a header."""
    running, servers = gateway
    _call_grpc(running, "h")
    assert [BASE64] == servers.seen


@pytest.mark.parametrize("value", [BASE64, BASE64.rstrip("="), f"{BASE64}, ??, {BASE64}"])
def test_base64_over_http_arrives_as_bytes(gateway: tuple[Running, Servers], value: str) -> None:
    """Padding may be missing, and what is not base64 is left out."""
    running, servers = gateway
    _call_http(running, "g", value)
    found = [each for each in servers.seen if each[0] != "x-request-id"]
    assert [("x-key-bin", SECRET)] * value.count(BASE64.rstrip("=")) == found


def test_base64_over_http_stays_base64_over_http(gateway: tuple[Running, Servers]) -> None:
    """It is a header as any other."""
    running, servers = gateway
    _call_http(running, "h")
    assert [BASE64] == servers.seen
