"""Metrics of permissions and quotas."""

from collections.abc import Iterable
from typing import Final

from prometheus_client import CollectorRegistry, Counter

from gateway.ir.identity import ANONYMOUS, Identity

OTHER: Final = "_other"
"""The label of all clients that the configuration does not name."""


class AccessMetrics:
    """Counts what clients may not do.

    Args:
        registry: Publishes the metrics.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._names = frozenset({ANONYMOUS.name})
        self._denied = Counter(
            "gateway_access_denied",
            "Calls that no rule allows the client, or that a rule denies, by operation.",
            ("client", "operation"),
            registry=registry,
        )

    def allow_clients(self, names: Iterable[str]) -> None:
        """Admit configured names of clients as labels."""
        self._names = frozenset((ANONYMOUS.name, *names))

    def label_of(self, client: str) -> str:
        """Return the label of a client."""
        return client if client in self._names else OTHER

    def denied(self, identity: Identity, operation: str) -> None:
        """Count a call that is denied."""
        self._denied.labels(self.label_of(identity.name), operation).inc()
