"""A gateway in a process of its own, and its view by the system: memory, descriptors, log."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
CONFIG = Path(__file__).with_name("config.yaml")
_START_S = 60.0
_STOP_S = 30.0
_CARRIERS = (".http", ".grpc", ".tcp", ".brpc")
_KIB = 1024


class Gateway:
    """A gateway as `python -m gateway serve` runs it.

    Attributes:
        log: Lines of standard error, each with the monotonic time at which it came.
        addresses: Where it listens, by name, as (host, port).
    """

    def __init__(self, *arguments: str) -> None:
        self.log: list[tuple[float, str]] = []
        self.addresses: dict[str, tuple[str, int]] = {}
        self._started = threading.Event()
        command = [sys.executable, "-m", "gateway", "serve", *arguments]
        self.process = subprocess.Popen(
            command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, cwd=ROOT
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def wait_started(self) -> None:
        """Wait until it listens."""
        assert self._started.wait(_START_S), "the gateway does not start"
        assert self.addresses, self.text()

    @property
    def http(self) -> tuple[str, int]:
        """Address of the HTTP listener with small limits."""
        return self.addresses["main.http"]

    def address(self, name: str) -> str:
        """Return an address as text, "host:port"."""
        host, port = self.addresses[name]
        return f"{host}:{port}"

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self.process.poll() is None

    def status(self, key: str) -> int:
        """Return a size of /proc/PID/status in bytes: "VmRSS" now, "VmHWM" at its highest."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            name, _, rest = line.partition(":")
            if name == key:
                return int(rest.split()[0]) * _KIB
        raise KeyError(key)

    def forget_peak(self) -> None:
        """Reset VmHWM."""
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")

    def descriptors(self) -> int:
        """Return how many descriptors it has open."""
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))  # noqa: PTH208  # names are enough

    def cpu_s(self) -> float:
        """Return the processor time it has used."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def text(self, start: int = 0) -> str:
        """Return its log from line *start* on."""
        return "".join(line for _, line in self.log[start:])

    def events(self, start: int = 0) -> list[tuple[float, dict[str, Any]]]:
        """Return what of its log is JSON from line *start* on, with the time of each."""
        found = [(when, _event(line)) for when, line in self.log[start:]]
        return [(when, event) for when, event in found if event]

    def close(self) -> None:
        """End it, if it has not ended."""
        if self.alive:
            self.process.kill()
        self.process.wait(_STOP_S)
        self._reader.join(_STOP_S)
        assert self.process.stderr is not None
        self.process.stderr.close()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for raw in self.process.stderr:
            line = raw.decode("utf-8", "backslashreplace")
            self.log.append((time.monotonic(), line))
            if not self.addresses and (event := _event(line)).get("event") == "started":
                self.addresses = {
                    key: _address(value)
                    for key, value in event.items()
                    if key in ("admin", "metrics") or key.endswith(_CARRIERS)
                }
                self._started.set()
        self._started.set()


@contextmanager
def running(*arguments: str) -> Iterator[Gateway]:
    """Run a gateway with *arguments* of `gateway serve`."""
    gateway = Gateway(*arguments)
    try:
        gateway.wait_started()
        yield gateway
    finally:
        gateway.close()


def eventually(condition: Callable[[], bool], within_s: float = 60.0) -> bool:
    """Wait for a condition without an event; return whether it was met."""
    end = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


def _event(line: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
