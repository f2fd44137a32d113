"""Probes of a container that a platform starts: `gateway serve` with the environment alone."""

from __future__ import annotations

import os
import subprocess
from contextlib import closing
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Protocol

from tests.integration.fork_server import ForkedProcess
from tests.integration.workers_kit import eventually

MOST_MEMORY = 256 << 20
MOST_SECONDS = 5.0
CONFIG = """
version: 1
listeners:
  - http: 127.0.0.1:${env:%(port)s}
    protocols: [%(protocol)s]
    options: {%(protocol)s: %(options)s}
admin: {address: "off", metrics: "off"}
models: {simple: {backend: python, options: {callable: "gateway.backends.examples:simple"}}}
lifecycle: {pre_stop: 0s, drain: 25s}
"""
ROUTES = """{vertex: {predict: "${env:AIP_PREDICT_ROUTE}", health: "${env:AIP_HEALTH_ROUTE}"}}"""


@dataclass(frozen=True)
class Contract:
    """What a platform promises the container that it starts with `serve` alone.

    Attributes:
        file: Where the configuration lies, from the root of the container.
        config: The configuration.
        health: The path of its probes.
    """

    file: str
    config: str
    health: str

    def environment(self, port: int) -> dict[str, str]:
        """Return all variables that the platform sets."""
        if self.health == "/ping":
            return {"SAGEMAKER_BIND_TO_PORT": str(port)}
        return {
            "AIP_MODE": "PREDICTION",
            "AIP_MODE_VERSION": "1.0.0",
            "AIP_HTTP_PORT": str(port),
            "AIP_ENDPOINT_ID": "17",
            "AIP_STORAGE_URI": "",
            "AIP_PREDICT_ROUTE": f"{self.health}:predict",
            "AIP_HEALTH_ROUTE": self.health,
        }


CONTRACTS = {
    "sagemaker": Contract(
        "opt/ml/model/gateway.yaml",
        CONFIG % {"port": "SAGEMAKER_BIND_TO_PORT", "protocol": "mlflow", "options": "{}"},
        "/ping",
    ),
    "vertex": Contract(
        "etc/gateway/gateway.yaml",
        CONFIG % {"port": "AIP_HTTP_PORT", "protocol": "tfs", "options": ROUTES},
        "/v1/endpoints/17/deployedModels/42",
    ),
}


@dataclass
class StartedContainer:
    """A container that listens on *port*."""

    process: subprocess.Popen[bytes]
    port: int

    def ask(self, method: str, path: str) -> tuple[Any, ...]:
        with closing(HTTPConnection("127.0.0.1", self.port, timeout=60)) as connection:
            connection.request(method, path)
            return (connection.getresponse().status,)


def check_usage(pid: int) -> None:
    """Check what a process has needed so far: resident memory at its peak, and CPU time."""
    status = Path(f"/proc/{pid}/status").read_text()
    assert 1024 * int(status.split("VmHWM:")[1].split()[0]) <= MOST_MEMORY
    used = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    assert sum(map(int, used)) / os.sysconf("SC_CLK_TCK") <= MOST_SECONDS


class Probed(Protocol):
    """A started container."""

    @property
    def process(self) -> subprocess.Popen[bytes] | ForkedProcess:
        """Its process."""
        ...

    def ask(self, method: str, path: str) -> tuple[Any, ...]:
        """Return the status of a request, and what else is in its response."""
        ...


def probe(container: Probed, path: str) -> int | None:
    """Return the status of a probe; None where the port refuses the connection."""
    try:
        return int(container.ask("GET", path)[0])
    except OSError:
        return None


def await_ready(container: Probed, path: str, log: Path) -> None:
    """Wait until a probe is 200; fail with the log of a process that has ended."""

    def is_ready() -> bool:
        assert container.process.poll() is None, log.read_text()
        return probe(container, path) == 200

    eventually(is_ready)


def await_refusal(container: Probed, path: str) -> None:
    """Wait until new calls are refused, or a probe says that they will be."""
    eventually(lambda: probe(container, path) in {503, None})
