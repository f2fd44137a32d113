"""Child processes: their core, their CPU time, and their end."""

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

_CPUCLOCK_SCHED = 2  # of linux/posix-timers.h
_SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of linux/prctl.h
_READY_S = 60.0
_END_S = 10.0
LARGE_BUFFERS = {
    "MALLOC_MMAP_THRESHOLD_": "1073741824",
    "MALLOC_TRIM_THRESHOLD_": "2147483648",
    "MALLOC_TOP_PAD_": "67108864",
}
"""Keeps glibc from mapping each large buffer anew, which costs a page fault for every 4 KiB."""


def cores() -> tuple[int, int]:
    """Return the core for the system under test, and the one for load and canned servers."""
    allowed = sorted(os.sched_getaffinity(0))
    return allowed[0], allowed[-1]


@contextmanager
def child(
    words: Sequence[str],
    core: int,
    log: Path,
    *,
    variables: Mapping[str, str] | None = None,
    folder: Path | None = None,
    pipe: bool = False,
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program pinned to *core*, and end it with its children on exit.

    Args:
        words: Program and arguments.
        core: The only core that it may use.
        log: Gets standard error, and standard output unless *pipe*.
        variables: Added to the environment.
        folder: Working directory.
        pipe: Standard output can be read from the process.
    """
    with log.open("wb") as err:
        out: int | IO[bytes] = subprocess.PIPE if pipe else err
        process = subprocess.Popen(
            ["taskset", "-c", str(core), *words],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env={**os.environ, **(variables or {})},
            cwd=folder,
            preexec_fn=_end_with_parent,  # noqa: PLW1509  # there are no threads yet
        )
    try:
        yield process
    finally:
        family = _family(process.pid)
        process.terminate()
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for pid in family[1:]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)
        if process.stdout is not None:
            process.stdout.close()


def _end_with_parent() -> None:
    """Let the kernel end this process when the benchmark is killed."""
    ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGTERM)


def cpu_seconds(*pids: int) -> float:
    """Return the CPU time, user and system, of *pids*, their threads and children so far."""
    return sum(_own_seconds(each) for pid in pids for each in _family(pid))


def resident_bytes(pid: int) -> int:
    """Return the peak resident memory of *pid*."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def _own_seconds(pid: int) -> float:
    # The CPU clock of a process, in nanoseconds. /proc/PID/stat has hundredths of a second.
    with contextlib.suppress(OSError):
        return time.clock_gettime(~pid << 3 | _CPUCLOCK_SCHED)
    return 0.0


def _family(pid: int) -> list[int]:
    """Return *pid* and its descendants."""
    found = [pid]
    for each in found:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for task in Path(f"/proc/{each}/task").iterdir():
                found += [int(word) for word in (task / "children").read_text().split()]
    return found


def free_port() -> int:
    """Return a loopback port that was free a moment ago."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def wait_listening(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until a server accepts connections on *port*.

    Raises:
        RuntimeError: The process ended or was too slow. The text ends with its log.
    """
    deadline = time.monotonic() + _READY_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"it ended with {process.returncode}: {_tail(log)}")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.005)
    raise RuntimeError(f"nothing listens on port {port} after {_READY_S:g} s: {_tail(log)}")


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-1000:]
