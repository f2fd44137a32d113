"""A gateway in front of a recorded Python grps server: its responses, byte by byte.

The server closes each connection after its response, is not ready before a call of online, and
streams pretty-printed JSON; intermediaries split streams in other ways.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import grpc
import pytest

from gateway.schema import open_inference_pb2 as oip
from tests.integration.cli_kit import Running, serving
from tests.integration.grps_kit import TIMEOUT_S, post, values

RECORDED = Path(__file__).parents[1] / "golden" / "grps" / "http"
PREDICT = "/grps/v1/infer/predict"
OK = {"code": 200, "msg": "OK", "status": "SUCCESS"}

CONFIG = """
version: 1
listeners: [{{http: "127.0.0.1:0", grpc: "127.0.0.1:0"}}]
admin: {{address: null, metrics: null}}
upstreams:
  recorded:
    url: grps+http://127.0.0.1:{port}
    options: {{readiness: {readiness}, output: reply, keys: {{echo: ""}}}}
models:
  echo:
    signature:
      inputs: [{{name: text, datatype: BYTES, shape: [1]}}]
      outputs: [{{name: reply, datatype: BYTES, shape: [1]}}]
lifecycle: {{pre_stop: 0s}}
"""


@dataclass
class Server:
    """Plays recordings, one connection for each.

    Attributes:
        step: Bytes of a chunk of a streamed response, and of each piece that is sent.
        requests: First lines and bodies of the requests so far.
    """

    step: int = 1 << 20
    requests: list[tuple[str, bytes]] = field(default_factory=list)
    listening: socket.socket = field(default_factory=lambda: socket.create_server(("127.0.0.1", 0)))

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self.listening.getsockname()[1])

    def run(self) -> None:
        """Serve until the socket is closed."""
        with suppress(OSError):
            while True:
                connection, _ = self.listening.accept()
                with connection, suppress(OSError):
                    self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        reader = connection.makefile("rb")
        first = reader.readline().decode().strip()
        if not first:
            return
        length = 0
        while line := reader.readline().decode().strip():
            name, _, value = line.partition(":")
            length = int(value) if name.lower() == "content-length" else length
        body = reader.read(length)
        self.requests.append((first, body))
        response = self._recording(first, body)
        for at in range(0, len(response), self.step):
            connection.sendall(response[at : at + self.step])

    def _recording(self, first: str, body: bytes) -> bytes:
        _, path, _ = first.split(" ")
        if path == "/grps/v1/health/ready" and not any(
            "online" in line for line, _ in self.requests
        ):
            return (RECORDED / "cpp_not_ready.res.raw").read_bytes()
        for part, name in (
            ("health/", path.rpartition("/")[2].partition("?")[0]),
            ("metadata/server", "metadata_server"),
            ("metadata/model", "metadata_model"),
            ("streaming=true", "predict_str_streaming"),
        ):
            if part in path:
                return self._cut((RECORDED / f"py_{name}.res.raw").read_bytes())
        member = next(key for key in ("gtensors", "gmap", "str_data") if key.encode() in body)
        name = member.removesuffix("_data")
        return (RECORDED / f"py_predict_{name}.res.raw").read_bytes()

    def _cut(self, response: bytes) -> bytes:
        """Return a chunked response in other chunks."""
        head, _, rest = response.partition(b"\r\n\r\n")
        if b"chunked" not in head:
            return response
        text = b""
        while rest:
            size, _, rest = rest.partition(b"\r\n")
            text, rest = text + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
        pieces = [text[at : at + self.step] for at in range(0, len(text), self.step)]
        chunks = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
        return head + b"\r\n\r\n" + chunks + b"0\r\n\r\n"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """The recorded server."""
    made = Server()
    thread = threading.Thread(target=made.run)
    thread.start()
    yield made
    with suppress(OSError):
        made.listening.shutdown(socket.SHUT_RDWR)
    made.listening.close()
    thread.join()


@pytest.fixture(scope="module")
def gateway(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A gateway in front of it with a liveness probe."""
    config = tmp_path_factory.mktemp("recorded") / "gateway.yaml"
    config.write_text(CONFIG.format(port=server.port, readiness="live"))
    with serving(str(config)) as running:
        yield running


@pytest.fixture(params=[1, 7, 113, 1 << 20])
def step(request: pytest.FixtureRequest, server: Server) -> Iterator[int]:
    """Let the server write in pieces of so many bytes."""
    server.step = request.param
    yield request.param
    server.step = 1 << 20


def test_stream_is_decoded_in_chunks_of_any_size(gateway: Running, step: int) -> None:
    """Pretty-printed JSON in chunks of any size becomes messages, and the stream ends."""
    response = post(gateway.addresses["main.http"], f"{PREDICT}?streaming=true&model=echo", TEXT)
    assert 200 == response[0]
    expected = [{"status": OK, "str_data": f"hello grps. {number}"} for number in range(3)]
    assert expected == values(response[2])


TEXT = {"str_data": "hello grps."}


