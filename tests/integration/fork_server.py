"""Processes of the gateway without the second that the imports of each take.

A server imports the gateway once and forks for each process: for each command `gateway`, and for each
worker and shadow process that a gateway launches. Each is a process of its own, with its own output,
signals and exit status. Tests of a start from nothing replace the fixture `forked_processes`.
"""

from __future__ import annotations

import asyncio
import atexit
import dataclasses
import fcntl
import functools
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

from gateway.app import check
from gateway.config.load import load_text
from gateway.registry import EXTENSIONS

_COMMAND: Final = "gateway.cli"
_LAUNCHED: Final = (
    "gateway.app.workers.worker",
    *(["gateway.shadow.process"] if "migration" in EXTENSIONS else ()),
)
_MODULES: Final = (
    _COMMAND,
    *_LAUNCHED,
    "gateway.cli.commands",
    "gateway.app",
    "gateway.app.check.check",
    "gateway.cli.demo",
    "gateway.backends.python",
    "gateway.cli.calling.client",
    "gateway.cli.calling.readiness",
    "gateway.cli.serving.run",
    "gateway.cli.serving.serve",
    "gateway.cli.status",
    "encodings.idna",
    "uvloop",
    *(
        ("gateway.migration.commands.replay", "gateway.migration.mirror.shadow_part")
        if "migration" in EXTENSIONS
        else ()
    ),
)
# A listener without `protocols` serves all of them: its check imports what most gateways need.
_CONFIG = """version: 1
listeners: [{http: "127.0.0.1:0", grpc: "127.0.0.1:0"}]
models: {simple: {backend: python, options: {callable: "gateway.backends.examples:simple"}}}
"""
_MESSAGE_BYTES: Final = 1 << 16
_FDS: Final = (
    250  # standard output, standard error, where the exit status goes, and what is inherited
)
_BEYOND: Final = 700  # above the numbers of what is inherited
_ENVIRONMENT: Final = dict(os.environ)
_OF_IMPORTS: Final = ("GATEWAY_", "GRPC_", "LD_", "PROTOCOL_BUFFERS_", "PYTHON")
_launch_anew = asyncio.create_subprocess_exec


