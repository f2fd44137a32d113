"""The weights that the admin port shows: those of the file, or percentages of a cut-over."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.app.admin.api import weights_in_force
from gateway.config.load import load_text
from gateway.config.models import Config
from gateway.migration.evidence.verdicts import Standing

CONFIG = """version: 1
listeners: [{http: 127.0.0.1:0}]
state: {directory: state}
upstreams:
  legacy: {url: "trtis+http://10.0.0.5:8000"}
  triton: {url: "oip+grpc://10.0.0.6:8001"}
routes:
  - name: fraud
    targets: [{upstream: legacy, weight: 3}, {upstream: legacy, model: b}, {upstream: triton, weight: 0}]
migrations:
  fraud: {route: fraud, old: legacy, new: triton, cutover: {steps: [5, 100]}}
"""
FILE = {"legacy": 3, "legacy/b": 1, "triton": 0}


class Cutover:
    """A cut-over with a weight."""

    def __init__(self, percent: float) -> None:
        self._percent = percent

    def document(self, _migration: str) -> dict[str, Any] | None:
        """There is none."""
        return None

    def moved(self, _config: Config) -> dict[str, tuple[str, float]]:
        """Return the share of the new target."""
        return {"fraud": ("triton", self._percent)}

    def verdict(self, _migration: str) -> tuple[Standing, dict[str, Any]] | None:
        """There is none."""
        return None

    async def command(self, _migration: str, _command: str, at_step: int | None = None) -> None:
        """Refuse."""
        raise ValueError(at_step)


@pytest.mark.parametrize(
    ("cutover", "expected"),
    [
        (None, FILE),
        (Cutover(0), FILE),
        (Cutover(20), {"legacy": 60, "legacy/b": 20, "triton": 20}),
        (Cutover(100), {"legacy": 0, "legacy/b": 0, "triton": 100}),
    ],
)
def test_a_cutover_reduces_the_weights_of_other_targets(
    cutover: Cutover | None, expected: dict[str, float]
) -> None:
    """The other targets share the remaining percentage by their weights."""
    assert {"fraud": expected} == weights_in_force(load_text(CONFIG).config, cutover)
