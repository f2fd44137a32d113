"""Installs packages that extend the gateway, and runs commands that find them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from shutil import copytree
from typing import Any

HERE = Path(__file__).parent
START_S = 60.0


def install_toy(site: Path) -> None:
    """Install the package of this folder, as `pip install --target` does."""
    project = tomllib.loads((HERE / "pyproject.toml").read_text("utf-8"))["project"]
    copytree(HERE / "gateway_toy", site / "gateway_toy")
    install(site, project["name"], project["entry-points"])


def install(site: Path, name: str, groups: Mapping[str, Mapping[str, str]]) -> None:
    """Write what an installer writes about a package with entry points."""
    folder = site / f"{name.replace('-', '_')}-1.0.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = []
    for group, entries in groups.items():
        lines += [f"[{group}]", *(f"{key} = {value}" for key, value in entries.items())]
    (folder / "entry_points.txt").write_text("\n".join(lines) + "\n")


@contextmanager
def importable(site: Path) -> Iterator[None]:
    """Let this process find what is installed, by entry points, until the end of the block."""
    sys.path.append(str(site))
    try:
        yield
    finally:
        sys.path.remove(str(site))


def environment(site: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(site)}


def gateway(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command of the gateway to its end."""
    return subprocess.run(
        [sys.executable, "-m", "gateway", *arguments],
        env=environment(site),
        capture_output=True,
        text=True,
        timeout=START_S,
        check=False,
    )


class Serving:
    """A gateway in a process of its own, with the lines of its log."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = self._process = process
        self._has_started = threading.Event()
        self.addresses: dict[str, Any] = {}
        self.log: list[dict[str, Any]] = []
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        for line in self._process.stderr or ():
            with self._changed:
                try:
                    self.log.append(json.loads(line))
                except json.JSONDecodeError:
                    self.log.append({"event": line})
                self._changed.notify_all()

    def wait_for(self, event: str, after: int = 0, **fields: object) -> dict[str, Any]:
        """Return the first line of an event with these fields, when it comes.

        Args:
            event: The name of the event.
            after: Lines of the log before it.
            fields: What the line has.
        """

        def find() -> dict[str, Any] | None:
            expected = {"event": event, **fields}
            return next((one for one in self.log[after:] if expected.items() <= one.items()), None)

        with self._changed:
            self._changed.wait_for(lambda: find() is not None, START_S)
            found = find()
        assert found is not None, self.log
        return found

    def reload(self) -> None:
        self._process.send_signal(signal.SIGHUP)

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(START_S)
        self._reader.join(START_S)


@contextmanager
def serving(site: Path, config: Path) -> Iterator[Serving]:
    """Run `gateway serve` until the end of the block."""
    with subprocess.Popen(
        [sys.executable, "-m", "gateway", "serve", str(config)],
        env=environment(site),
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        running = Serving(process)
        try:
            running.addresses = running.wait_for("started")
            yield running
        finally:
            running.close()
