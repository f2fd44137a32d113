"""The migration kit on the admin port: migrations, who calls what, and what is recorded."""

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.api.admin import AdminRoute
from gateway.api.extension import LeadingPart
from gateway.config.load import LoadedConfig
from gateway.migration.admin import capture, stock
from gateway.migration.admin.migrations.documents import (
    CutoverSource,
    EvidenceSource,
    MigrationDocuments,
)
from gateway.migration.admin.migrations.routes import migration_routes
from gateway.settings.config_view import ConfigView


class MigrationPages(LeadingPart):
    """The routes of the migration kit.

    Args:
        evidence: What the shadow process has found; None without one.
        cutovers: What moves traffic; None without a key of the kit.
    """

    def __init__(
        self, evidence: EvidenceSource | None = None, cutovers: CutoverSource | None = None
    ) -> None:
        self._documents = MigrationDocuments(evidence, cutovers)
        self._moves = cutovers

    @property
    def routes(self) -> Sequence[AdminRoute]:
        """The routes of the migration kit."""
        return (*migration_routes(self._documents), *stock.ROUTES, *capture.ROUTES)

    def moved(self, config: ConfigView, /) -> Mapping[str, tuple[str, float]]:
        """Return the new target of each cut-over and its percentage, by route."""
        return {} if self._moves is None else self._moves.moved(LoadedConfig.of(config).config)

    def events(self, config: ConfigView, /) -> Mapping[str, Any]:
        """Return a line for each migration."""
        return {"migrations": self._documents.lines(config)}
