"""Handwritten clients of every protocol with streams: all return the same items.

Each calls a model with input `text` and output `token`, as in `tests.integration.streaming_models`.
"""

from __future__ import annotations

import itertools
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import grpc

from gateway.schema import grps_pb2, open_inference_pb2, tensorrt_v1_pb2
from tests.integration.cli_kit import Running

TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Heard:
    """One item of a stream: its text, or its error."""

    word: str = ""
    error: str = ""


class Listening(Protocol):
    """An open stream of items."""

    def __iter__(self) -> Iterator[Heard]: ...
    def __next__(self) -> Heard: ...
    def leave(self) -> None:
        """Break off, as a client that is killed does."""


class Client(Protocol):
    """Opens streams."""

    @property
    def name(self) -> str: ...
    def ask(self, running: Running, model: str, text: str) -> Any:
        """Return a context that yields a `Listening`."""
        ...


class _Grpc:
    """A stream over gRPC; *read* decodes a message."""

    def __init__(self, call: Any, read: Any) -> None:
        self._call = call
        self._read = read

    def __iter__(self) -> Iterator[Heard]:
        return self

    def __next__(self) -> Heard:
        item: Heard = self._read(next(self._call))
        return item

    def leave(self) -> None:
        self._call.cancel()


def channel_to(running: Running) -> Any:
    """Return a gRPC channel to a gateway."""
    # A client that reads slowly reads ahead as far as its window: make that small.
    options = [
        ("grpc.max_receive_message_length", -1),
        ("grpc.http2.lookahead_bytes", 65_536),
        ("grpc.http2.bdp_probe", 0),
    ]
    return grpc.insecure_channel(running.addresses["main.grpc"], options)


class OipGrpc:
    """ModelStreamInfer, half-closed after one request."""

    name = "oip.grpc"

    @contextmanager
    def ask(self, running: Running, model: str, text: str) -> Iterator[Listening]:
        with channel_to(running) as channel:
            call = stream_of(channel)(iter([self.question(model, text)]), timeout=TIMEOUT_S)
            yield _Grpc(call, self.read_answer)
            call.cancel()

    @staticmethod
    def question(model: str, text: str, request_id: str = "7") -> Any:
        message = open_inference_pb2.ModelInferRequest(model_name=model, id=request_id)
        message.inputs.add(name="text", datatype="BYTES", shape=[1])
        message.raw_input_contents.append(len(text).to_bytes(4, "little") + text.encode())
        return message

    @staticmethod
    def read_answer(message: Any) -> Heard:
        response = message.infer_response
        assert "triton_final_response" in response.parameters
        if message.error_message:
            return Heard(error=message.error_message)
        raw: bytes = response.raw_output_contents[0]
        return Heard(raw[4:].decode() if response.outputs[0].datatype == "BYTES" else str(len(raw)))


def stream_of(channel: Any) -> Any:
    """Return ModelStreamInfer as Triton's clients see it."""
    return channel.stream_stream(
        "/inference.GRPCInferenceService/ModelStreamInfer",
        open_inference_pb2.ModelInferRequest.SerializeToString,
        open_inference_pb2.ModelStreamInferResponse.FromString,
    )


class TrtisGrpc:
    """StreamInfer: a stream with one response to each request."""

    name = "trtis.grpc"

    @contextmanager
    def ask(self, running: Running, model: str, text: str) -> Iterator[Listening]:
        raw = len(text).to_bytes(4, "little") + text.encode()
        message = tensorrt_v1_pb2.InferRequest(
            model_name=model, model_version=-1, raw_input=[raw], meta_data={"id": 7}
        )
        message.meta_data.batch_size = 1
        message.meta_data.input.add(name="text", dims=[1], batch_byte_size=len(raw))
        message.meta_data.output.add(name="token")
        with channel_to(running) as channel:
            method = channel.stream_stream(
                "/nvidia.inferenceserver.GRPCService/StreamInfer",
                tensorrt_v1_pb2.InferRequest.SerializeToString,
                tensorrt_v1_pb2.InferResponse.FromString,
            )
            call = method(iter([message]), timeout=TIMEOUT_S)
            yield _Grpc(call, self._read_answer)
            call.cancel()

    @staticmethod
    def _read_answer(message: Any) -> Heard:
        assert 7 == message.meta_data.id
        if message.request_status.code != tensorrt_v1_pb2.SUCCESS:
            return Heard(error=message.request_status.msg)
        return Heard(message.raw_output[0][4:].decode())


