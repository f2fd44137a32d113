"""CaptureUploader: copies sealed segments to an object store, and removes old local ones.

It runs on a thread of the shadow process. What was uploaded stands in the manifest, so that another
process goes on with the rest. A segment is tried again until the store has it.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import structlog
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from gateway.migration import names
from gateway.migration.captures.directory import append_line, read_manifest, sealed_segments
from gateway.migration.captures.location import upload_segment
from gateway.shadow.objects import ObjectStore, ObjectStoreError, object_store
from gateway.telemetry.families import counter_family, gauge_family

log = structlog.get_logger(__name__)

OK, FAILED, LOST = "ok", "failed", "lost"
OUTCOMES: Final = (OK, FAILED, LOST)
_PERIOD_S: Final = 2.0
_LONGEST_PAUSE_S: Final = 60.0
_CLOSE_S: Final = 20.0


def _epoch() -> float:
    return datetime.now(UTC).timestamp()


class CaptureUploader:
    """Uploads the sealed segments of a directory. `start` it once, and `close` it.

    Args:
        directory: The directory of the capture.
        url: Where to.
        keep_local_s: Age at which an uploaded segment is removed here; None to keep it.
        open_store: Opens the store of a URL.
        clock: Seconds since the epoch.

    Attributes:
        counts: Attempts by outcome; "lost" are segments that were removed before.
        pending: Sealed segments that wait.
    """

    def __init__(
        self,
        directory: Path,
        url: str,
        keep_local_s: float | None = None,
        *,
        open_store: Callable[[str], ObjectStore] = object_store,
        clock: Callable[[], float] = _epoch,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.pending = 0
        self._directory = directory
        self._url = url
        self._keep_local_s = keep_local_s
        self._open_store = open_store
        self._clock = clock
        self._store: ObjectStore | None = None
        self._stopping = threading.Event()
        self._lost: set[str] = set()
        self._reason = ""
        self._pause_s = _PERIOD_S
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread. Segments that were lost before are not counted again."""
        self._lost = self._lost_segments(read_manifest(self._directory)[0])
        self._thread = threading.Thread(target=self._run, name="capture-upload", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Upload what is sealed, if the store takes it in time, and stop; idempotent."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._stopping.set()
            thread.join(_CLOSE_S)

    def _run(self) -> None:
        while not self._stopping.wait(self._pause_s):
            self.upload_all()
        self.upload_all()

    def upload_all(self) -> None:
        """Upload what waits, and remove what is old; raise nothing."""
        try:
            self._upload_all()
        except (ObjectStoreError, OSError, ValueError) as error:
            self.counts[FAILED] += 1
            self._pause_s = min(_LONGEST_PAUSE_S, self._pause_s * 2)
            if str(error) != self._reason:
                self._reason = str(error)
                log.warning("capture not uploaded", to=self._url, reason=self._reason)
        else:
            self._reason = ""
            self._pause_s = _PERIOD_S

    def _upload_all(self) -> None:
        entries = read_manifest(self._directory)[0]
        uploaded = {entry["uploaded"]: entry for entry in entries if "uploaded" in entry}
        listed = {entry["segment"]: entry for entry in entries if "segment" in entry}
        waiting = [
            each
            for each in sealed_segments(self._directory)
            if each.name in listed and each.name not in uploaded
        ]
        self.pending = len(waiting)
        lost = self._lost_segments(entries)
        self.counts[LOST] += len(lost - self._lost)
        self._lost = lost
        for segment in waiting:
            self._upload(segment, listed[segment.name])
            self.pending -= 1
        self._remove_old(uploaded)

    def _upload(self, segment: Path, entry: dict[str, Any]) -> None:
        if self._store is None:
            self._store = self._open_store(self._url)
        try:
            upload_segment(self._store, segment, entry, segment.name)
        except ObjectStoreError:
            if segment.exists():
                raise
            return  # it was removed meanwhile, and counts as lost
        at = round(self._clock())
        append_line(self._directory, {"uploaded": segment.name, "to": self._url, "at": at})
        self.counts[OK] += 1
        log.info("capture uploaded", segment=segment.name, to=self._url)

    def _remove_old(self, uploaded: dict[str, dict[str, Any]]) -> None:
        if self._keep_local_s is None:
            return
        for segment in sealed_segments(self._directory):
            at = uploaded.get(segment.name, {}).get("at")
            if isinstance(at, int) and self._clock() - at >= self._keep_local_s:
                segment.unlink(missing_ok=True)
                append_line(self._directory, {"removed": segment.name, "reason": "uploaded"})
                log.info("capture segment removed", segment=segment.name, reason="uploaded")

    @staticmethod
    def _lost_segments(entries: list[dict[str, Any]]) -> set[str]:
        """Return the segments that were removed before they were uploaded."""
        uploaded = {entry.get("uploaded") for entry in entries}
        removed = {entry["removed"] for entry in entries if entry.get("reason") == "max_bytes"}
        return removed - uploaded


class UploadMetrics(Collector):
    """The counts of uploaders, as metrics.

    Args:
        uploaders: Those of the captures; None for one without an upload.
    """

    def __init__(self, uploaders: Sequence[CaptureUploader | None]) -> None:
        self._uploaders = [each for each in uploaders if each is not None]

    def collect(self) -> Iterable[Metric]:
        """Yield the metrics; nothing without an upload."""
        if not self._uploaders:
            return
        uploads = counter_family(names.CAPTURE_UPLOADS)
        total: Counter[str] = Counter()
        for each in self._uploaders:
            total.update(each.counts)
        for outcome, count in total.items():
            uploads.add_metric([outcome], count)
        yield uploads
        pending = gauge_family(names.CAPTURE_UPLOADS_PENDING)
        pending.add_metric((), sum(each.pending for each in self._uploaders))
        yield pending
