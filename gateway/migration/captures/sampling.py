"""Which calls are recorded, and what became of them."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gateway.ir.context import Context
from gateway.shadow.draw import draw
from gateway.shadow.records.privacy import Privacy
from gateway.shadow.records.records import Recordable

_MIB: Final = 1 << 20
CALL_BYTES: Final = 512
"""Counted for a call besides its elements and messages."""
SHADOW_HEADER: Final = "x-gateway-shadow"
"""Header of shadow calls; calls with it are never compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureOptions:
    """Where and what to record.

    Attributes:
        percent: Share of the calls, 0 to 100.
        models: Only calls of these models; empty for all.
        route: Only calls of this route; empty for all.
        draw_key: Captures and mirrors with the same one choose the same calls.
        segment_s: A segment is sealed after this time, or when it has `segment_bytes`.
        max_bytes: Of all segments together; `rotate` then removes the oldest.
        min_free: Share of the disk that stays free.
        outbox_bytes: Elements that may wait in a serving process.
        outbox_calls: Calls that may wait there.
        sample_bytes: Largest call.
        upload: URL of an object store for sealed segments; "" for none.
        keep_local_s: Age at which an uploaded segment is removed here; None to keep it.
        upstreams: Addresses of the upstreams by name, for reports.
    """

    directory: Path
    percent: float = 100.0
    models: frozenset[str] = frozenset()
    route: str = ""
    draw_key: str = "capture"
    privacy: Privacy = field(default_factory=Privacy)
    segment_bytes: int = 256 * _MIB
    segment_s: float = 3600.0
    max_bytes: int = 4096 * _MIB
    rotates: bool = True
    min_free: float = 0.1
    outbox_bytes: int = 64 * _MIB
    outbox_calls: int = 1024
    sample_bytes: int = 64 * _MIB
    max_items: int = 1024
    upload: str = ""
    keep_local_s: float | None = None
    upstreams: Mapping[str, str] = field(default_factory=dict)


class CaptureCounts:
    """What became of the calls that one process sampled.

    Attributes:
        recorded: Calls in committed transactions.
        nbytes: Bytes of their elements and messages.
        outcomes: Compared calls by the outcome; of a capture, none. They count as recorded.
        skipped: Calls that cannot be recorded, by reason.
        dropped: Calls that were lost, by reason.
        unread: Sampled calls that are no inference: "forwarded", or "refused" by the gateway.
    """

    def __init__(self) -> None:
        self.sampled = 0
        self.recorded = 0
        self.nbytes = 0
        self.outcomes: Counter[str] = Counter()
        self.skipped: Counter[str] = Counter()
        self.dropped: Counter[str] = Counter()
        self.unread: Counter[str] = Counter()

    @property
    def left_out(self) -> dict[str, int]:
        """Dropped and skipped calls by reason."""
        return dict(self.dropped + self.skipped)

    @property
    def in_flight(self) -> int:
        """Sampled calls that have no result or are not written yet."""
        left_out = self.skipped.total() + self.dropped.total()
        return self.sampled - self.recorded - left_out


class CaptureSampler:
    """Decides which calls are recorded, and counts them.

    Args:
        options: What to record.

    Attributes:
        percent: Share of the calls that are chosen; while none is, that of the last choice.
    """

    def __init__(self, options: CaptureOptions) -> None:
        self.percent = 100.0
        self.counts = CaptureCounts()
        self.change(options)

    def change(self, options: CaptureOptions) -> None:
        """Choose by other options from now on; the counts continue."""
        self.options = options
        self._threshold = options.percent / 100
        self.percent = options.percent or self.percent

    def samples(self, model: str, key: str) -> bool:
        """Return whether to record a call, and count it if so; see `chooses`."""
        is_chosen = self.chooses(model, key)
        self.counts.sampled += is_chosen
        return is_chosen

    def chooses(self, model: str, key: str) -> bool:
        """Return whether to record a call, if its route is recorded.

        The same key gives the same result everywhere, so a sequence is sampled completely.

        Args:
            model: Its name.
            key: "model|sequence id" in a sequence, else the request id.
        """
        options, threshold = self.options, self._threshold
        if options.models and model not in options.models:
            return False
        return threshold >= 1 or (threshold > 0 and draw(key, options.draw_key) < threshold)

    def reason_to_skip(self, call: Recordable) -> str:
        """Return why a call is not recorded, whatever its tensors; "" if it is."""
        return "too_many_items" if len(call.items) > self.options.max_items else ""


def is_shadow_call(context: Context) -> bool:
    """Return whether another gateway made a call for its mirror."""
    return SHADOW_HEADER in [name for name, _ in context.metadata]
