"""The models of real model servers: the constants that they return."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from benchmarks.messages import small
from benchmarks.model_servers import write_triton_model
from benchmarks.systems import Absent


def test_the_triton_model_is_generated_from_the_case(tmp_path: Path) -> None:
    """Configuration and header have the tensors of the case, and the backend compiles."""
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler here")
    write_triton_model(tmp_path, small())
    config = (tmp_path / "config.pbtxt").read_text()
    assert 'name: "add_sub"' in config
    assert 'output [ { name: "OUTPUT1" data_type: TYPE_INT32 dims: [1, 16] } ]' in config
    header = (tmp_path / "1" / "answer.h").read_text()
    assert '{"OUTPUT0", 8, 2, shape_0, 64, data_0}' in header
    assert "data_0[] = {3, 0, 0, 0, 4, 0, 0, 0, " in header
    assert (tmp_path / "1" / "libtriton_noop.so").stat().st_size > 0


def test_triton_is_skipped_without_a_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reason is reported."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Absent, match="no C compiler"):
        write_triton_model(tmp_path, small())
