"""The site of the documentation: strict, with generated pages, and no asset of another host."""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest

from gateway import __version__
from gateway.cli.commands import COMMANDS
from gateway.ir.errors import ErrorCode
from gateway.telemetry.log.access_log import FIELDS
from gateway.telemetry.names import METRICS
from tests.unit.release.loading import load

ROOT = Path(__file__).parents[2]
ASSET = re.compile(
    r"<(?:script|img|iframe|source)[^>]*\ssrc=[\"']?(https?:)?//|<link[^>]*\srel=[\"']?"
    r"(?:stylesheet|preload|icon|preconnect)[\"']?[^>]*\shref=[\"']?(https?:)?//"
)
pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


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


def test_a_page_that_is_not_there_fails_the_build(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A wrong entry of the navigation and a wrong anchor are warnings, and warnings are failures."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# Home\n\n[a section](#nowhere)\n")
    settings = (ROOT / "mkdocs.yml").read_text("utf-8").partition("nav:\n  - Home")[0]
    settings = settings.replace("build/docs", str(tmp_path / "docs"))
    settings = settings.replace("site_dir: site", f"site_dir: {tmp_path / 'site'}")
    (tmp_path / "mkdocs.yml").write_text(
        f"{settings}nav: [{{Home: index.md}}, {{Gone: gone.md}}]\n"
    )
    load("publisher")  # finds the folder
    # The name is also that of a module of Python.
    build = runpy.run_path(str(ROOT / "release" / "site.py"))["build"]
    assert 0 != build(tmp_path / "mkdocs.yml")
    shown = capfd.readouterr().err
    assert "gone.md" in shown
    assert "#nowhere" in shown


def test_every_entry_of_the_navigation_is_a_page(site: Path) -> None:
    """No entry leads to a source, and each local link leads to a file of the site."""
    wrong = []
    for page in site.rglob("*.html"):
        if page.name == "404.html":  # its links begin at the root of the host
            continue
        links = re.findall(r"<a[^>]*\shref=\"([^\"#?]+)", page.read_text("utf-8"))
        wrong += [
            f"{page.relative_to(site)}: {link}"
            for link in links
            if not re.match(r"\w+:", link) and not (page.parent / unquote(link)).is_file()
        ]
    assert [] == wrong


def test_generated_pages_describe_this_version(site: Path) -> None:
    """Commands, errors, metrics and log events come from the code."""
    assert f"version {__version__}" in text_of(site / "index.html")
    commands = text_of(site / "reference" / "cli.html")
    assert {name for name in COMMANDS if f"gateway {name}" not in commands} == set()
    errors = text_of(site / "reference" / "errors.html")
    assert {code.value for code in ErrorCode if code.value not in errors} == set()
    assert {"UNAUTHENTICATED", "RESOURCE_DOES_NOT_EXIST", "model_not_found"} <= set(errors.split())
    metrics = text_of(site / "reference" / "metrics.html")
    assert {each.name for each in METRICS if each.name not in metrics} == set()
    assert {each.name for each in METRICS if ", ".join(each.labels) not in metrics} == set()


def test_each_page_names_the_version(site: Path) -> None:
    """A reader who comes from a search sees what the page describes."""
    pages = sorted(site.rglob("*.html"))
    assert [] == [page.name for page in pages if f"Version {__version__}." not in text_of(page)]


def test_each_key_of_the_configuration_has_a_page(site: Path) -> None:
    """The page of a top key has all keys below it."""
    folder = site / "reference" / "configuration"
    schema = json.loads((ROOT / "gateway" / "config" / "schema.json").read_text())
    assert {f"{name}.html" for name in schema["properties"]} == {
        path.name for path in folder.iterdir()
    }
    assert "drain" in text_of(folder / "lifecycle.html")
    migrations = text_of(folder / "migrations.html")
    assert "migrations.NAME.cutover.guards" in migrations
    assert "latency.p99_ratio" in migrations


def test_the_log_events_have_their_fields(site: Path) -> None:
    """Lines about calls, cut-overs and reloads are there, whoever writes them."""
    rows = re.findall(
        r"<tr>\s*<td>(.*?)</td>\s*<td>(.*?)</td>\s*<td>(.*?)</td>",
        (site / "reference" / "log-events.html").read_text("utf-8"),
    )
    found = {
        event: (level, set(re.findall(r"<code>(.*?)</code>", names)))
        for event, level, names in rows
    }
    level, names = found["call"]
    assert "info, warning" == level
    assert {*FIELDS} - {"timestamp", "event", "listener"} <= names
    for event in ("rejected", "configuration reloaded", "cutover step", "hedging paused"):
        assert found[event][1]


@pytest.mark.parametrize(
    "line", ['log.info(f"call {x}")', 'log.info("new event", **keys)', "write = log.info"]
)
def test_a_line_of_the_log_that_the_page_would_lack_fails_the_build(line: str) -> None:
    """The event and the names of its fields must be readable without a run."""
    with pytest.raises(ValueError, match=r"x\.py:1: "):
        list(load("log_events").written(line, "x.py"))
