"""Generated files match the schemas: checked without tools, and with protoc where installed."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SCHEMAS = ROOT / "schemas"
GENERATED = ROOT / "gateway" / "schema"
REMEDY = "run: python schemas/generate.py"


def test_checksums_are_those_of_the_schemas() -> None:
    """A changed, new or removed schema without regeneration fails this test."""
    files = [path for kind in ("proto", "fbs") for path in SCHEMAS.glob(f"*/*.{kind}")]
    expected = {
        path.relative_to(SCHEMAS).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
    }
    assert expected == json.loads((GENERATED / "checksums.json").read_text()), REMEDY


def test_every_schema_is_described() -> None:
    """The README names each folder of schemas."""
    text = (SCHEMAS / "README.md").read_text()
    assert [] == [
        path.name
        for path in SCHEMAS.iterdir()
        if path.is_dir() and path.name not in text and path.name != "__pycache__"
    ]


@pytest.mark.skipif(importlib.util.find_spec("grpc_tools") is None, reason="needs grpcio-tools")
def test_generated_files_are_current() -> None:
    """Generating again changes nothing."""
    check = [sys.executable, str(SCHEMAS / "generate.py"), "--check"]
    done = subprocess.run(check, capture_output=True, text=True, check=False)
    assert (0, "") == (done.returncode, done.stdout), REMEDY