class ForkedProcess:
    """A forked process, with the methods of subprocess.Popen that tests need.

    Attributes:
        pid: Its process id.
        status: Read end of the pipe that receives its exit status; closed once it is read.
        returncode: The exit status once it is read.
    """

    def __init__(self, pid: int, status: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.status = status

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
        if not select.select([self.status], [], [], timeout)[0]:
            return None
        self.returncode = int(os.read(self.status, 16))
        os.close(self.status)
        return self.returncode


class LaunchedProcess:
    """A forked process, with what a gateway needs of asyncio.subprocess.Process."""

    def __init__(self, process: ForkedProcess) -> None:
        self.pid = process.pid
        self._process = process

    async def wait(self) -> int:
        """Wait for the end and return the exit status."""
        if self._process.returncode is None:
            loop, ended = asyncio.get_running_loop(), asyncio.Event()
            status = os.dup(self._process.status)  # several may wait
            loop.add_reader(status, ended.set)
            try:
                await ended.wait()
            finally:
                loop.remove_reader(status)
                os.close(status)
        return self._process.wait()

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal, unless it has ended."""
        self._process.send_signal(number)


@dataclass(frozen=True, slots=True)
class _Start:
    """What a process is forked for.

    Attributes:
        module: Its main module.
        arguments: The words behind it.
        folder: Its working directory.
        path: Where it imports from.
        inherits: The numbers of its file descriptors behind the standard ones.
        environment: Its environment, else that of the server.
        forks: Whether the processes that it launches are forked, too.
    """

    module: str
    arguments: Sequence[str]
    folder: str
    path: Sequence[str]
    inherits: Sequence[int] = ()
    environment: Mapping[str, str] | None = None
    forks: bool = True


class _Line:
    """A connection to the server."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def fork(self, start: _Start, stdout: int, stderr: int) -> ForkedProcess:
        """Start a process with these file descriptors for its output."""
        message = json.dumps(dataclasses.asdict(start)).encode()
        reader, writer = os.pipe()
        try:
            socket.send_fds(self._sock, [message], [stdout, stderr, writer, *start.inherits])
        finally:
            os.close(writer)
        return ForkedProcess(int(self._sock.recv(16)), reader)

    async def launch(self, *words: Any, **options: Any) -> Any:
        """Do what `asyncio.create_subprocess_exec` does, by a fork if a gateway launches a process.

        With other variables that modules read when they are imported, it starts anew.
        """
        if words[:3] != (sys.executable, "-P", "-m") or words[3] not in _LAUNCHED:
            return await _launch_anew(*words, **options)
        environment = dict(options["env"])
        path = environment.pop("PYTHONPATH").split(os.pathsep)
        if _of_imports(environment) != _of_imports(_ENVIRONMENT):
            return await _launch_anew(*words, **options)
        start = _Start(words[3], words[4:], str(Path.cwd()), path, options["pass_fds"], environment)
        return LaunchedProcess(self.fork(start, 1, 2))


def _of_imports(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that modules read when they are imported."""
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(_OF_IMPORTS) and name != "PYTHONPATH"
    }


def start(
    arguments: Sequence[str],
    stdout: int,
    stderr: int,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> ForkedProcess:
    """Run `gateway` with *arguments*, with these file descriptors for its output.

    Args:
        arguments: The words of its command line.
        stdout: Its standard output.
        stderr: Its standard error.
        folder: Its working directory, that of this process by default.
        environment: All of its variables, else those that this process started with. It imports from
            the one folder of PYTHONPATH too.
    """
    forks = asyncio.create_subprocess_exec is not _launch_anew
    path = list(sys.path)
    if environment is not None and "PYTHONPATH" in environment:
        path.append(environment["PYTHONPATH"])
    words = _Start(
        _COMMAND, arguments, str(folder or Path.cwd()), path, environment=environment, forks=forks
    )
    return _line().fork(words, stdout, stderr)


@contextmanager
def forking() -> Iterator[None]:
    """Fork the processes that gateways launch, those of this process and of its commands."""

    async def launch(*words: Any, **options: Any) -> Any:
        return await _line().launch(*words, **options)

    asyncio.create_subprocess_exec = launch
    try:
        yield
    finally:
        asyncio.create_subprocess_exec = _launch_anew


@functools.cache
def _line() -> _Line:
    """Start the server of this process; it ends with this process."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            env=_ENVIRONMENT,
        )
    atexit.register(process.wait)
    atexit.register(ours.close)
    return _Line(ours)


def _serve(first: socket.socket) -> None:
    """Fork for each message, until the other end of *first* is closed.

    Forked gateways connect to a socket without a name in the file system.
    """
    for name in _MODULES:
        importlib.import_module(name)
    assert [] == check(load_text(_CONFIG))
    # Else each process that ends walks through all that was imported, which copies it: 0.25 s of a core.
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind("")
    listener.listen()
    sockets = [first, listener]
    while True:
        for sock in select.select(sockets, [], [])[0]:
            if sock is listener:
                sockets.append(listener.accept()[0])
                continue
            message, fds, _, _ = socket.recv_fds(sock, _MESSAGE_BYTES, _FDS)
            if message and not os.fork():
                _watch(sock, _Start(**json.loads(message)), fds, sockets)
            for each in fds:
                os.close(each)
            if not message:
                sockets.remove(sock)
                sock.close()
            if sock is first and not message:
                return


def _watch(
    line: socket.socket, start: _Start, fds: list[int], sockets: list[socket.socket]
) -> NoReturn:
    """Run the process in a child, report its process id, then its exit status."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if not pid:
        _run(start, fds, sockets)
    line.send(str(pid).encode())
    stdout, stderr, status, *inherited = fds
    for each in (stdout, stderr, *inherited):
        os.close(each)
    for sock in sockets:
        sock.close()
    _, wait_status = os.waitpid(pid, 0)
    os.write(status, str(os.waitstatus_to_exitcode(wait_status)).encode())
    os._exit(0)


def _run(start: _Start, fds: list[int], sockets: list[socket.socket]) -> NoReturn:
    _, listener, *_ = sockets
    address = listener.getsockname()
    stdout, stderr, _, *inherited = fds
    os.dup2(stdout, 1)
    os.dup2(stderr, 2)
    kept = [fcntl.fcntl(each, fcntl.F_DUPFD, _BEYOND) for each in inherited]
    for each in fds:
        os.close(each)
    for sock in sockets:
        sock.close()
    for number, each in zip(start.inherits, kept, strict=True):
        os.dup2(each, number)
        os.close(each)
    if start.environment is not None:
        os.environ.clear()
        os.environ.update(start.environment)
    os.chdir(start.folder)
    sys.path[:] = start.path
    sys.argv = [start.module, *start.arguments]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if start.module in _LAUNCHED:
        os.setsid()
    elif start.forks:
        line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        line.connect(address)
        asyncio.create_subprocess_exec = _Line(line).launch
    _exit(importlib.import_module(start.module).main)


def _exit(main: Callable[[], int | None]) -> NoReturn:
    """Run *main* and end as multiprocessing's processes do, without freeing each object: 50 ms."""
    try:
        status = main()
    except SystemExit as ended:
        if not isinstance(ended.code, int | None):
            raise
        status = ended.code
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads, as Python's own end
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        sys.exit(status)
    os._exit(status or 0)


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
