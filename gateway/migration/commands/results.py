"""Where results of replays are written and read: folders, object stores, and shards of both."""

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from gateway.cli.output import FAILED, WRONG_USAGE, fail
from gateway.migration.captures.capture import Capture
from gateway.migration.captures.directory import MANIFEST, SEALED, read_manifest, sealed_segments
from gateway.migration.captures.location import upload_segment
from gateway.migration.commands.capture import open_capture
from gateway.migration.replay.shards import Shard, parse_shard, shard_problems
from gateway.shadow.objects import ObjectStore, ObjectStoreError, is_object_url, object_store


def parse_shard_here(text: str) -> Shard:
    """Parse the flag --shard in this process. Raises ValueError."""
    return parse_shard(text, os.environ)


def open_results(locations: Sequence[str]) -> Capture:
    """Return the results at several places as one; fail if a shard is missing or doubled."""
    found = open_capture(*locations)
    problems = shard_problems(found)
    if problems:
        fail("\n".join(problems), FAILED)
    return found


@contextmanager
def results_folder(
    location: str | None, part: Shard | None, *, needs_one: bool
) -> Iterator[Path | None]:
    """Yield the folder for new replies; those of a URL are uploaded afterwards.

    Results of a shard may be written beside those of others. In an object store another run of the
    same shard replaces the results of the one before.

    Args:
        location: The flag -o.
        part: The shard; None for all calls.
        needs_one: Whether a folder is needed without the flag, until it is read.
    """
    if location is None:
        if not needs_one:
            yield None
            return
        with tempfile.TemporaryDirectory() as name:
            yield Path(name)
        return
    if not is_object_url(location):
        folder = Path(location)
        if folder.exists() and not _may_join(folder, part):
            fail(f"{location} is not empty", WRONG_USAGE)
        yield folder
        return
    try:
        store = object_store(location)
        if part is None and store.names():
            fail(f"{location} is not empty", WRONG_USAGE)
        with tempfile.TemporaryDirectory() as name:
            yield Path(name)
            _upload(Path(name), store, part)
    except ValueError as error:
        fail(str(error), WRONG_USAGE)
    except ObjectStoreError as error:
        fail(f"{location}: {error}")


def _may_join(folder: Path, part: Shard | None) -> bool:
    """Return whether results may be written to a folder: if it is empty, or has other shards."""
    names = [each.name for each in folder.iterdir()]
    return not names or (
        part is not None and all(SEALED in name or name == MANIFEST for name in names)
    )


def _upload(folder: Path, store: ObjectStore, part: Shard | None) -> None:
    entries = {entry.get("segment"): entry for entry in read_manifest(folder)[0]}
    for segment in sealed_segments(folder):
        name = segment.name if part is None else part.object_name
        upload_segment(store, segment, entries.get(segment.name, {}), name)
