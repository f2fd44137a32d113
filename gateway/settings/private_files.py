"""Directories and files that only the user of the gateway can read, whatever the umask is."""

import os
from pathlib import Path
from typing import Final

DIRECTORY_MODE: Final = 0o700
FILE_MODE: Final = 0o600


def make_directory(directory: Path) -> None:
    """Create *directory* for this user only, and each missing directory above it.

    Directories that exist keep their modes.

    Raises:
        OSError: It cannot be created.
    """
    for each in (*reversed(directory.parents), directory):
        # With `parents`, `mkdir` would create those above it with the modes of the umask.
        if not each.is_dir():
            each.mkdir(DIRECTORY_MODE, exist_ok=True)


def write_private(path: Path, body: bytes) -> None:
    """Write a file that nobody else can read at any time.

    Raises:
        OSError: It cannot be written.
    """
    with open(path, "wb", opener=private_opener) as file:
        file.write(body)


def replace_private(path: Path, body: bytes) -> None:
    """Replace a file as a whole; missing directories are created for this user only.

    Raises:
        OSError: It cannot be written. The previous file stays.
    """
    make_directory(path.parent)
    aside = path.with_suffix(".new")
    write_private(aside, body)
    aside.replace(path)


def private_opener(path: str, flags: int) -> int:
    """Open a file as `open` does, but create it for this user only."""
    return os.open(path, flags | os.O_CLOEXEC, FILE_MODE)
