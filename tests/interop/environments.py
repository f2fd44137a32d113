"""Virtual environments for the real servers and clients, made once and shared by every run.

They lie under `$SERVERS_CACHE`, or `~/.cache/test-servers`.  A marker file says that one is
complete; a file lock keeps pytest-xdist's workers from making the same one at a time.
"""

import fcntl
import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.interop.requirements import REQUIREMENTS, WITHOUT_DEPENDENCIES

INSTALL_TIMEOUT_S = 600.0
"""How long pip may take for one environment (10 to 60 s is usual)."""


class InstallFailed(Exception):
    """An environment could not be made; the text ends with what pip said."""


def cache_folder() -> Path:
    """Return the folder that holds the environments; it exists."""
    folder = Path(os.environ.get("SERVERS_CACHE") or Path.home() / ".cache" / "test-servers")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def environment(name: str) -> Path:
    """Return the folder of environment *name*, which is made if it is absent or out of date.

    Args:
        name: A key of `REQUIREMENTS`.

    Raises:
        InstallFailed: pip failed, or took longer than `INSTALL_TIMEOUT_S`.
    """
    requirements = REQUIREMENTS[name]
    alone = WITHOUT_DEPENDENCIES.get(name, ())
    folder = cache_folder() / name
    digest = hashlib.sha256("\n".join((*requirements, *alone)).encode()).hexdigest()[:12]
    marker = folder / f".ready-{digest}"
    with exclusive(cache_folder() / f"{name}.lock"):
        if not marker.exists():
            _run([sys.executable, "-m", "venv", str(folder)])
            _run([str(folder / "bin" / "pip"), "install", "--quiet", *requirements])
            if alone:
                _run([str(folder / "bin" / "pip"), "install", "--quiet", "--no-deps", *alone])
            marker.touch()
            # The plain name is what other scripts on this machine look for.
            (folder / ".ready").touch()
    return folder


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold the lock file *path*, waiting for whoever holds it."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S
        )
    except subprocess.TimeoutExpired as error:
        raise InstallFailed(f"{command} took more than {INSTALL_TIMEOUT_S} s") from error
    if done.returncode != 0:
        raise InstallFailed(f"{command} ended with {done.returncode}:\n{done.stderr[-2000:]}")
