"""Running the real clients, which live in an environment of their own (protobuf clashes).

A script prints its results as one JSON document on its standard output; everything else it prints
goes to standard error and is shown when it fails.
"""

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SCRIPTS = Path(__file__).parent / "scripts"

SCRIPT_TIMEOUT_S = 120.0


class ScriptFailed(Exception):
    """A client script ended badly, took too long, or printed no JSON."""


@dataclass(frozen=True)
class Client:
    """The clients' environment, in the folder *venv*."""

    venv: Path

    def run(self, script: Path | str, *args: str, timeout_s: float = SCRIPT_TIMEOUT_S) -> Any:
        """Run *script* with *args* and return the JSON document that it printed.

        Args:
            script: A file, or the text of a program.
            args: What it finds in `sys.argv[1:]`.
            timeout_s: How long it may take before it is killed.

        Raises:
            ScriptFailed: It ended with another status than 0, took longer than *timeout_s*, or
                printed something else than one JSON document.
        """
        words = ["-P", str(script)] if isinstance(script, Path) else ["-c", script]
        try:
            done = subprocess.run(
                [str(self.venv / "bin" / "python"), *words, *args],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
                check=False,
                capture_output=True,
                text=True,
                timeout=timeout_s,
            )
        except subprocess.TimeoutExpired as error:
            raise ScriptFailed(
                f"{script} took more than {timeout_s} s: {error.stderr!r}"
            ) from error
        if done.returncode != 0:
            raise ScriptFailed(f"{script} ended with {done.returncode}:\n{done.stderr[-4000:]}")
        try:
            return json.loads(done.stdout)
        except json.JSONDecodeError as error:
            raise ScriptFailed(f"{script} printed no JSON: {done.stdout[:1000]!r}") from error

    def checks(self, script: str, address: str, *names: str) -> Mapping[str, list[Any]]:
        """Run the checks *names*, or all, of a script of `scripts/` against a server.

        Args:
            script: `tritonclient_http`, `tritonclient_grpc`, `tritonclient_aio_http` or
                `tritonclient_aio_grpc`.
            address: `HOST:PORT`, without a scheme.
            names: Names of checks in `scripts/checks.py`.

        Returns:
            What the client saw, by check: one item a step.
        """
        file, *options = SCRIPT_WORDS[script]
        selection = ["--checks", ",".join(names)] if names else []
        seen: Mapping[str, list[Any]] = self.run(
            SCRIPTS / file, "--url", address, *options, *selection
        )
        return seen


SCRIPT_WORDS: Mapping[str, tuple[str, ...]] = {
    "tritonclient_http": ("tritonclient_http.py",),
    "tritonclient_grpc": ("tritonclient_grpc.py",),
    "tritonclient_aio_http": ("tritonclient_aio.py", "--transport", "http"),
    "tritonclient_aio_grpc": ("tritonclient_aio.py", "--transport", "grpc"),
}
