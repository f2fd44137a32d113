"""A gateway whose log nobody reads, or cannot be written: calls, probes and the stop go on."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path

import pytest

from tests.integration import fork_server
from tests.integration import workers_kit as kit
from tests.integration.cli_kit import get
from tests.integration.fork_server import ForkedProcess

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

CONFIG = """
version: 1
workers: {workers}
listeners: [{{http: "127.0.0.1:{http}"}}]
admin: {{address: "127.0.0.1:{admin}", metrics: null}}
models:
  simple: {{backend: python, options: {{callable: "gateway.backends.examples:simple"}}}}
telemetry: {{log: {{calls_per_second: 100000, access: {{path: {access}}}}}}}
lifecycle: {{pre_stop: 0s, drain: 5s}}
"""
CALLS = 300
_PIPE_BYTES = 4096
_LOST = re.compile(r'^gateway_log_lines_lost_total\{output="stderr",.*\} (\S+)$', re.MULTILINE)


@dataclass
class Unheard:
    """A gateway whose log is not read.

    Attributes:
        reader: The end of the pipe that is its log, if it is one.
    """

    process: ForkedProcess
    http: str
    admin: str
    reader: int

    def lost(self) -> float:
        """Return the number of lost lines."""
        with closing(HTTPConnection(self.admin, timeout=kit.PATIENCE_S)) as connection:
            connection.request("GET", "/metrics")
            page = connection.getresponse().read().decode()
        return sum(float(count) for count in _LOST.findall(page))


def ports(count: int) -> list[int]:
    """Return ports that were free a moment ago."""
    with ExitStack() as opened:
        sockets = [
            opened.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)
        ]
        return [each.getsockname()[1] for each in sockets]


@contextmanager
def unheard(folder: Path, log: str, workers: int = 1, access: str = "a.log") -> Iterator[Unheard]:
    """Run a gateway with that log: "pipe", or the path of a device."""
    http, admin = ports(2)
    path = folder / "gateway.yaml"
    path.write_text(CONFIG.format(workers=workers, http=http, admin=admin, access=access))
    reader = -1
    if log == "pipe":
        reader, writer = os.pipe()
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    else:
        writer = os.open(log, os.O_WRONLY)
    nothing = os.open(os.devnull, os.O_WRONLY)
    process = fork_server.start(["serve", str(path)], nothing, writer)
    for each in (writer, nothing):
        os.close(each)
    running = Unheard(process, f"127.0.0.1:{http}", f"127.0.0.1:{admin}", reader)
    try:
        kit.eventually(lambda: answers(running.admin))
        yield running
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(kit.PATIENCE_S)
        if running.reader >= 0:
            os.close(running.reader)


def answers(admin: str) -> bool:
    """Return whether a gateway listens and is ready."""
    try:
        return get(f"http://{admin}/readyz")[0] == 200
    except OSError:
        return False


def statuses(running: Unheard) -> set[int]:
    """Send more calls than a pipe of one page has lines; return the statuses."""
    with closing(HTTPConnection(running.http, timeout=kit.PATIENCE_S)) as connection:
        return {kit.ask(connection) for _ in range(CALLS)}


@pytest.mark.parametrize("workers", [1, 2])
def test_unread_log_delays_no_call(tmp_path: Path, workers: int) -> None:
    """A full pipe stops no call, no probe and no SIGTERM."""
    with unheard(tmp_path, "pipe", workers) as running:
        assert {200} == statuses(running)
        assert (200, {"live": True}) == get(f"http://{running.admin}/livez")
        running.process.send_signal(signal.SIGTERM)
        assert 0 == running.process.wait(kit.PATIENCE_S)


def test_log_without_a_reader_fails_no_call(tmp_path: Path) -> None:
    """A broken pipe loses the lines and nothing else; they are counted."""
    with unheard(tmp_path, "pipe") as running:
        os.close(running.reader)
        running.reader = -1
        assert {200} == statuses(running)
        kit.eventually(lambda: running.lost() >= CALLS)


def test_log_on_a_full_disk_fails_no_call(tmp_path: Path) -> None:
    """A disk without room loses the lines of both logs; they are counted, and the status warns."""
    with unheard(tmp_path, "/dev/full", access="/dev/full") as running:
        assert {200} == statuses(running)
        kit.eventually(lambda: running.lost() >= CALLS)
        _, status = get(f"http://{running.admin}/status")
        events = [entry["event"] for entry in status["warnings"]]
        assert {"lines of the log are missing", "access log not written"} <= set(events)


def test_unread_access_log_delays_no_call(tmp_path: Path) -> None:
    """A FIFO without a reader, and one whose reader rests, stop no call and no SIGTERM."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with unheard(tmp_path, os.devnull, access=str(fifo)) as running:
        assert {200} == statuses(running)
        reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
        fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        assert {200} == statuses(running)
        running.process.send_signal(signal.SIGTERM)
        assert 0 == running.process.wait(kit.PATIENCE_S)
        os.close(reader)


@pytest.mark.parametrize("workers", [1, 2])
def test_closed_standard_error_is_no_log(tmp_path: Path, workers: int) -> None:
    """A gateway without standard error serves; no connection gets its place and what is printed."""
    http, admin = ports(2)
    path = tmp_path / "gateway.yaml"
    path.write_text(CONFIG.format(workers=workers, http=http, admin=admin, access="a.log"))
    command = f"exec {sys.executable} -m gateway serve {path} >&- 2>&-"
    with subprocess.Popen(["/bin/sh", "-c", command], stdout=subprocess.DEVNULL) as process:
        try:
            kit.eventually(lambda: process.poll() is not None or answers(f"127.0.0.1:{admin}"))
            of_process = Path(f"/proc/{process.pid}")
            children = (of_process / f"task/{process.pid}/children").read_text().split()
            folders = [of_process / "fd", *(Path(f"/proc/{each}/fd") for each in children)]
            assert (1 if workers == 1 else 1 + workers) == len(folders)
            for number in ("1", "2"):
                assert {"/dev/null"} == {str((each / number).readlink()) for each in folders}
            process.terminate()
            assert 0 == process.wait(kit.PATIENCE_S)
        finally:
            process.kill()