def test_oip_stream_marks_its_final_response(gateway: Running) -> None:
    """A client that requests it gets an empty final response at the stream's end."""
    request = oip.ModelInferRequest(
        model_name="echo",
        id="7",
        inputs=[oip.ModelInferRequest.InferInputTensor(name="text", datatype="BYTES", shape=[1])],
        raw_input_contents=[b"\x0b\0\0\0hello grps."],
    )
    request.parameters["triton_enable_empty_final_response"].bool_param = True
    with grpc.insecure_channel(gateway.addresses["main.grpc"]) as channel:
        ask = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
        found = [
            oip.ModelStreamInferResponse.FromString(response)
            for response in ask(iter([request.SerializeToString()]), timeout=TIMEOUT_S)
        ]
    assert [""] * 4 == [response.error_message for response in found]
    *responses, last = [response.infer_response for response in found]
    assert [b"\x0d\0\0\0hello grps. %d" % number for number in range(3)] == [
        response.raw_output_contents[0] for response in responses
    ]
    assert {("7", "reply")} == {(response.id, response.outputs[0].name) for response in responses}
    marks = [
        response.parameters["triton_final_response"].bool_param for response in (*responses, last)
    ]
    assert [False, False, False, True] == marks
    assert 0 == len(last.outputs)


def test_oip_tensor_is_converted_by_the_configured_signature(
    gateway: Running, server: Server, step: int
) -> None:
    """A tensor of Open Inference becomes the text, and the response its configured output."""
    tensor = {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["hello grps."]}
    connection = HTTPConnection(gateway.addresses["main.http"], timeout=TIMEOUT_S)
    body = json.dumps({"inputs": [tensor], "parameters": {"grps_form": "str_data"}})
    connection.request("POST", "/v2/models/echo/infer", body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    document = json.loads(response.read())
    connection.close()
    assert (200, step) == (response.status, server.step), document
    (output,) = document["outputs"]
    expected = {"name": "reply", "datatype": "BYTES", "shape": [1], "data": ["hello grps."]}
    assert expected == output
    first, sent = server.requests[-1]
    assert "POST /grps/v1/infer/predict HTTP/1.1" == first
    assert {"str_data": "hello grps."} == json.loads(sent)


@pytest.mark.parametrize("action", ["generate", "generate_stream"])
def test_generate_without_a_signature_names_the_setting(
    gateway: Running, server: Server, action: str
) -> None:
    """The server reports no inputs, so the gateway cannot derive them from parameters."""
    address = gateway.addresses["main.http"]
    status, _, text = post(address, f"/v2/models/simple/{action}", {"text": "hello grps."})
    assert 501 == status, text
    assert b"(models: NAME: signature)" in text
    status, _, text = post(address, f"/v2/models/echo/{action}", {"text": "hello grps."})
    assert 200 == status, text
    assert b"hello grps." in server.requests[-1][1]


@pytest.mark.parametrize(
    ("body", "member"),
    [
        (TEXT, "str_data"),
        (
            {
                "gtensors": {
                    "tensors": [
                        {
                            "name": "inp",
                            "dtype": "DT_FLOAT32",
                            "shape": [2, 3],
                            "flat_float32": [1, 2, 3, 4, 5, 6],
                        }
                    ]
                }
            },
            "gtensors",
        ),
    ],
    ids=["text", "tensors"],
)
def test_response_of_the_server_reaches_the_client(
    gateway: Running, body: dict[str, Any], member: str
) -> None:
    """The message is the same except for white space."""
    status, _, text = post(gateway.addresses["main.http"], f"{PREDICT}?model=echo", body)
    name = member.removesuffix("_data")
    recorded = (RECORDED / f"py_predict_{name}.res.raw").read_bytes()
    assert 200 == status
    assert json.loads(recorded.partition(b"\r\n\r\n")[2]) == json.loads(text)


def test_models_come_from_the_server_metadata(gateway: Running) -> None:
    """A model of the server is ready; any other is not."""
    connection = HTTPConnection(gateway.addresses["main.http"], timeout=TIMEOUT_S)
    for model, there in (("simple", 200), ("nobody", 404)):
        connection.request("GET", f"/v2/models/{model}/ready")
        response = connection.getresponse()
        response.read()
        assert (there == 200) is (response.status == 200), model
    connection.close()


def test_model_keys_are_forwarded_unchanged(gateway: Running, server: Server) -> None:
    """The server gets the whole key, whichever part of it is the version."""
    for key in ("simple-1.0.0", "a-b-2-rc"):
        post(gateway.addresses["main.http"], PREDICT, {**TEXT, "model": key})
        assert key == json.loads(server.requests[-1][1])["model"]


def test_offline_server_is_not_ready(tmp_path: Path) -> None:
    """The server reports it in the body, with HTTP status 200, until a call of online."""
    made = Server()
    thread = threading.Thread(target=made.run)
    thread.start()
    config = tmp_path / "gateway.yaml"
    config.write_text(CONFIG.format(port=made.port, readiness="ready"))
    with serving(str(config)) as running:
        address = running.addresses["main.http"]
        connection = HTTPConnection(address, timeout=TIMEOUT_S)
        connection.request("GET", "/v2/health/ready")
        response = connection.getresponse()
        response.read()
        connection.close()
        assert 200 != response.status
    with suppress(OSError):
        made.listening.shutdown(socket.SHUT_RDWR)
    made.listening.close()
    thread.join()
