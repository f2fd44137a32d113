"""A gateway that a service manager starts: sockets opened before it, readiness, reload and stop."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path

import pytest

from tests.interop.programs import program

WAIT_S = 60.0
UNITS = Path(__file__).parents[2] / "deploy" / "systemd"
LAUNCHER = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ.update(LISTEN_FDS="1", LISTEN_PID=str(os.getpid()), LISTEN_FDNAMES="main.http")
os.execv(sys.executable, [sys.executable, "-m", "gateway", *sys.argv[2:]])
"""


pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]  # apt-get may install systemd first


def config(folder: Path, port: int, workers: int = 1) -> str:
    path = folder / "gateway.yaml"
    path.write_text(
        f"version: 1\nworkers: {workers}\nlisteners: [{{http: '127.0.0.1:{port}'}}]\n"
        "admin: {address: 'off'}\nlifecycle: {pre_stop: 0s}\nupstreams: {m: {url: 'oip+grpc://127.0.0.1:9'}}\n"
    )
    return str(path)


@contextmanager
def running(command: list[str], notify: socket.socket, **options: object) -> Iterator[int]:
    environ = {**os.environ, "NOTIFY_SOCKET": str(notify.getsockname())}
    process = subprocess.Popen(command, env=environ, **options)  # type: ignore[call-overload]  # options of tests
    try:
        yield process.pid
        assert process.wait(WAIT_S) == 0
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


@pytest.fixture
def notify(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "notify"))
        sock.settimeout(WAIT_S)
        yield sock


def expect(notify: socket.socket, start: str) -> str:
    """Return the next message but those of the watchdog."""
    while (text := notify.recv(4096).decode()) == "WATCHDOG=1":
        pass
    assert text.startswith(start), text
    return text


def status_of(port: int, path: str = "/v2/health/live") -> int:
    with closing(HTTPConnection("127.0.0.1", port, timeout=WAIT_S)) as connection:
        connection.request("GET", path)
        return connection.getresponse().status


@pytest.mark.parametrize("workers", [1, 2])
def test_connections_made_before_the_start_are_served(
    tmp_path: Path, notify: socket.socket, workers: int
) -> None:
    """They wait in the inherited socket, whose address replaces that of the configuration."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        early = HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
        early.request("GET", "/v2/health/live")  # nobody accepts it yet
        number = listener.fileno()
        # Port 1 could not be bound: the socket is used instead.
        arguments = [str(number), "serve", config(tmp_path, 1, workers)]
        command = [sys.executable, "-c", LAUNCHER, *arguments]
        with running(command, notify, pass_fds=[number]) as pid:
            assert early.getresponse().status == 200
            early.close()
            assert f"main.http 127.0.0.1:{port}" in expect(notify, "READY=1")
            assert status_of(port) == 200
            os.kill(pid, signal.SIGHUP)
            expect(notify, "RELOADING=1\nMONOTONIC_USEC=")
            assert "applied" in expect(notify, "READY=1")
            os.kill(pid, signal.SIGTERM)
            expect(notify, "STOPPING=1")


def test_systemd_socket_activate_starts_it(tmp_path: Path, notify: socket.socket) -> None:
    """The first connection starts the gateway, and is served."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    command = [
        program("systemd-socket-activate"),
        "-l",
        f"127.0.0.1:{port}",
        "--fdname=gateway.socket",
    ]
    command += ["-E", f"NOTIFY_SOCKET={notify.getsockname()}"]
    command += [sys.executable, "-m", "gateway", "serve", config(tmp_path, port)]
    with running(command, notify, stderr=subprocess.DEVNULL) as pid:
        status = None
        for _ in range(400):
            try:
                status = status_of(port)
                break
            except ConnectionRefusedError:  # the tool does not listen yet
                signal.sigtimedwait([], 0.05)
        assert status == 200
        expect(notify, "READY=1")
        os.kill(pid, signal.SIGTERM)
        expect(notify, "STOPPING=1")


def test_the_units_of_systemd_are_valid_and_closed() -> None:
    """`verify` finds nothing, and the exposure is at most 1.5 of 10."""
    tool = program("systemd-analyze")
    units = [str(UNITS / f"gateway.{kind}") for kind in ("service", "socket")]
    done = subprocess.run([tool, "verify", *units], capture_output=True, text=True, check=False)
    assert (0, "") == (done.returncode, done.stderr)
    rating = subprocess.run(
        [tool, "security", "--offline=true", "--threshold=15", units[0]],
        capture_output=True,
        text=True,
        check=False,
    )
    assert rating.returncode == 0, rating.stdout[-300:]
