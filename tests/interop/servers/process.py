"""Starting a real server as a child process, waiting until it is ready, and stopping it.

What to start is the business of `triton/`, `mlserver/` and `kserve/`, one folder a server; here
is what they share: ports, readiness, the log file and a clean end.
"""

import contextlib
import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

READY_TIMEOUT_S = 240.0
STOP_TIMEOUT_S = 10.0
START_ATTEMPTS = 2
LOG_LINES = 40


@dataclass(frozen=True)
class Ports:
    """Three free loopback ports."""

    http: int
    grpc: int
    metrics: int


@dataclass(frozen=True)
class Command:
    """A program to start.

    Attributes:
        words: The program and its arguments.
        folder: Its working folder.
        variables: What it adds to the environment.
        ready_path: The path whose status is 200 when it is ready.
    """

    words: tuple[str, ...]
    folder: Path
    variables: Mapping[str, str] = field(default_factory=dict)
    ready_path: str = "/v2/health/ready"


class Prepare(Protocol):
    """Write what a server needs into an empty folder, and say how to start it."""

    def __call__(self, folder: Path, ports: Ports, /) -> Command: ...


@dataclass(frozen=True)
class RunningServer:
    """A real server that is ready.

    Attributes:
        name: `triton`, `mlserver` or `kserve`.
        http_url: With the scheme, without a trailing slash: `http://127.0.0.1:PORT`.
        grpc_address: `127.0.0.1:PORT`.
        metrics_url: Where its metrics page is, if it has one.
        process: The child process.
        log_path: Where its standard output and error go.
    """

    name: str
    http_url: str
    grpc_address: str
    metrics_url: str
    process: subprocess.Popen[bytes]
    log_path: Path

    @property
    def http_address(self) -> str:
        """`127.0.0.1:PORT`, the form that tritonclient wants."""
        return self.http_url.removeprefix("http://")

    def address(self, carrier: str) -> str:
        """Return "host:port" of a carrier, "http" or "grpc"."""
        return self.http_address if carrier == "http" else self.grpc_address


class ServerDidNotStart(Exception):
    """A server ended early or did not become ready; the text ends with its last log lines."""


@contextmanager
def running(name: str, prepare: Prepare, folder: Path) -> Iterator[RunningServer]:
    """Start a server in an empty *folder*, yield it when it is ready, and stop it at the end.

    A port can be lost to another process between choosing and binding it, so a server that ends
    early is started once more, on other ports.

    Raises:
        ServerDidNotStart: It ended early twice, or was not ready within `READY_TIMEOUT_S`.
    """
    server = _start_retrying(name, prepare, folder)
    try:
        yield server
    finally:
        stop(server.process)


def stop(process: subprocess.Popen[bytes]) -> None:
    """End *process* with SIGTERM, or SIGKILL after `STOP_TIMEOUT_S`; harmless when it has ended."""
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(STOP_TIMEOUT_S)


def free_ports() -> Ports:
    """Return three loopback ports that were free a moment ago, all different."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(3)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return Ports(*(each.getsockname()[1] for each in sockets))


def _start_retrying(name: str, prepare: Prepare, folder: Path) -> RunningServer:
    for attempt in range(1, START_ATTEMPTS + 1):
        try:
            return start(name, prepare, folder / f"attempt-{attempt}", free_ports())
        except ServerDidNotStart:
            if attempt == START_ATTEMPTS:
                raise
    raise AssertionError("not reached")


def start(name: str, prepare: Prepare, folder: Path, ports: Ports) -> RunningServer:
    """Start a server on *ports* in *folder*, which must not exist, and wait until it is ready.

    Raises:
        ServerDidNotStart: It ended early, or was not ready within `READY_TIMEOUT_S`.
    """
    folder.mkdir(parents=True)
    command = prepare(folder, ports)
    log_path = folder / "server.log"
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            command.words,
            cwd=command.folder,
            env={**os.environ, **command.variables},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    server = RunningServer(
        name,
        f"http://127.0.0.1:{ports.http}",
        f"127.0.0.1:{ports.grpc}",
        f"http://127.0.0.1:{ports.metrics}/metrics",
        process,
        log_path,
    )
    try:
        _await_ready(server, command.ready_path)
    except BaseException:
        stop(process)
        raise
    return server


def _await_ready(server: RunningServer, path: str) -> None:
    deadline = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < deadline:
        if server.process.poll() is not None:
            raise ServerDidNotStart(
                f"{server.name} ended with {server.process.returncode}:\n{_log_end(server)}"
            )
        if _is_ready(server.http_url + path):
            return
        time.sleep(0.1)
    raise ServerDidNotStart(
        f"{server.name} was not ready within {READY_TIMEOUT_S} s:\n{_log_end(server)}"
    )


def _is_ready(url: str) -> bool:
    # A proxy named in the environment must not stand between the tests and the loopback.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with (
        contextlib.suppress(OSError, urllib.error.URLError),
        opener.open(url, timeout=2) as answer,
    ):
        return bool(answer.status == 200)
    return False


def _log_end(server: RunningServer) -> str:
    lines = server.log_path.read_text(errors="replace").splitlines()
    return "\n".join(lines[-LOG_LINES:])
