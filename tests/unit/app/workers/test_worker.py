"""The log level of a worker while it starts."""

from __future__ import annotations

import pytest

from gateway.app.workers.worker import level_at_start


@pytest.mark.parametrize(
    ("level", "first", "others"),
    [
        ("debug", "debug", "debug"),
        ("info", "warning", "error"),
        ("warning", "warning", "error"),
        ("error", "error", "error"),
    ],
)
def test_only_the_first_worker_logs_start_warnings(level: str, first: str, others: str) -> None:
    """Warnings of the start are logged once, and never below the configured level."""
    found = [level_at_start(level, logs_warnings=one) for one in (True, False)]
    assert [first, others] == found
