"""A collector of OpenTelemetry in this process: it receives OTLP over gRPC and HTTP."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2 as logs
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as metrics
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as traces
from opentelemetry.proto.common.v1.common_pb2 import KeyValue

_REQUESTS: dict[str, Any] = {
    "/v1/traces": traces.ExportTraceServiceRequest,
    "/v1/metrics": metrics.ExportMetricsServiceRequest,
    "/v1/logs": logs.ExportLogsServiceRequest,
}
_METHODS = {
    "/opentelemetry.proto.collector.trace.v1.TraceService/Export": "/v1/traces",
    "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export": "/v1/metrics",
    "/opentelemetry.proto.collector.logs.v1.LogsService/Export": "/v1/logs",
}


class Collector:
    """The messages that the receivers got.

    Attributes:
        requests: The path of each message, and the message.
        headers: The headers of each HTTP request.
    """

    def __init__(self) -> None:
        self.requests: list[tuple[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.urls: dict[str, str] = {}

    def receive(self, path: str, body: bytes) -> bytes:
        request = _REQUESTS[path]()
        request.ParseFromString(body)
        self.requests.append((path, request))
        return b""

    def of(self, path: str) -> list[Any]:
        return [request for found, request in self.requests if found == path]

    @property
    def spans(self) -> list[Any]:
        """Every span, with the attributes of its resource in `resource`."""
        return [
            span
            for request in self.of("/v1/traces")
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    @property
    def resources(self) -> list[dict[str, Any]]:
        """The attributes of the resource of each message of spans."""
        return [
            values(resource.resource.attributes)
            for request in self.of("/v1/traces")
            for resource in request.resource_spans
        ]


def values(attributes: Any) -> dict[str, Any]:
    """Return attributes as a dictionary."""
    return {pair.key: _value(pair) for pair in attributes}


def _value(pair: KeyValue) -> Any:
    return getattr(pair.value, str(pair.value.WhichOneof("value")))


class _Methods(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc is untyped
    def __init__(self, collector: Collector) -> None:
        self._collector = collector

    def service(self, handler_call_details: Any) -> Any:
        path = _METHODS[handler_call_details.method]
        return grpc.unary_unary_rpc_method_handler(
            lambda body, _context: self._collector.receive(path, body)
        )


@contextmanager
def collecting() -> Iterator[Collector]:
    """Run a collector; `urls` has its address by the value of `OTEL_EXPORTER_OTLP_PROTOCOL`."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            collector.headers.append(dict(self.headers.items()))
            collector.receive(self.path, body)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_arguments: Any) -> None: ...

    web = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=web.serve_forever, daemon=True)
    thread.start()
    with ThreadPoolExecutor(2) as pool:
        server = grpc.server(pool, handlers=[_Methods(collector)])
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        collector.urls = {
            "grpc": f"http://127.0.0.1:{port}",
            "http/protobuf": f"http://127.0.0.1:{web.server_port}",
        }
        try:
            yield collector
        finally:
            server.stop(None).wait()
            web.shutdown()
            web.server_close()
            thread.join()
