"""The weights that the admin port shows: those of the file, or percentages of moved calls."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from gateway.app.admin.running import weights_in_force
from gateway.config.load import load_text

CONFIG = """version: 1
listeners: [{http: 127.0.0.1:0}]
upstreams:
  legacy: {url: "trtis+http://10.0.0.5:8000"}
  triton: {url: "oip+grpc://10.0.0.6:8001"}
routes:
  - name: fraud
    targets: [{upstream: legacy, weight: 3}, {upstream: legacy, model: b}, {upstream: triton, weight: 0}]
"""
FILE = {"legacy": 3, "legacy/b": 1, "triton": 0}


@pytest.mark.parametrize(
    ("moved", "expected"),
    [
        ({}, FILE),
        ({"fraud": ("triton", 0.0)}, FILE),
        ({"fraud": ("triton", 20.0)}, {"legacy": 60, "legacy/b": 20, "triton": 20}),
        ({"fraud": ("triton", 100.0)}, {"legacy": 0, "legacy/b": 0, "triton": 100}),
    ],
)
def test_moved_calls_reduce_the_weights_of_other_targets(
    moved: Mapping[str, tuple[str, float]], expected: dict[str, float]
) -> None:
    """The other targets share the remaining percentage by their weights."""
    assert {"fraud": expected} == weights_in_force(load_text(CONFIG).config, moved)
