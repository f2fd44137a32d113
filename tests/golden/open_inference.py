"""Recorded exchanges of Open Inference, read from `oip/`: the messages, and the entries of the index.

Recorded between real clients (tritonclient 2.73.0, kserve 0.21.0) and real servers (Triton 2.51.0,
MLServer 1.7.1, KServe 0.21.0); `oip/index.json` says which.  Here lives the undoing of HTTP/1.1
framing and content codings, which is a transport's work.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.wire.grpc import GrpcRequest, GrpcResponse, GrpcStatus
from gateway.wire.http import Headers, HttpRequest, HttpResponse

FOLDER = Path(__file__).parent / "oip"

# MLServer sent this body in a segment of its own, which was recorded with the next response.
_LATE_BODY = b'{"error":"Model nope not found"}'
_WITHOUT_BODY, _WITH_TWO = "107-mlserver-model-ready-unknown", "108-mlserver-server-metadata"


@dataclass(frozen=True)
class Exchange:
    """One recorded exchange.

    Attributes:
        name: Such as "010-triton-infer-json".
        server: Also the dialect it is spoken to in.
        entry: Of the index.
    """

    name: str
    protocol: str
    server: str
    entry: dict[str, Any]

    @property
    def request(self) -> Any:
        """The wire request (the first one, of a stream), as a server transport hands it on."""
        if self.protocol == "grpc":
            message = self._bytes(f"{self.entry['requests'][0]}")
            metadata = tuple((key, value) for key, value in self.entry.get("metadata", ()))
            return GrpcRequest(self.entry["method"], (memoryview(message),), metadata)
        line, headers, body = _parsed(self._bytes(f"{self.entry['file']}.request"))
        method, target, _ = line.split(" ")
        path, _, query = target.partition("?")
        return HttpRequest(method, path, query, headers, (memoryview(body),))

    @property
    def response(self) -> Any:
        """The wire response, as a client transport hands it on."""
        if self.protocol == "grpc":
            status = GrpcStatus[self.entry["status"]]
            if status is not GrpcStatus.OK:
                return GrpcResponse(status=status, details=self.entry.get("details", ""))
            return GrpcResponse((memoryview(self._bytes(self.entry["responses"][0])),))
        data = self._bytes(f"{self.entry['file']}.response")
        if self.name == _WITHOUT_BODY:
            data += _LATE_BODY
        elif self.name == _WITH_TWO:
            data = data.removeprefix(_LATE_BODY)
        line, headers, body = _parsed(data)
        return HttpResponse(int(line.split(" ")[1]), headers, (memoryview(body),))

    @property
    def messages(self) -> list[GrpcRequest]:
        """The requests of a gRPC stream."""
        return [
            GrpcRequest(self.entry["method"], (memoryview(self._bytes(file)),))
            for file in self.entry["requests"]
        ]

    @property
    def responses(self) -> list[GrpcResponse]:
        """The responses of a gRPC stream; a status that is not OK is the last."""
        found = [GrpcResponse((memoryview(self._bytes(file)),)) for file in self.entry["responses"]]
        return found if self.entry["status"] == "OK" else [*found, self.response]

    def _bytes(self, file: str) -> bytes:
        return (FOLDER / file).read_bytes()


def exchanges() -> list[Exchange]:
    """Return all of them, in the order of capture."""
    index = json.loads((FOLDER / "index.json").read_text())
    return [
        Exchange(entry["file"].partition("/")[2], entry["protocol"], entry["server"], entry)
        for entry in index["exchanges"]
    ]


def _parsed(data: bytes) -> tuple[str, Headers, bytes]:
    """Return start line, headers and body, framing and content coding undone."""
    head, _, body = data.partition(b"\r\n\r\n")
    line, *fields = head.decode("latin-1").split("\r\n")
    pairs = [(key, value.strip()) for key, _, value in (field.partition(":") for field in fields)]
    headers = Headers(pairs)
    length = headers.get("content-length")
    if (headers.get("transfer-encoding") or "") == "chunked":
        body = _unchunked(body)
    elif length is not None:
        assert int(length) == len(body), f"{line}: {length} bytes promised, {len(body)} there"
    coding = headers.get("content-encoding")
    if coding in ("gzip", "deflate"):
        body = zlib.decompress(body, 32 + zlib.MAX_WBITS)
    return line, headers, body


def _unchunked(data: bytes) -> bytes:
    whole = b""
    while True:
        size, _, data = data.partition(b"\r\n")
        count = int(size, 16)
        if not count:
            return whole
        whole, data = whole + data[:count], data[count + 2 :]
