"""The chart and the overlays, rendered once in a process."""

from __future__ import annotations

import subprocess
from functools import cache
from typing import Any

import pytest

from tests.unit.release.loading import load

charts = load("charts")
# The library parses all definitions of a version again for each document: 4 s in all.
_schemas = charts.kubernetes_validate.utils
_schemas.schema_contents = cache(_schemas.schema_contents)

Documents = dict[str, list[dict[str, Any]]]


@cache
def render_all() -> Documents:
    """Return the documents of each set of values and each overlay; skip where there is no helm."""
    try:
        charts.install_tools()
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"helm and kubectl cannot be installed: {error}")
    return {name: charts.render(command) for name, command in charts.sources().items()}


def render_chart(*words: str) -> list[dict[str, Any]]:
    """Return the documents of the chart with further arguments of helm."""
    render_all()
    documents: list[dict[str, Any]] = charts.render([*charts.sources()["helm"], *words])
    return documents


def of_kind(documents: list[dict[str, Any]], kind: str, name: str = "") -> dict[str, Any]:
    """Return the one document of a kind, or the one with a name."""
    (found,) = (
        each
        for each in documents
        if each["kind"] == kind and (not name or each["metadata"]["name"] == name)
    )
    return found


def config_of(parts: list[dict[str, Any]]) -> str | None:
    """Return the configuration in a set of documents; None for none."""
    maps = (part["data"] for part in parts if part["kind"] == "ConfigMap")
    return next((data["gateway.yaml"] for data in maps if "gateway.yaml" in data), None)
