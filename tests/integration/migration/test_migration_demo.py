"""`gateway demo --migrate`: the whole migration on the demo models, as a terminal shows it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.app.check.check import check
from gateway.cli.demo.samples import load_held_out
from gateway.cli.serving.sidecar import load_mapping
from gateway.migration.demo.story import STEPS, migration_config

# The digits of the eight scans, and what both servers take them for.
DIFFERENT = [
    "6: old 8, new 6",
    "8: old 9, new 8",
    "8: old 6, new 8",
    "6: old 4, new 0",
    "1: old 8, new 4",
    "7: old 8, new 7",
    "9: old 8, new 9",
    "4: old 8, new 4",
]


def test_held_out_scans_match_their_source() -> None:
    """The 450 scans have the source's 64 pixels and digits."""
    datasets = pytest.importorskip("sklearn.datasets")
    source = datasets.load_digits()
    scans = load_held_out()
    assert [tuple(row) for row in source.data[::4].tolist()] == [scan.pixels for scan in scans]
    assert source.target[::4].tolist() == [scan.digit for scan in scans]


def test_demo_configuration_is_valid(tmp_path: Path) -> None:
    """`gateway validate` reports nothing."""
    config = migration_config(1001, 1002, tmp_path, "127.0.0.1:0")
    assert [] == check(load_mapping(config, "demo"))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_demo_runs_the_whole_migration() -> None:
    """Mirror, 8 different labels, report, steps, fault and rollback; no call fails afterwards."""
    command = [sys.executable, "-m", "gateway", "demo", "--migrate"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=570, check=False)
    text = found.stdout
    assert 0 == found.returncode, text + found.stderr
    assert re.search(r"^label +450 +8 +1\.78% ", text, re.MULTILINE)
    for label in DIFFERENT:
        assert label in text
    assert 8 == len(set(re.findall(r"scan-[0-9]+", text)))
    assert "The old model is wrong on 12 scans, the new one on 6." in text
    assert "450 calls in " in text
    for number, step in enumerate(STEPS[:2], 1):
        assert f"step {number}: {step} % to new/digits:2" in text
    assert "state: rolled_back" in text
    assert "errors" in text.partition("reason: ")[2].partition("\n")[0]
    assert re.search(r"Of the next 1\d\d calls 0 failed", text)
