"""A server of Open Inference that maps regions as Triton does, and replies with a checksum."""

from __future__ import annotations

import json
import mmap
import random
import threading
import time
import zlib
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

SEGMENTS = Path("/dev/shm")  # noqa: S108  # where Linux keeps POSIX segments


class MappingServer(ThreadingHTTPServer):
    """Reads each input once, a moment after its request has arrived, also if its client has left.

    Attributes:
        mapped: The regions by name.
        keys: The keys of all regions that were registered, by this server and those before it.
        sources: How many inputs came in shared memory, and how many as bytes.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, port: int = 0, before: MappingServer | None = None) -> None:
        self.mapped: dict[str, mmap.mmap] = {}
        self.uses: Counter[str] = Counter()
        self.keys: set[str] = set() if before is None else before.keys
        self.sources: Counter[str] = Counter() if before is None else before.sources
        self.lock = threading.Lock()
        self.connections: set[Any] = set()
        super().__init__(("127.0.0.1", port), _Handler)
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    def restart(self) -> MappingServer:
        """End all connections, and return a new server at the same address."""
        self.shutdown()
        self.server_close()
        for connection in [*self.connections]:
            connection.close()
        return MappingServer(self.server_address[1], self)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Write nothing about clients that have left."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: MappingServer

    def setup(self) -> None:
        super().setup()
        self.server.connections.add(self.connection)

    def do_GET(self) -> None:
        """Describe the server, its model and its regions."""
        if self.path == "/v2":
            extensions = ["system_shared_memory", "binary_tensor_data"]
            self._reply({"name": "triton", "version": "2.51.0", "extensions": extensions})
        elif self.path == "/v2/models/m":
            tensor = {"name": "x", "datatype": "UINT8", "shape": [-1]}
            output = {"name": "y", "datatype": "INT64", "shape": [1]}
            self._reply({"name": "m", "platform": "", "inputs": [tensor], "outputs": [output]})
        elif self.path == "/v2/systemsharedmemory/status":
            with self.server.lock:
                names = [*self.server.mapped]
            self._reply(
                [{"name": each, "key": each, "offset": 0, "byte_size": 1} for each in names]
            )
        else:
            self._reply({})

    def do_POST(self) -> None:
        """Register, unregister or infer."""
        body = self.rfile.read(int(self.headers["Content-Length"] or 0))
        parts = self.path.split("/")
        server, lock = self.server, self.server.lock
        if self.path.startswith("/v2/systemsharedmemory/region/"):
            name = parts[4]
            with lock:
                if parts[5] == "register":
                    found = json.loads(body)
                    server.keys.add(found["key"].removeprefix("/"))
                    path = SEGMENTS / found["key"].removeprefix("/")
                    with path.open("r+b") as file:
                        server.mapped[name] = mmap.mmap(file.fileno(), found["byte_size"])
                elif server.uses[name]:
                    return self._reply({"error": f"Cannot unregister {name}, it is in use."}, 500)
                else:
                    server.mapped.pop(name, None)
            return self._reply({})
        length = int(self.headers.get("Inference-Header-Content-Length") or len(body))
        request = json.loads(body[:length])
        (tensor,) = request["inputs"]
        given = tensor["parameters"]
        name = given.get("shared_memory_region")
        with lock:
            server.sources["bytes" if name is None else "shared"] += 1
            region = server.mapped.get(name)
            if name is not None and region is None:
                text = f"Unable to find shared memory region: '{name}'"
                return self._reply({"error": text}, 404)
            server.uses[name] += 1
        time.sleep(random.random() * 0.02)  # noqa: S311  # a model that takes a moment
        if region is None:
            checksum = zlib.crc32(body[length:])
        else:
            offset = given.get("shared_memory_offset", 0)
            with memoryview(region)[offset : offset + given["shared_memory_byte_size"]] as view:
                checksum = zlib.crc32(view)
        with lock:
            server.uses[name] -= 1
        output = {"name": "y", "datatype": "INT64", "shape": [1], "data": [checksum]}
        return self._reply({"model_name": "m", "id": request.get("id", ""), "outputs": [output]})

    def _reply(self, document: Any, status: int = 200) -> None:
        data = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Write nothing."""
