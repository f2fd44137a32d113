"""The lowest versions accepted by a plain install are those with fixes of known vulnerabilities."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2] / "pyproject.toml"

# Advisories are on the reliability page, section 2. A higher bound is as good.
LOWEST = {
    "aiohttp": "3.14.5",
    "grpcio": "1.84",
    "protobuf": "5.29.6",
    "httptools": "0.7",
    "hpack": "4",
    "pyyaml": "6.0.1",
}
BROKEN = {"protobuf": ("6.30.*", "6.31.*", "6.32.*", "6.33.0", "6.33.4")}


def required() -> dict[str, str]:
    """Return the version specifiers of the direct dependencies, by name."""
    requirements = tomllib.loads(PROJECT.read_text())["project"]["dependencies"]
    found = (re.match(r"([A-Za-z0-9_.-]+)\s*([^;]*)", each) for each in requirements)
    return {match[1].lower(): match[2].strip() for match in found if match is not None}


def number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


@pytest.mark.parametrize("name", LOWEST)
def test_lowest_versions_have_no_known_vulnerability(name: str) -> None:
    """The lower bound of a dependency is a version with the fix, or later."""
    bounds = re.findall(r">=([0-9.]+)", required()[name])
    assert len(bounds) == 1
    assert number(bounds[0]) >= number(LOWEST[name])


@pytest.mark.parametrize("name", BROKEN)
def test_unfixed_later_versions_are_excluded(name: str) -> None:
    """Later release lines are excluded up to their own fix."""
    excluded = re.findall(r"!=([0-9.*]+)", required()[name])
    assert set(BROKEN[name]) <= set(excluded)
