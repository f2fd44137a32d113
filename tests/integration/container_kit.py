"""Probes of a container that a platform starts: `gateway serve` with the environment alone."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any, Protocol

from tests.integration.workers_kit import eventually


class Probed(Protocol):
    """A started container."""

    process: subprocess.Popen[bytes]

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
