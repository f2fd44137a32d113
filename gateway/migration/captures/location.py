"""Where captures and results are: folders, files, and URLs of object stores.

A segment of an object store has its line of the manifest beside it, as `NAME.json`: several
gateways may upload to one prefix.
"""

import json
import shutil
import tempfile
import weakref
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from gateway.migration.captures.capture import Capture
from gateway.migration.captures.directory import (
    MANIFEST,
    SEALED,
    append_line,
    open_segments,
    sealed_segments,
)
from gateway.migration.captures.segment_reader import UnreadableSegment
from gateway.shadow.objects import ObjectStore, ObjectStoreError, is_object_url, object_store

ENTRY: Final = ".json"
"""The ending of the object with the manifest's line of a segment."""


def open_captures(locations: Sequence[str]) -> Capture:
    """Return the capture of one or several places, with the calls of all of them.

    A folder without segments stands for those of its folders that have some. Objects are copied to
    a temporary folder, which goes with the capture.

    Raises:
        UnreadableSegment: There is no segment, or an object cannot be read.
        ValueError: A URL is malformed.
    """
    with ExitStack() as stack:
        paths: list[Path] = []
        for location in locations:
            if not is_object_url(location):
                paths += _with_segments(Path(location))
                continue
            copies = tempfile.mkdtemp(prefix="gateway-capture-")
            stack.callback(shutil.rmtree, copies, ignore_errors=True)
            try:
                paths += fetch(location, Path(copies))
            except ObjectStoreError as error:
                raise UnreadableSegment(f"{location}: {error}") from error
        found = Capture(*paths)
        weakref.finalize(found, stack.pop_all().close)
    return found


def _with_segments(path: Path) -> list[Path]:
    if not path.is_dir() or _has_segments(path):
        return [path]
    return [each for each in sorted(path.iterdir()) if each.is_dir() and _has_segments(each)] or [
        path
    ]


def _has_segments(path: Path) -> bool:
    return bool(sealed_segments(path) or open_segments(path))


def fetch(url: str, folder: Path) -> list[Path]:
    """Copy the segments below a URL, and return the folders that have them.

    Raises:
        ObjectStoreError: The store cannot be read.
        UnreadableSegment: It has no segment there.
        ValueError: The URL is malformed.
    """
    base, _, last = url.rstrip("/").rpartition("/")
    only = last if last.endswith(SEALED) else ""
    store = object_store(base if only else url)
    names = store.names()
    found: dict[Path, None] = {}
    for name in names:
        if not name.endswith(SEALED) or (only and name != only):
            continue
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        store.download(name, path)
        found[path.parent] = None
        if f"{name}{ENTRY}" in names:
            _add_entry(store, name, path)
    for target in found:
        manifest = (target / MANIFEST).relative_to(folder).as_posix()
        if manifest in names and not (target / MANIFEST).exists():
            store.download(manifest, target / MANIFEST)
    if not found:
        raise UnreadableSegment(f"{url}: no capture there")
    return list(found)


def _add_entry(store: ObjectStore, name: str, path: Path) -> None:
    """Add a segment's line to the manifest of its copy."""
    side = path.with_name(path.name + ENTRY)
    store.download(f"{name}{ENTRY}", side)
    try:
        entry = json.loads(side.read_bytes())
    except ValueError as error:
        raise ObjectStoreError(f"{name}{ENTRY} is no entry of a manifest: {error}") from error
    finally:
        side.unlink()
    if isinstance(entry, dict):
        append_line(path.parent, {**entry, "segment": path.name})


def upload_segment(store: ObjectStore, path: Path, entry: dict[str, object], name: str) -> None:
    """Write a sealed segment to a store, and then its line of the manifest.

    Args:
        store: The store.
        path: The segment.
        entry: Its line of the manifest.
        name: The name of the object.

    Raises:
        ObjectStoreError: The store refuses.
    """
    store.upload(path, name)
    line = {key: value for key, value in entry.items() if key != "previous"}
    store.put(f"{name}{ENTRY}", json.dumps({**line, "segment": name}).encode())
