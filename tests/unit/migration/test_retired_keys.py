"""Retired keys of the migration kit, with those of the gateway."""

from __future__ import annotations

from pathlib import Path

from tests.unit.config.test_retired import KEYS, TODAY, check_warnings

OWN = """\
state: {directory: state}
capture:
  directory: capture
  min_free: 5
  segment_bytes: 2MiB
migrations:
  m:
    route: m
    old: old
    new: new
    capture:
      directory: other
      min_free: 3
      segment_bytes: 3MiB
"""
OWN_KEYS = 4


def test_a_file_with_all_retired_keys_loads_with_one_warning_for_each(tmp_path: Path) -> None:
    """All 43 keys work for one more version."""
    assert 43 == KEYS + OWN_KEYS
    check_warnings(tmp_path, TODAY + OWN, KEYS + OWN_KEYS)
