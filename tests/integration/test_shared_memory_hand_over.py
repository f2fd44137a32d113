"""Large tensors handed over in shared memory: none is wrong, and no file is left, whatever ends."""

from __future__ import annotations

import json
import random
import signal
import threading
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import pytest

from tests.integration.cli_kit import Running, free_port, get, serving
from tests.integration.shared_memory_kit import SEGMENTS, MappingServer
from tests.integration.workers_kit import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

CONFIG = """
version: 1
workers: {workers}
hand_over_bytes: 16MiB
listeners: [{{http: "127.0.0.1:{port}", protocols: [oip]}}]
admin: {{address: "127.0.0.1:0"}}
upstreams:
  t: {{url: "oip+http://127.0.0.1:{upstream}", hand_over: auto, probe: {{interval: 200ms}}}}
routes: [{{name: all, match: {{model: "*"}}, targets: [{{upstream: t}}]}}]
lifecycle: {{drain: 1s}}
"""


def written(folder: Path, upstream: int, *, workers: int = 1) -> tuple[str, int]:
    """Write a configuration; return its path and the port of its listener."""
    port = free_port()
    path = folder / f"{port}.yaml"
    path.write_text(CONFIG.format(workers=workers, port=port, upstream=upstream))
    return str(path), port


def infer(connection: HTTPConnection, data: bytes, *, waits: bool = True) -> bool | None:
    """Send *data*; return whether the reply has its checksum, None without a reply of a model."""
    tensor = {"name": "x", "datatype": "UINT8", "shape": [len(data)]}
    head = json.dumps(
        {"inputs": [{**tensor, "parameters": {"binary_data_size": len(data)}}]}
    ).encode()
    fields = {"Inference-Header-Content-Length": str(len(head))}
    connection.request("POST", "/v2/models/m/infer", head + data, fields)
    if not waits:
        connection.close()
        return None
    response = connection.getresponse()
    body = response.read()
    assert b"tensor-gateway-" not in body
    if response.status != HTTPStatus.OK:
        return None
    found: list[int] = json.loads(body)["outputs"][0]["data"]
    return [zlib.crc32(data)] == found


class Clients:
    """Threads that send tensors of random sizes, of which they leave one in ten.

    Attributes:
        counts: Replies that are right, calls without one, and broken connections.
        wrong: The sizes of tensors whose replies have another checksum.
    """

    def __init__(self, ports: list[int]) -> None:
        self.counts: Counter[str] = Counter()
        self.wrong: list[int] = []
        self._ended = threading.Event()
        self._threads = [
            threading.Thread(target=self._send, args=(port, seed))
            for seed, port in enumerate(ports)
        ]

    @contextmanager
    def sending(self) -> Iterator[None]:
        """Send until the block ends."""
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._ended.set()
            for thread in self._threads:
                thread.join()

    def _send(self, port: int, seed: int) -> None:
        draw = random.Random(seed)  # noqa: S311  # it must be repeatable
        connection = HTTPConnection("127.0.0.1", port, timeout=60)
        while not self._ended.is_set():
            size = draw.choice(
                (draw.randrange(1, 2_000), draw.randrange(60_000, 900_000), 3_000_000)
            )
            data = draw.randbytes(size)
            try:
                found = infer(connection, data, waits=draw.random() > 0.1)
            except (OSError, HTTPException):
                self.counts["broken"] += 1
                connection.close()
                continue
            if found is False:
                self.wrong.append(size)
            self.counts["right" if found else "left"] += 1
        connection.close()


def more_right(clients: Clients, count: int = 30) -> None:
    """Wait for *count* further replies."""
    before = clients.counts["right"]
    eventually(lambda: clients.counts["right"] >= before + count)


def test_no_tensor_is_wrong_and_no_file_is_left(tmp_path: Path) -> None:
    """Two gateways, two workers, clients that leave, a server started twice, and a killed gateway."""
    server = MappingServer()
    upstream = server.server_address[1]
    one, port = written(tmp_path, upstream)
    two, workers_port = written(tmp_path, upstream, workers=2)
    clients = Clients([port, port, workers_port, workers_port])
    with serving(two, patience_s=90) as of_workers:
        with serving(one) as first, clients.sending():
            more_right(clients)
            for _ in range(2):
                server = server.restart()
                more_right(clients)
            first.stop(signal.SIGKILL)
            assert files(server)
            with serving(one) as second:
                more_right(clients)
                eventually(lambda: hand_over_of(second) == "on")
                second.stop()
        assert [] == clients.wrong
        assert server.sources["shared"] > 30
        of_workers.stop()
    assert [] == files(server)
    eventually(lambda: not server.mapped)
    assert "tensor-gateway-" not in "".join([*first.log, *second.log, *of_workers.log])
    server.shutdown()
    server.server_close()


def files(server: MappingServer) -> list[str]:
    """Return the regions that were registered, and that have a file."""
    return [name for name in server.keys if (SEGMENTS / name).exists()]


def hand_over_of(running: Running) -> str:
    (upstream,) = get(running.url("/status", "admin"))[1]["upstreams"]
    return str(upstream["endpoints"][0]["hand_over"])
