"""A container of an image that buildah has built: as its user, on a read-only file system, in little memory.

It runs as runc starts it: with the image's entry point and environment, and without capabilities.
It shares the network of this machine.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tests.interop.programs import program

MEMORY_BYTES = 256 << 20
WAIT_S = 120.0
_CAPABILITIES = ("bounding", "effective", "inheritable", "permitted", "ambient")
_MOUNTS = [
    {"destination": "/proc", "type": "proc", "source": "proc"},
    {
        "destination": "/dev",
        "type": "tmpfs",
        "source": "tmpfs",
        "options": ["nosuid", "strictatime", "mode=755", "size=65536k"],
    },
]
_numbers = itertools.count()


class Container:
    """An image, unpacked, and how it is started.

    Args:
        config: User, environment and commands of the image.
        root: Its files.
        folder: For the settings of each start.
    """

    def __init__(self, config: dict[str, Any], root: Path, folder: Path) -> None:
        self.config = config
        self.root = root
        self._folder = folder

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the entry point with *arguments* to its end."""
        with self.started(*arguments) as running:
            out, err = running.process.communicate(timeout=WAIT_S)
            return subprocess.CompletedProcess(arguments, running.process.returncode, out, err)

    @contextmanager
    def started(
        self,
        *arguments: str,
        entry: Sequence[str] | None = None,
        variables: Mapping[str, str] = MappingProxyType({}),
        folders: Mapping[str, Path] = MappingProxyType({}),
    ) -> Iterator[Started]:
        """Start the entry point, or another command, and end it at last.

        Args:
            arguments: Those of the command.
            entry: The command; None for the entry point.
            variables: Those of the environment beside the image's own.
            folders: What is mounted, by the path in the container.
        """
        name = f"tensor-gateway-{os.getpid()}-{next(_numbers)}"
        bundle = self._folder / name
        bundle.mkdir()
        command = [*(self.config["Entrypoint"] if entry is None else entry), *arguments]
        settings = self._settings(name, command)
        settings["process"]["env"] += [f"{key}={value}" for key, value in variables.items()]
        settings["mounts"] += [
            {"destination": path, "type": "bind", "source": str(folder), "options": ["bind", "ro"]}
            for path, folder in folders.items()
        ]
        (bundle / "config.json").write_text(json.dumps(settings))
        process = subprocess.Popen(
            [program("runc"), "run", "--bundle", str(bundle), name],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            yield Started(name, process)
        finally:
            if process.poll() is None:
                subprocess.run([program("runc"), "delete", "--force", name], check=False)
            process.communicate(timeout=WAIT_S)

    def _settings(self, name: str, command: list[str]) -> dict[str, Any]:
        """Return what an engine would pass to runc for `--read-only --memory 256m --cap-drop all`."""
        spaces = ("pid", "mount", "ipc", "uts")
        return {
            "ociVersion": "1.0.2",
            "process": {
                "user": {"uid": int(self.config["User"]), "gid": 0},
                "args": command,
                "env": [*self.config["Env"]],
                "cwd": "/",
                "noNewPrivileges": True,
                "capabilities": {each: [] for each in _CAPABILITIES},
            },
            "root": {"path": str(self.root), "readonly": True},
            "mounts": [*_MOUNTS],
            "linux": {
                "cgroupsPath": f"/{name}",
                "resources": {"memory": {"limit": MEMORY_BYTES}},
                "namespaces": [{"type": each} for each in spaces],
            },
        }


def listening(process: subprocess.Popen[str]) -> dict[str, str]:
    """Return the addresses in the log of a gateway that starts, by server."""
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if '"started"' in line:
            found: dict[str, str] = json.loads(line)
            return found
    raise AssertionError("".join(lines))


class Started:
    """A container that runs.

    Args:
        name: What runc calls it.
        process: runc itself, whose status is that of the container.
    """

    def __init__(self, name: str, process: subprocess.Popen[str]) -> None:
        self.name = name
        self.process = process

    def execute(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a further command in the container, as a health check is run."""
        return subprocess.run(
            [program("runc"), "exec", self.name, *command],
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        )

    def signal(self, name: str) -> None:
        """Send a signal to process 1."""
        subprocess.run([program("runc"), "kill", self.name, name], check=True)
