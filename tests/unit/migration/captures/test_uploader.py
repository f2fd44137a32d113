"""CaptureUploader: what is uploaded, tried again, removed, and lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.migration.captures.capture import Capture
from gateway.migration.captures.directory import append_line, read_manifest, sealed_segments
from gateway.migration.captures.location import open_captures
from gateway.migration.captures.uploader import CaptureUploader
from gateway.shadow.objects import FolderStore, ObjectStoreError
from tests.unit.migration.captures.kit import record, recorder
from tests.unit.shadow.kit import recordable


class FailingStore(FolderStore):
    """A store that refuses while *is_down*."""

    is_down = True

    def upload(self, path: Path, name: str, /) -> None:
        if self.is_down:
            raise ObjectStoreError("no route to the store")
        super().upload(path, name)


class Places:
    """A capture of two segments, its store, and an uploader of the one to the other."""

    def __init__(self, folder: Path, keep_local_s: float | None = None) -> None:
        self.local, self.remote = folder / "local", folder / "remote"
        for _ in range(2):
            record(self.local, 3)
        self.store = FailingStore(self.remote)
        self.store.is_down = False
        self.now = 1_000.0
        self.keep_local_s = keep_local_s
        self.uploader = self.another()

    def another(self) -> CaptureUploader:
        """Return an uploader as another process has it."""
        return CaptureUploader(
            self.local,
            f"file://{self.remote}",
            self.keep_local_s,
            open_store=lambda _url: self.store,
            clock=lambda: self.now,
        )


def test_uploaded_segments_are_a_capture(tmp_path: Path) -> None:
    """It has all calls, and a manifest that verifies."""
    places = Places(tmp_path)
    places.uploader.upload_all()
    assert {"ok": 2} == {key: count for key, count in places.uploader.counts.items() if count}
    copy = open_captures([f"file://{places.remote}"])
    assert (6, []) == copy.verify()
    assert 6 == len(list(copy.calls()))
    assert (6, []) == Capture(places.local).verify()


def test_a_segment_is_uploaded_once(tmp_path: Path) -> None:
    """Another process goes on with the rest."""
    places = Places(tmp_path)
    places.uploader.upload_all()
    for each in places.remote.glob("*.capture"):
        each.unlink()
    record(places.local, 1)
    later = places.another()
    later.upload_all()
    assert (1, 1) == (later.counts["ok"], len(list(places.remote.glob("*.capture"))))


def test_a_refused_upload_is_tried_again(tmp_path: Path) -> None:
    """It is counted, and the segment waits and stays."""
    places = Places(tmp_path, keep_local_s=0.0)
    places.store.is_down = True
    for failed in (1, 2):
        places.uploader.upload_all()
        assert (failed, 0) == (places.uploader.counts["failed"], places.uploader.counts["ok"])
    assert (2, 2) == (places.uploader.pending, len(sealed_segments(places.local)))
    places.store.is_down = False
    places.uploader.upload_all()
    assert (0, 2) == (places.uploader.pending, places.uploader.counts["ok"])


def test_old_local_segments_are_removed_after_their_upload(tmp_path: Path) -> None:
    """The manifest notes it, so that nothing seems to be missing."""
    places = Places(tmp_path, keep_local_s=60.0)
    places.uploader.upload_all()
    places.now += 59
    places.uploader.upload_all()
    assert 2 == len(sealed_segments(places.local))
    places.now += 1
    places.uploader.upload_all()
    assert [] == sealed_segments(places.local)
    entries, problems = read_manifest(places.local)
    assert ([], 2) == (problems, sum(each.get("reason") == "uploaded" for each in entries))
    record(places.local, 2)
    assert (2, []) == Capture(places.local).verify()


def test_segments_that_are_removed_before_are_lost(tmp_path: Path) -> None:
    """The limit of the directory is stricter than the store is slow."""
    places = Places(tmp_path)
    places.store.is_down = True
    oldest = sealed_segments(places.local)[0]
    oldest.unlink()
    append_line(places.local, {"removed": oldest.name, "reason": "max_bytes"})
    for _ in range(2):
        places.uploader.upload_all()
    assert 1 == places.uploader.counts["lost"]


def test_a_recorder_uploads_what_it_seals_at_its_end(tmp_path: Path) -> None:
    """The last segment is uploaded before the process ends."""
    made = recorder(tmp_path / "local", upload=f"file://{tmp_path / 'remote'}")
    assert made.samples("fraud", "r0")
    made.put(recordable())
    made.close()
    assert 1 == len(list(open_captures([f"file://{tmp_path / 'remote'}"]).calls()))


@pytest.mark.parametrize("name", ["", "/x.capture"])
def test_an_empty_place_is_no_capture(tmp_path: Path, name: str) -> None:
    """The error names the URL."""
    with pytest.raises(Exception, match="no capture there"):
        open_captures([f"file://{tmp_path}/none{name}"])
