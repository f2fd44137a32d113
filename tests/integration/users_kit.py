"""A gateway of another user than the tests, as a service and an image have one; only root starts it."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.integration.cli_kit import Running, started

USER = 10_001
ROOT = 0

# The interpreter may be in a folder that other users cannot enter: they see that folder with it alone.
_OPEN_INTERPRETER = """set -e
folder=$1 closed=$2 spare=$3 user=$4; shift 4
if [ -n "$closed" ]; then
  mount --bind "$folder" "$spare"
  mount -t tmpfs -o mode=755 none "$closed"
  mkdir -p "$folder"
  mount --bind "$spare" "$folder"
fi
exec setpriv --reuid "$user" --regid "$user" --clear-groups "$@"
"""


def as_user(user: int, spare: Path, *words: str) -> list[str]:
    """Return the command line of a gateway's command that runs as another user.

    Args:
        user: The number of the user and of its group.
        spare: An empty folder.
        words: The command.
    """
    home = Path(sys.base_prefix).resolve()
    closed = [each for each in home.parents if not each.stat().st_mode & stat.S_IXOTH]
    script = ["unshare", "--mount", "sh", "-c", _OPEN_INTERPRETER, "sh"]
    where = [str(home), str(closed[-1]) if closed else "", str(spare), str(user)]
    return [*script, *where, sys.executable, "-m", "gateway", *words]


def environment() -> dict[str, str]:
    return {**os.environ, "HOME": "/", "PYTHONPATH": str(Path(__file__).parents[2])}


@contextmanager
def serving_as(user: int, folder: Path) -> Iterator[Running]:
    """Run a gateway of *folder* as another user."""
    (folder / "spare").mkdir()
    reader, writer = os.pipe()
    process = subprocess.Popen(
        as_user(user, folder / "spare", "serve", str(folder / "gateway.yaml")),
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=writer,
        env=environment(),
    )
    os.close(writer)
    with started(Running(process, os.fdopen(reader))) as running:  # type: ignore[arg-type]  # alike
        yield running
