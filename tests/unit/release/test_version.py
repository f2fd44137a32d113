"""The version of the project stands in several files, and is the same in all of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gateway import __version__
from tests.unit.release.loading import RELEASE

ROOT = RELEASE.parent
NUMBER = re.compile(
    r"(?:tensor-gateway:|tensor_gateway-|newTag: (?!latest)|^gateway |^(?:appVersion|version): )(latest|\d+\.\d+\.\d+)",
    re.MULTILINE,
)
FILES = [
    ROOT / "README.md",
    *sorted(path for path in (ROOT / "docs").rglob("*.md") if NUMBER.search(path.read_text())),
    *sorted(path for path in (ROOT / "deploy").rglob("*.yaml") if NUMBER.search(path.read_text())),
]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_name_this_version(path: Path) -> None:
    """Images, wheels and the chart that a file names are those of this version."""
    found = NUMBER.findall(path.read_text())
    assert found
    assert {__version__} == set(found)


def test_every_manifest_with_the_image_names_a_version() -> None:
    """The chart takes that of its application; all else has a tag."""
    names = {str(path.relative_to(ROOT / "deploy")) for path in FILES if "deploy" in path.parts}
    assert {"deployment.md", "first-steps.md", "sagemaker.md"} <= {path.name for path in FILES}
    assert {"compose.yaml", "helm/tensor-gateway/Chart.yaml", "kserve/runtime.yaml"} <= names
    assert {"kubernetes-jobs/replay.yaml", "kustomize/base/kustomization.yaml"} <= names