class GrpsGrpc:
    """PredictStreaming."""

    name = "grps.grpc"

    @contextmanager
    def ask(self, running: Running, model: str, text: str) -> Iterator[Listening]:
        with channel_to(running) as channel:
            method = channel.unary_stream(
                "/grps.protos.v1.GrpsService/PredictStreaming",
                grps_pb2.GrpsMessage.SerializeToString,
                grps_pb2.GrpsMessage.FromString,
            )
            message = grps_pb2.GrpsMessage(model=model, str_data=text)
            call = method(message, timeout=TIMEOUT_S)
            yield _Grpc(call, self._read_answer)
            call.cancel()

    @staticmethod
    def _read_answer(message: Any) -> Heard:
        if message.status.status == grps_pb2.Status.FAILURE:
            return Heard(error=message.status.msg)
        if message.HasField("gtensors"):
            return Heard(str(4 * len(message.gtensors.tensors[0].flat_float32)))
        return Heard(message.str_data)


class _Body:
    """A chunked body of JSON values; *read* decodes one of them."""

    def __init__(self, sock: socket.socket, read: Any) -> None:
        self._sock = sock
        self._read = read
        self._received = b""
        self._text = ""
        self.status = 0
        self.is_complete = False

    def __iter__(self) -> Iterator[Heard]:
        return self

    def __next__(self) -> Heard:
        while True:
            value = self._value()
            if value is not None:
                item: Heard = self._read(value)
                return item
            if self.is_complete:
                assert "" == self._text.strip()
                raise StopIteration
            self._receive()

    def head(self) -> None:
        """Read status and headers."""
        while b"\r\n\r\n" not in self._received:
            self._receive()
        head, _, self._received = self._received.partition(b"\r\n\r\n")
        self.status = int(head.split()[1])
        self._chunked = b"chunked" in head
        if not self._chunked:
            self._remaining = int(head.lower().partition(b"content-length:")[2].split()[0])

    def leave(self) -> None:
        self._sock.close()

    def _receive(self) -> None:
        piece = self._sock.recv(65_536)
        assert piece, "the stream was broken off"
        self._received += piece

    def _value(self) -> Any:
        self._unchunk()
        text = self._text.lstrip()
        text = text.removeprefix("data:").lstrip()
        if not text:
            return None
        try:
            value, end = json.JSONDecoder().raw_decode(text)
        except json.JSONDecodeError:
            return None
        self._text = text[end:]
        return value

    def _unchunk(self) -> None:
        if not self._chunked:
            self._text += self._received.decode()
            self._remaining -= len(self._received)
            self._received = b""
            self.is_complete = not self._remaining
            return
        while b"\r\n" in self._received:
            size, _, rest = self._received.partition(b"\r\n")
            count = int(size, 16)
            if len(rest) < count + 2:
                return
            self._text += rest[:count].decode()
            self._received = rest[count + 2 :]
            self.is_complete = not count


class Http:
    """A stream over HTTP/1.1, on a socket with a small buffer."""

    def __init__(self, name: str, path: str, document: Any, read: Any) -> None:
        self.name = name
        self._path = path
        self._document = document
        self._read = read

    @contextmanager
    def ask(self, running: Running, model: str, text: str) -> Iterator[Listening]:
        body = json.dumps(self._document(model, text)).encode()
        head = f"POST {self._path.format(model=model)} HTTP/1.1\r\nHost: h\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        host, _, port = running.addresses["main.http"].rpartition(":")
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.settimeout(TIMEOUT_S)
            sock.connect((host, int(port)))
            sock.sendall(head.encode() + body)
            stream = _Body(sock, self._read)
            stream.head()
            yield stream


def _first(data: Any) -> str:
    """Return one word, or the number of bytes of FP32."""
    value = data[0] if isinstance(data, list) and len(data) == 1 else data
    return value if isinstance(value, str) else str(4 * len(data))


def _generated(value: Any) -> Heard:
    if "error" in value:
        return Heard(error=value["error"])
    return Heard(_first(value["token"] if "token" in value else value["data"]))


def _inferred(value: Any) -> Heard:
    if "error" in value:
        return Heard(error=value["error"])
    return Heard(_first(value["outputs"][0]["data"]))


def _grps(value: Any) -> Heard:
    if value["status"]["status"] == "FAILURE":
        return Heard(error=value["status"]["msg"])
    if "gtensors" in value:
        return Heard(str(4 * len(value["gtensors"]["tensors"][0]["flat_float32"])))
    return Heard(value["str_data"])


def _whole(_model: str, text: str) -> Any:
    return {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": [text]}]}


CLIENTS: tuple[Client, ...] = (
    OipGrpc(),
    Http(
        "oip.http-generate",
        "/v2/models/{model}/generate_stream",
        lambda _model, text: {"text": text},
        _generated,
    ),
    Http("oip.http-infer", "/v2/models/{model}/infer_stream", _whole, _inferred),
    GrpsGrpc(),
    Http(
        "grps.http",
        "/grps/v1/infer/predict?streaming=true",
        lambda model, text: {"model": model, "str_data": text},
        _grps,
    ),
)


def first_answers(stream: Listening, count: int) -> list[Heard]:
    """Return the first items of a stream."""
    return list(itertools.islice(stream, count))
