"""Doubles of what the pages of migrations show."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.app.build.parts import LeadingParts
from gateway.config.models import Config
from gateway.migration.admin import MigrationPages
from gateway.migration.admin.migrations.documents import CutoverSource, EvidenceSource


class Evidence:
    """The evidence of one migration, whose kept sample is `s`."""

    def __init__(self, *verdicts: str) -> None:
        guards = [{"guard": name, "verdict": name, "evidence": ""} for name in verdicts]
        self.evidence: Mapping[str, dict[str, Any]] = {
            "fraud": {
                "guards": guards,
                "sampled": 16,
                "compared": 15,
                "replies_compared": 10,
                "failed": 5,
                "reasons": [
                    {
                        "outcome": "new_error",
                        "code": "internal",
                        "count": 5,
                        "example": "no GPU",
                        "call": "a1b2-3",
                    }
                ],
                "outcomes": {"match": 9, "mismatch": 1, "new_error": 5},
            }
        }

    async def sample(self, migration: str, sample: str) -> dict[str, Any] | None:
        """Return the sample `s`."""
        return {"id": sample} if (migration, sample) == ("fraud", "s") else None


class Cutover:
    """Accepts `pause` alone, and remembers it."""

    def __init__(self) -> None:
        self.commands: list[tuple[str, str, int | None]] = []

    def document(self, _migration: str) -> dict[str, Any] | None:
        """Return where it stands."""
        return {"state": "baking", "weight": 5}

    def moved(self, _config: Config) -> dict[str, tuple[str, float]]:
        """Return that no call moves."""
        return {}

    def verdict(self, _migration: str) -> None:
        """Return none."""
        return

    async def command(
        self, migration: str, command: str, at_step: int | None = None
    ) -> dict[str, Any] | None:
        """Remember a command."""
        if command != "pause":
            raise ValueError(f"{command} is not possible: the cut-over is baking; expected pause")
        self.commands.append((migration, command, at_step))
        return self.document(migration)


def pages(
    evidence: EvidenceSource | None = None, cutover: CutoverSource | None = None
) -> LeadingParts:
    """Return the leading parts of a gateway with these migrations."""
    return LeadingParts({"migration": MigrationPages(evidence, cutover)})
