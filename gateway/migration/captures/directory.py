"""The files of a capture: names of segments, and the manifest with their checksums.

`MANIFEST.jsonl` has a line for each sealed segment. Each line has the hash of the line before it.
"""

import fcntl
import hashlib
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

MANIFEST: Final = "MANIFEST.jsonl"
SEALED: Final = ".capture"
OPEN: Final = ".capture.open"
LOCK: Final = ".capture.lock"
UPSTREAM: Final = "upstream "
"""What a segment of a gateway notes the addresses of an upstream under, before its name."""
PERCENT: Final = "percent"
"""What a segment of a gateway notes the share of the recorded calls under."""
_BLOCK: Final = 1 << 20
_DRAWS: Final = 16


def new_segment(directory: Path) -> Path:
    """Return the path of a new open segment: its time, and four random characters.

    The first one is a letter, so that no id of a call looks like a number, a range or a date. Other
    segments of the directory have other characters, unless there are very many.
    """
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%f")
    tags = {tag_of(each) for each in (*sealed_segments(directory), *open_segments(directory))}
    drawn = [f"{secrets.choice('abcdef')}{secrets.token_hex(2)[1:]}" for _ in range(_DRAWS)]
    tag = next((each for each in drawn if each not in tags), drawn[0])
    return directory / f"{stamp}-{tag}{OPEN}"


def tag_of(segment: Path) -> str:
    """Return the characters by which ids of calls name their segment."""
    return segment.name.partition(SEALED)[0].rpartition("-")[2]


def sealed_segments(directory: Path) -> list[Path]:
    """Return the sealed segments, the oldest first."""
    return sorted(directory.glob(f"*{SEALED}"))


def open_segments(directory: Path) -> list[Path]:
    """Return the segments that are being written, or that a crash left."""
    return sorted(directory.glob(f"*{OPEN}"))


def lock_of(segment: Path) -> Path:
    """Return the lock file of an open segment."""
    return segment.with_name(segment.name.removesuffix(OPEN) + LOCK)


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file, as hexadecimal digits."""
    found = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            found.update(block)
    return found.hexdigest()


def sync_directory(directory: Path) -> None:
    """Write the names of *directory* to the disk."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def append_line(directory: Path, entry: dict[str, Any]) -> None:
    """Append *entry* to the manifest with the hash of the line before it, and sync.

    A last line that a crash cut is removed first. Processes that write to one directory wait for
    one another.
    """
    path = directory / MANIFEST
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        text = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
        whole = text[: text.rfind(b"\n") + 1]
        lines = whole.splitlines()
        previous = hashlib.sha256(lines[-1]).hexdigest() if lines else ""
        line = json.dumps({**entry, "previous": previous}).encode() + b"\n"
        os.ftruncate(descriptor, len(whole))
        os.pwrite(descriptor, line, len(whole))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_manifest(directory: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the entries of the manifest, and what is wrong with it."""
    path = directory / MANIFEST
    if not path.exists():
        return [], []
    entries: list[dict[str, Any]] = []
    problems: list[str] = []
    previous = ""
    text = path.read_bytes()
    for number, line in enumerate(text.splitlines(), 1):
        entry = _entry_of(line)
        if entry is None:
            problems.append(f"{MANIFEST}: line {number} is no entry of a manifest")
            break
        if entry.get("previous") != previous:
            problems.append(f"{MANIFEST}: line {number} does not follow line {number - 1}")
        previous = hashlib.sha256(line).hexdigest()
        entries.append(entry)
    if text and not text.endswith(b"\n"):
        problems.append(f"{MANIFEST}: the last line is incomplete")
    return entries, problems


def _entry_of(line: bytes) -> dict[str, Any] | None:
    """Return an entry whose names are texts; None for anything else."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(entry, dict):
        return None
    names = (entry.get("segment", ""), entry.get("removed", ""))
    return entry if all(isinstance(each, str) for each in names) else None


@contextmanager
def locked(segment: Path) -> Iterator[bool]:
    """Lock an open segment; yield False if a process is writing it."""
    descriptor = os.open(lock_of(segment), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True
    finally:
        os.close(descriptor)
