"""Tests of the processes that run tests: each test runs once, and no failure is lost."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_FILES = {
    "test_first.py": """
import time, pytest
def test_passes(tmp_path): assert not list(tmp_path.iterdir())
def test_fails(): print("what it printed"); assert 1 == 2
@pytest.mark.timeout(0.1)
def test_hangs(): time.sleep(60)
""",
    "test_second.py": """
import os, pytest
def test_passes(tmp_path): assert not list(tmp_path.iterdir())
@pytest.fixture
def raises(): yield; raise ValueError("its teardown failed")
def test_teardown(raises): pass
def test_ends_the_process(): os._exit(3)
def test_is_lost(): pass
""",
    "test_third.py": "def test_passes(tmp_path): assert not list(tmp_path.iterdir())",
}
_ENDS = [
    "ERROR test_second.py::test_teardown - ValueError: its teardown failed",
    "FAILED test_first.py::test_fails - assert 1 == 2",
    "FAILED test_first.py::test_hangs - Failed: Timeout (>0.1s) from pytest-timeout.",
    "FAILED test_second.py::test_ends_the_process - its process ended with exit status 3",
]


def test_no_failure_is_lost(tmp_path: Path) -> None:
    """A failure, a time limit, a teardown and the end of a process each fail the run."""
    for name, text in _FILES.items():
        (tmp_path / name).write_text(text)
    command = (
        f"import sys; sys.path.insert(0, {str(_ROOT)!r}); import pytest; sys.exit(pytest.main())"
    )
    options = ["-q", "-p", "tests.forked_processes", "--processes", "2", "-p", "no:cacheprovider"]
    ended = subprocess.run(
        [sys.executable, "-c", command, "--rootdir", ".", *options],
        cwd=tmp_path,
        env=os.environ | {"COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = ended.stdout.splitlines()
    assert sorted(line for line in lines if line.startswith(("ERROR ", "FAILED "))) == _ENDS
    assert lines[-1].startswith("3 failed, 4 passed, 1 error in ")
    assert "what it printed" in lines
    assert ended.returncode == 1
