"""ModelCounts: what a process counts of its own, for the names of other servers' metrics."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from gateway.ir.context import ModelRef
from gateway.ir.errors import ErrorCode
from gateway.ir.statistics import ModelStatistics
from gateway.telemetry.usage.model_calls import ModelCalls
from gateway.telemetry.usage.model_usage import Usage

REJECTED, CANCELED, BACKEND, OTHER = "REJECTED", "CANCELED", "BACKEND", "OTHER"
REASONS: Final = (REJECTED, CANCELED, BACKEND, OTHER)
"""Why requests fail, as Triton names it."""

_REASON_OF: Final = {
    ErrorCode.OVERLOADED: REJECTED,
    ErrorCode.QUOTA_EXCEEDED: REJECTED,
    ErrorCode.DEADLINE_EXCEEDED: REJECTED,
    ErrorCode.CANCELLED: CANCELED,
    ErrorCode.UPSTREAM: BACKEND,
    ErrorCode.BAD_UPSTREAM: BACKEND,
    ErrorCode.UNAVAILABLE: BACKEND,
}


class ModelCounts:
    """Inferences by model and version, those that run, and those at each upstream.

    Inferences of an upstream that counts them itself are not counted here.

    Args:
        usage: Has the batches and cache lookups of the process.

    Attributes:
        counts_itself: Whether the upstream with this name counts its inferences itself.
        arrived: Inferences in flight, by the name that clients use.
        sent: Inferences in flight at the endpoints of each upstream, by its name.
    """

    def __init__(self, usage: Usage) -> None:
        self.counts_itself: Callable[[str], bool] = lambda _upstream: False
        self.arrived: Counter[str] = Counter()
        self.sent: defaultdict[str, ModelCalls] = defaultdict(lambda: ModelCalls(is_published=True))
        self._usage = Usage(sharing_of=usage)
        self._failures: Counter[tuple[str, str, str]] = Counter()
        self._served: set[str] = set()

    def serve(self, models: Iterable[str]) -> None:
        """Count failures of these models, which no call has reached yet."""
        self._served.update(models)

    def ended(self, model: ModelRef, target: str, error: ErrorCode | None, seconds: float,
              queued_s: float) -> None:  # fmt: skip
        """Count an inference that has ended.

        Args:
            model: With the version that replied, if it is known.
            target: The upstream, model or pipeline that had the call; "" for none.
            error: None for a reply.
            seconds: Its time in the gateway.
            queued_s: Its time in queues.
        """
        if self.counts_itself(target):
            return
        if error is None:
            self._served.add(model.name)
        elif error is ErrorCode.NOT_FOUND or model.name not in self._served:
            return  # a name that a client made up is no label
        else:
            model = self._known(model)
            self._failures[model.name, model.version, _REASON_OF.get(error, OTHER)] += 1
        self._usage.record_call(model, ok=error is None, seconds=seconds, queued_s=queued_s)

    def _known(self, model: ModelRef) -> ModelRef:
        """Return *model* with a version that has served, for a version is the client's, too."""
        versions = [one.version for one in self._usage.of(ModelRef(model.name))]
        if model.version in versions:
            return model
        return ModelRef(model.name, max(versions, key=version_number, default=""))

    def statistics(self) -> Iterator[ModelStatistics]:
        """Yield the statistics of all models and versions that were called."""
        return self._usage.each_of(None)

    def failures(self, model: str, version: str) -> dict[str, int]:
        """Return the failed inferences of one version by reason."""
        return {reason: self._failures[model, version, reason] for reason in REASONS}


def version_number(version: str) -> tuple[int, str]:
    """Return a key that orders versions: numbers by their value, after all other texts."""
    return (int(version), "") if version.isdecimal() else (-1, version)
