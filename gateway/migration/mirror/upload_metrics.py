"""UploadMetrics: the uploads of all captures of the shadow process."""

from collections import Counter
from collections.abc import Iterable, Sequence

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from gateway.migration import names
from gateway.migration.captures.uploader import CaptureUploader
from gateway.telemetry.families import counter_family, gauge_family


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
