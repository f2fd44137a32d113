"""Metrics of permissions and quotas."""

from collections.abc import Iterable
from typing import Final

import structlog
from prometheus_client import CollectorRegistry, Counter

from gateway.ir.identity import ANONYMOUS, Identity
from gateway.telemetry import names
from gateway.telemetry.families import LabelledSeries

log = structlog.get_logger(__name__)

SHADOW: Final = "shadow"
OTHER: Final = "_other"
"""The label of all clients that the configuration does not name."""


class AccessMetrics:
    """Counts what clients may not do.

    Args:
        registry: Publishes the metrics.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._names = frozenset({ANONYMOUS.name})
        self._denied = LabelledSeries(registry, names.ACCESS_DENIED, Counter)
        self._rehearsed = LabelledSeries(registry, names.ACCESS_REHEARSED, Counter)
        self._refused = LabelledSeries(registry, names.QUOTA_REFUSED, Counter)

    def allow_clients(self, clients: Iterable[str]) -> None:
        """Admit configured names of clients as labels."""
        self._names = frozenset((ANONYMOUS.name, *clients))

    def label_of(self, client: str) -> str:
        """Return the label of a client."""
        return client if client in self._names else OTHER

    def denied(self, identity: Identity, operation: str) -> None:
        """Count a call that is denied."""
        self._denied.labels(self.label_of(identity.name), operation).inc()

    def rehearsed(self, identity: Identity, operation: str, rule: str | None) -> None:
        """Count and log a call that rules which are only rehearsed would refuse."""
        self._rehearsed.labels(self.label_of(identity.name), operation, rule or "").inc()
        log.info(
            "access would be denied",
            client_name=identity.name,
            operation=operation,
            rule=rule,
            mode=SHADOW,
        )

    def quota_refused(self, quota: str, identity: Identity, mode: str) -> None:
        """Count a call beyond a quota; one that is made all the same has a line in the log."""
        self._refused.labels(quota, self.label_of(identity.name), mode).inc()
        if mode == SHADOW:
            log.info("quota exceeded", quota=quota, client_name=identity.name, mode=mode)
