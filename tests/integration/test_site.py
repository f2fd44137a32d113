"""The site of the documentation: strict, with generated pages, and no asset of another host."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gateway import __version__
from gateway.cli.commands import COMMANDS
from gateway.ir.errors import ErrorCode

ROOT = Path(__file__).parents[2]
ASSET = re.compile(
    r"<(?:script|img|iframe|source)[^>]*\ssrc=[\"']?(https?:)?//|<link[^>]*\srel=[\"']?"
    r"(?:stylesheet|preload|icon|preconnect)[\"']?[^>]*\shref=[\"']?(https?:)?//"
)
pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def site() -> Path:
    command = [sys.executable, str(ROOT / "release" / "site.py")]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (0, "") == (done.returncode, done.stderr), done.stdout
    return ROOT / "site"


def text_of(page: Path) -> str:
    return re.sub(r"<[^>]+>", "", page.read_text("utf-8"))


def test_no_page_loads_from_another_host(site: Path) -> None:
    """Fonts, scripts, styles and pictures are files of the site."""
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 40
    assert [] == [
        f"{page.relative_to(site)}: {found[0]}"
        for page in pages
        for found in ASSET.finditer(page.read_text("utf-8"))
    ]
    styles = [path.read_text("utf-8") for path in site.rglob("*.css")]
    assert styles
    assert not any(re.search(r"url\(['\"]?(https?:)?//", style) for style in styles)


def test_generated_pages_describe_this_version(site: Path) -> None:
    """Commands, errors, metrics and log events come from the code."""
    assert f"version {__version__}" in text_of(site / "index.html")
    commands = text_of(site / "reference" / "cli.html")
    assert {name for name in COMMANDS if f"gateway {name}" not in commands} == set()
    errors = text_of(site / "reference" / "errors.html")
    assert {code.value for code in ErrorCode if code.value not in errors} == set()
    assert {"UNAUTHENTICATED", "RESOURCE_DOES_NOT_EXIST", "model_not_found"} <= set(errors.split())
    assert "gateway_route_in_flight" in text_of(site / "reference" / "metrics.html")
    assert "configuration reloaded" in text_of(site / "reference" / "log-events.html")
