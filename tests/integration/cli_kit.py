"""A gateway in a process of its own, run by its command line and stopped by signals."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any
from urllib.parse import urlsplit

from tests.integration import fork_server
from tests.integration.fork_server import ForkedProcess

START_S = 60.0


@dataclass
class Running:
    """A gateway in a process of its own.

    Attributes:
        addresses: Where it listens, by name, from its log.
        log: Lines of standard error so far.
    """

    process: ForkedProcess
    stderr: IO[str]
    addresses: dict[str, str] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)
    started: threading.Event = field(default_factory=threading.Event)

    def url(self, path: str, name: str = "main.http") -> str:
        """Return the URL of *path* on one of its listeners."""
        return f"http://{self.addresses[name]}{path}"

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal and return the exit status."""
        self.process.send_signal(number)
        return self.process.wait(START_S)

    def read(self) -> None:
        """Read its log to the end; runs on a thread."""
        for line in self.stderr:
            self.log.append(line)
            event = _event(line)
            if event.get("event") == "started":
                self.addresses = {
                    key: value for key, value in event.items() if str(value).count(":") == 1
                }
                self.started.set()
        self.started.set()


@contextmanager
def serving(
    *arguments: str, patience_s: float = START_S, folder: Path | None = None
) -> Iterator[Running]:
    """Run `gateway serve` with *arguments* in *folder* and wait until it listens, for so long at most."""
    stderr, writer = os.pipe()
    with open(os.devnull, "wb") as nothing:  # noqa: PTH123  # no path
        process = fork_server.start(["serve", *arguments], nothing.fileno(), writer, folder)
    os.close(writer)
    with started(Running(process, os.fdopen(stderr)), patience_s) as running:
        yield running


@contextmanager
def started(running: Running, patience_s: float = START_S) -> Iterator[Running]:
    """Read the log of a gateway, wait until it listens, and end it at last."""
    process = running.process
    reader = threading.Thread(target=running.read)
    reader.start()
    try:
        assert running.started.wait(patience_s), "it does not start"
        assert running.addresses, "".join(running.log)
        yield running
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(START_S)
        reader.join(START_S)
        running.stderr.close()


def gateway(
    *arguments: str, folder: Path | None = None, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command in *folder* to its end, with these variables alone if *environment* is given."""
    with TemporaryFile("w+") as stdout, TemporaryFile("w+") as stderr:
        process = fork_server.start(
            arguments, stdout.fileno(), stderr.fileno(), folder, environment
        )
        status = process.wait(60)
        for file in (stdout, stderr):
            file.seek(0)
        return subprocess.CompletedProcess(arguments, status, stdout.read(), stderr.read())


def free_port() -> int:
    """Return a loopback port that was free a moment ago, for a program that is told its port."""
    with closing(socket.socket()) as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def get(url: str, body: dict[str, Any] | None = None) -> tuple[int, Any]:
    """Send one HTTP request and return status and JSON (None for an empty body)."""
    parts = urlsplit(url)
    with closing(HTTPConnection(parts.netloc, timeout=60)) as connection:
        if body is None:
            connection.request("GET", parts.path)
        else:
            connection.request("POST", parts.path, json.dumps(body))
        response = connection.getresponse()
        data = response.read()
        return response.status, json.loads(data) if data else None


def _event(line: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except json.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) else {}
