"""Processes that run the command `gateway` without the second that its imports take.

A server imports the gateway once and forks for each command. The command is a process of its own, with
its own output, signals and exit status. Worker processes of a gateway are not forked: they import.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from gateway.app import check
from gateway.cli import main
from gateway.config.load import load_text

_MODULES = (
    "gateway.cli.commands",
    "gateway.app",
    "gateway.app.check.check",
    "gateway.cli.demo",
    "gateway.backends.python",
)
# A listener without `protocols` serves all of them: its check imports what most gateways need.
_CONFIG = """version: 1
listeners: [{http: "127.0.0.1:0", grpc: "127.0.0.1:0"}]
models: {simple: {backend: python, options: {callable: "gateway.backends.examples:simple"}}}
"""
_MESSAGE_BYTES = 1 << 16
_FDS = 3  # standard output, standard error, and where the exit status goes


class ForkedProcess:
    """A forked process, with the methods of subprocess.Popen that tests need.

    Args:
        pid: Its process id.
        status: Read end of the pipe that receives its exit status.
    """

    def __init__(self, pid: int, status: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._status = status

    def poll(self) -> int | None:
        """Return the exit status, negative for a signal, or None while it runs."""
        return self._read(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit status.

        Raises:
            subprocess.TimeoutExpired: It still runs after *timeout* seconds.
        """
        found = self._read(timeout)
        if found is None:
            raise subprocess.TimeoutExpired("gateway", timeout or 0.0)
        return found

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def _read(self, timeout: float | None) -> int | None:
        if self.returncode is not None:
            return self.returncode
        if not select.select([self._status], [], [], timeout)[0]:
            return None
        self.returncode = int(os.read(self._status, 16))
        os.close(self._status)
        return self.returncode


def start(
    arguments: Sequence[str], stdout: int, stderr: int, folder: Path | None = None
) -> ForkedProcess:
    """Run `gateway` with *arguments*, with these file descriptors for its output.

    *folder* is its working directory, that of this process by default.
    """
    message = json.dumps([str(folder or Path.cwd()), *arguments]).encode()
    reader, writer = os.pipe()
    server = _server()
    try:
        socket.send_fds(server, [message], [stdout, stderr, writer])
    finally:
        os.close(writer)
    return ForkedProcess(int(server.recv(16)), reader)


@functools.cache
def _server() -> socket.socket:
    """Start the server of this process; it ends with this process."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
        )
    atexit.register(process.wait)
    atexit.register(ours.close)
    return ours


def _serve(line: socket.socket) -> None:
    """Run a command for each message on *line*, until the other end is closed."""
    for name in _MODULES:
        importlib.import_module(name)
    assert [] == check(load_text(_CONFIG))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        message, fds, _, _ = socket.recv_fds(line, _MESSAGE_BYTES, _FDS)
        if not message:
            return
        if not os.fork():
            _watch(line, json.loads(message), *fds)
        for each in fds:
            os.close(each)


def _watch(
    line: socket.socket, words: list[str], stdout: int, stderr: int, status: int
) -> NoReturn:
    """Run the command in a child, report its process id, then its exit status."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if not pid:
        line.close()
        os.close(status)
        _run(words, stdout, stderr)
    line.send(str(pid).encode())
    for each in (line.detach(), stdout, stderr):
        os.close(each)
    _, wait_status = os.waitpid(pid, 0)
    os.write(status, str(os.waitstatus_to_exitcode(wait_status)).encode())
    os._exit(0)


def _run(words: list[str], stdout: int, stderr: int) -> NoReturn:
    folder, *arguments = words
    os.chdir(folder)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.dup2(stdout, 1)
    os.dup2(stderr, 2)
    os.close(stdout)
    os.close(stderr)
    sys.argv = ["gateway", *arguments]
    main()
    sys.exit()


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
