"""A name server that never replies: nothing but the calls to that name may notice."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.integration.cli_kit import get, serving
from tests.integration.workers_kit import eventually

# Two gateways start in processes of their own: 4 s, and ten times that on a machine with other work.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

# The loop of asyncio, whose threads the test can see; that of uvloop calls C, where nothing is replaced.
SILENT = """
import socket, sys, time
sys.modules["uvloop"] = None
known = socket.getaddrinfo
def ask(host, *args, **options):
    if str(host).startswith("silent"):
        time.sleep(600)
    return known(host, *args, **options)
socket.getaddrinfo = ask
"""

BACK = """
version: 1
listeners: [{http: "127.0.0.1:0"}]
lifecycle: {pre_stop: 0s, drain: 1s}
models:
  simple: {backend: python, options: {callable: "gateway.backends.examples:simple"}}
"""

FRONT = """
version: 1
listeners: [{{http: "0.0.0.0:0", grpc: ":0"}}]
admin: {{address: "127.0.0.1:0", metrics: null}}
lifecycle: {{pre_stop: 0s, drain: 1s}}
upstreams:
  first: {{url: "oip+http://silent.test:1", transport: {transport}}}
  second: {{url: "oip+grpc://silent.second.test:1", resolve: all}}
  third: {{url: "graphpipe+http://silent.third.test:1", transport: {transport}}}
  good: {{url: "oip+http://localhost:{port}", transport: {transport}}}
routes:
  - {{match: {{model: far}}, targets: [{{upstream: first}}]}}
  - {{match: {{model: simple}}, targets: [{{upstream: good}}]}}
"""

BODY = {
    "inputs": [
        {"name": name, "datatype": "INT32", "shape": [1, 16], "data": [list(range(16))]}
        for name in ("INPUT0", "INPUT1")
    ]
}


@contextmanager
def front(directory: Path, transport: str, port: int | None) -> Iterator[tuple[Any, list[Any]]]:
    """Run a gateway whose name server is silent; yield the process and its events until it started."""
    (directory / "sitecustomize.py").write_text(SILENT)
    config = directory / "front.yaml"
    config.write_text(FRONT.format(transport=transport, port=port))
    process = subprocess.Popen(
        [sys.executable, "-m", "gateway", "serve", "-c", str(config)],
        env={**os.environ, "PYTHONPATH": f"{directory}{os.pathsep}{os.getcwd()}"},  # noqa: PTH109
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        events: list[Any] = []
        for line in process.stderr:
            events.append(json.loads(line))
            if events[-1]["event"] == "started":
                break
        yield process, events
    finally:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


@pytest.mark.needs("own_look_up")
@pytest.mark.parametrize("transport", ["native", "reference"])
def test_start_calls_and_stop_are_as_without_it(tmp_path: Path, transport: str) -> None:
    """Ports open, another upstream with a name serves each call, and the process ends at once."""
    back = tmp_path / "back.yaml"
    back.write_text(BACK)
    with serving("-c", str(back)) as behind:
        port = urlsplit(behind.url("")).port
        with front(tmp_path, transport, port) as (process, events):
            started = events[-1]
            url = f"http://{started['main.http'].replace('0.0.0.0', '127.0.0.1')}"
            assert 200 == get(f"http://{started['admin']}/livez")[0]
            took = []
            for _ in range(8):
                began = time.monotonic()
                assert 200 == get(f"{url}/v2/models/simple/infer", BODY)[0]
                took.append(time.monotonic() - began)
                time.sleep(0.1)  # probes of the silent names go on meanwhile
            assert statistics.median(took) < 2.0  # one that waits for a name takes 3 s

            def is_silent() -> bool:
                status, reply = get(f"{url}/v2/models/far/infer", BODY)
                assert 503 == status
                return "has not replied about 'silent.test'" in reply["error"]

            eventually(is_silent)
            assert 200 == get(f"{url}/v2/models/simple/infer", BODY)[0]
            process.send_signal(signal.SIGTERM)
            assert 0 == process.wait(60)
