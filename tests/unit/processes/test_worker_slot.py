"""Shares of resources among workers, and the number of workers of a machine."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from gateway.processes.worker_slot import (
    SINGLE_PROCESS,
    ProcessOptions,
    WorkerSlot,
    available_cores,
    resolve_workers,
)
from gateway.protocols.trtis import SPEC
from gateway.settings.units import AUTO


@pytest.mark.parametrize(
    ("total", "count", "shares"),
    [(100, 2, [50, 50]), (100, 3, [34, 33, 33]), (0, 2, [0, 0]), (1, 3, [1, 1, 1])],
)
def test_shares_add_up(total: int, count: int, shares: list[int]) -> None:
    """Shares are equal, and at least 1 unless the total is 0."""
    assert shares == [WorkerSlot(number, count).share(total) for number in range(1, count + 1)]


def test_a_single_process_has_the_whole_share() -> None:
    """A process that serves alone divides nothing."""
    assert (True, 7) == (SINGLE_PROCESS.is_single, SINGLE_PROCESS.share(7))
    assert not WorkerSlot(1, 2).is_single


@pytest.mark.parametrize(
    ("quota", "cores"), [("50000 100000", 1), ("100000 100000", 1), ("100 100000", 1)]
)
def test_a_cgroup_quota_limits_the_cores(tmp_path: Path, quota: str, cores: int) -> None:
    """A container with half a core has one worker, not one for each visible core."""
    file = tmp_path / "cpu.max"
    file.write_text(quota + "\n")
    assert cores == available_cores(file)


@pytest.mark.parametrize("quota", ["max 100000", "", None])
def test_all_usable_cores_count_without_a_quota(tmp_path: Path, quota: str | None) -> None:
    """Without a quota or a cgroup, the CPU affinity decides."""
    file = tmp_path / "cpu.max"
    if quota is not None:
        file.write_text(quota)
    assert len(os.sched_getaffinity(0)) == available_cores(file)


def test_workers_auto_is_the_number_of_cores(tmp_path: Path) -> None:
    """A number is used as it is."""
    assert 3 == resolve_workers(3)
    assert available_cores(tmp_path / "none") == resolve_workers(AUTO, tmp_path / "none")


def test_listeners_of_a_process_share_the_options_of_a_protocol() -> None:
    """They are made once, from the number of the worker and the count of workers."""
    spec = dataclasses.replace(SPEC, process_options=lambda *slot: {"slot": slot})
    options = ProcessOptions(WorkerSlot(2, 3))
    assert {"slot": (2, 3)} == options.of_protocol(spec)
    assert options.of_protocol(spec) is options.of_protocol(spec)
