"""ShadowEvidence: captures and migrations in the shadow process, from its parent's side."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from gateway.config.load import LoadedConfig
from gateway.migration import names
from gateway.migration.captures.uploader import OUTCOMES
from gateway.migration.mirror.targets import shadow_config
from gateway.migration.options import captures_of
from gateway.migration.targets import live_migrations
from gateway.processes.worker_process import WorkerProcess
from gateway.shadow.keeper import ShadowKeeper, latest_counts
from gateway.shadow.part import ShadowUser
from gateway.telemetry.families import counter_family, gauge_family

NAME: Final = "migration"
"""The name of the extension."""
_PART: Final = "gateway.migration.mirror.shadow_part:MigrationShadow"
_QUANTILES: Final = {"p50": "0.5", "p90": "0.9", "p99": "0.99"}


@dataclass(frozen=True, slots=True)
class KeptEvidence:
    """The evidence of a migration.

    Attributes:
        document: What `MigrationEvidence.document` returned.
        at_s: When it arrived, on the clock of the event loop.
    """

    document: Mapping[str, Any]
    at_s: float


def shadow_channels(loaded: LoadedConfig) -> tuple[str, ...]:
    """Return what a shadow process is needed for: captures and live migrations."""
    return (*captures_of(loaded), *(each.name for each in live_migrations(loaded.config)))


class ShadowEvidence(ShadowUser, Collector):
    """Keeps what the shadow process finds about migrations, for the process after it, too.

    Args:
        loaded: The configuration; it has a capture or a live migration.
        keeper: Keeps the shadow process running.
    """

    def __init__(self, loaded: LoadedConfig, keeper: ShadowKeeper) -> None:
        super().__init__(NAME, _PART, shadow_channels(loaded))
        self._loaded = loaded
        self._keeper = keeper
        self._uploads_before: Counter[str] = Counter()
        self._evidence: dict[str, KeptEvidence] = {}
        # What the guards of a process that starts continue with.
        self._earlier: dict[str, Mapping[str, Any]] = {}
        keeper.join(self)

    @property
    def evidence(self) -> Mapping[str, KeptEvidence]:
        """The latest evidence of each live migration that has any."""
        return MappingProxyType(self._evidence)

    def reset_evidence(self, migration: str) -> None:
        """Start the evidence of a migration again."""
        self._evidence.pop(migration, None)
        self._earlier.pop(migration, None)
        self._keeper.send(NAME, {"reset": migration})

    def resume_evidence(self, migration: str, earlier: Mapping[str, Any]) -> None:
        """Let the guards of a migration continue: `resume` of an earlier document."""
        self._earlier[migration] = earlier
        self._keeper.send(NAME, {"resume": {migration: earlier}})

    async def sample(self, migration: str, sample_id: str) -> Mapping[str, Any] | None:
        """Return a kept sample of a migration as JSON values; None if there is none."""
        process = self._keeper.process
        if process is None:
            return None
        reply = await process.exchange(NAME, {"migration": migration, "id": sample_id})
        found: Mapping[str, Any] | None = None if reply is None else reply.get("sample")
        return found

    def change(self, loaded: LoadedConfig) -> None:
        """Follow another configuration with the same channels.

        The process is replaced if its targets have changed, and its evidence begins anew.
        """
        old, self._loaded = self._loaded, loaded
        if live_migrations(loaded.config) and shadow_config(old.config) != shadow_config(
            loaded.config
        ):
            self._keeper.replace()

    def collect(self) -> Iterable[Metric]:
        """Return the metrics of uploads and of evidence."""
        if any(each.upload for each in captures_of(self._loaded).values()):
            uploads = counter_family(names.CAPTURE_UPLOADS)
            counts = self._uploads_before + _uploads(self._keeper.process)
            for outcome in OUTCOMES:
                uploads.add_metric([outcome], counts[outcome])
            yield uploads
            pending = gauge_family(names.CAPTURE_UPLOADS_PENDING)
            waiting = latest_counts(self._keeper.process, names.CAPTURE_UPLOADS_PENDING.name, "")
            pending.add_metric((), waiting.total())
            yield pending
        if live_migrations(self._loaded.config):
            documents = {name: kept.document for name, kept in self._evidence.items()}
            yield from _evidence_metrics(documents)

    def receive(self, document: Mapping[str, Any], /) -> None:
        """Keep the evidence of all migrations."""
        at_s = asyncio.get_running_loop().time()
        for name, each in document.items():
            self._evidence[name] = KeptEvidence(each, at_s)

    def started(self) -> None:
        """Let the guards continue with what the process before knew."""
        for name, kept in self._evidence.items():
            self._earlier[name] = kept.document["resume"]
        if self._earlier:
            self._keeper.send(NAME, {"resume": self._earlier})

    def ended(self, process: WorkerProcess, /, *, is_replaced: bool) -> None:
        """Keep the counts of uploads; the evidence of other targets begins anew."""
        self._uploads_before += _uploads(process)
        if is_replaced:
            self._evidence.clear()
            self._earlier.clear()


class EvidenceDocuments:
    """The evidence as the admin port shows it.

    Args:
        source: Has it.
    """

    def __init__(self, source: ShadowEvidence) -> None:
        self._source = source

    @property
    def evidence(self) -> Mapping[str, dict[str, Any]]:
        """The latest document of each live migration that has any, without what guards keep."""
        return {
            name: {key: value for key, value in kept.document.items() if key != "resume"}
            for name, kept in self._source.evidence.items()
        }

    async def sample(self, migration: str, sample: str) -> dict[str, Any] | None:
        """Return a kept sample of a migration as JSON values; None if there is none."""
        found = await self._source.sample(migration, sample)
        return None if found is None else dict(found)


def _uploads(process: WorkerProcess | None) -> Counter[str]:
    return latest_counts(process, names.CAPTURE_UPLOADS.name, "outcome")


def _evidence_metrics(documents: Mapping[str, Mapping[str, Any]]) -> Iterable[Metric]:
    """Yield the metrics of the latest evidence of each migration.

    Args:
        documents: Of `MigrationEvidence.document`, by the name of the migration.
    """
    outputs = counter_family(names.MIGRATION_OUTPUT_MISMATCHES)
    noise = counter_family(names.MIGRATION_NOISE)
    seconds = gauge_family(names.MIGRATION_LATENCY)
    for name, document in documents.items():
        for output in document["outputs"]:
            outputs.add_metric((name, output["name"]), output["mismatched"])
        found = document["noise"]
        if found is not None:
            noise.add_metric((name, "mismatch"), found["mismatched"])
            noise.add_metric((name, "match"), found["compared"] - found["mismatched"])
        for side in ("old", "new"):
            for key, quantile in _QUANTILES.items():
                value = document["latency"][side][key]
                if value is not None:
                    seconds.add_metric((name, side, quantile), value)
    yield from (outputs, noise, seconds)
