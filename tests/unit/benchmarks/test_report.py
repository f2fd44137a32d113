"""The output of a run: the page, the chart, and the file for a resumed run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from benchmarks import chart
from benchmarks.chart import SHOWN, bars, curves, points, svg
from benchmarks.jobs import ENDPOINT, SIZE, all_jobs
from benchmarks.report import page
from benchmarks.rounds import Row
from benchmarks.store import Store, load

ROOT = Path(__file__).parents[3]
SVG = "{http://www.w3.org/2000/svg}"
ABOUT = {"date": "today", "cpu": "one", "cores": 2, "kernel": "6", "commit": "abc", "gateway": "1"}
ABOUT |= {
    "python": "3.11",
    "packages": {"numpy": "2"},
    "load": {"http": "wrk"},
    "load_average": 0.5,
}
RATIOS = {"gateway, reference": 5.0, "nginx proxy (nt)": 0.35, "kserve": 29.4}


def results() -> dict[str, Any]:
    """Return a run of every job that the chart shows."""
    rows = [
        Row(job, system, 1000.0, 50.0, RATIOS.get(system, 1.0), 0.1, 100.0, None, 150.0, 0)
        for job, (_, systems) in SHOWN.items()
        for system in ("gateway", *systems)
    ]
    return {
        "jobs": {
            "about": ABOUT,
            "words": "python -m benchmarks",
            "rows": [row.document() for row in rows],
            "table": "the table of jobs",
        }
    }


def test_the_chart_is_well_formed() -> None:
    """Every bar is within the picture, and has its system and its number."""
    root = ET.fromstring(svg(results()))  # noqa: S314  # our own
    width = float(root.attrib["width"])
    rectangles = list(root.iter(f"{SVG}rect"))
    bars = sum(len(systems) for _, systems in SHOWN.values())
    assert bars + 2 == len(rectangles)  # two of them in the legend
    for each in rectangles:
        assert 0 <= float(each.attrib["x"])
        assert float(each.attrib["x"]) + float(each.attrib["width"]) <= width
    texts = [each.text for each in root.iter(f"{SVG}text")]
    assert {title for title, _ in SHOWN.values()} | {"29", "0.35", "kserve"} <= set(texts)


def test_bars_begin_at_the_gateway() -> None:
    """Lower costs are left of 1, higher costs right of it."""
    root = ET.fromstring(svg(results()))  # noqa: S314  # our own
    (one,) = (
        float(each.attrib["x1"])
        for each in root.iter(f"{SVG}line")
        if "one" in each.attrib["class"]
    )
    less = [each for each in root.iter(f"{SVG}rect") if each.attrib["class"] == "nt"][1:]
    more = [each for each in root.iter(f"{SVG}rect") if each.attrib["class"] == "peer"][1:]
    ends = {round(float(each.attrib["x"]) + float(each.attrib["width"]), 1) for each in less}
    assert one in ends
    assert {one} == {float(each.attrib["x"]) for each in more}


def test_equal_results_have_equal_charts() -> None:
    """The chart does not depend on the day or the machine."""
    assert svg(results()) == svg(results())


def test_an_empty_chart_is_rejected() -> None:
    """Results without a job of the chart raise an error."""
    with pytest.raises(ValueError, match="no job that the chart shows"):
        svg({})


def test_missing_measurements_have_no_bar() -> None:
    """A job without its gateway, or a missing peer, has no bar."""
    sections = results()
    rows = sections["jobs"]["rows"]
    sections["jobs"]["rows"] = [row for row in rows if row["system"] != "kserve"][3:]
    found = bars(sections)
    assert "kserve" not in {bar.system for group in found.values() for bar in group}
    assert SHOWN["json-grpc small"][0] not in found


def test_the_curves_are_well_formed() -> None:
    """Each system has a line with a point for every job of the curve, within the picture."""
    sections = results()
    assert curves(sections) is None
    jobs = [job for job in all_jobs() if job.name.startswith((SIZE, ENDPOINT))]
    sections["jobs"]["rows"] += [
        Row(job.name, each.name, 1e3, 50.0 * at, 1.0, 0.1, 100.0, None, 150.0, 0).document()
        for job in jobs
        for at, each in enumerate(job.contenders, 1)
    ]
    assert ["1", "4", "16", "64"] == [label for label, _ in points(sections, ENDPOINT)["gateway"]]
    text = curves(sections)
    assert text is not None
    root = ET.fromstring(text)  # noqa: S314  # our own
    lines = [each.attrib["points"].split() for each in root.iter(f"{SVG}polyline")]
    assert [7, 7, 7, 7, 4, 4, 4] == [len(line) for line in lines]
    x = [float(point.split(",")[0]) for line in lines for point in line]
    assert (0 <= min(x), max(x) <= float(root.attrib["width"])) == (True, True)


def test_the_chart_shows_measured_systems() -> None:
    """Every job and system of the chart exists in the runner."""
    available = {job.name: {each.name for each in job.contenders} for job in all_jobs()}
    for job, (_, systems) in SHOWN.items():
        assert {*systems} <= available[job]


def test_the_page_has_command_and_machine() -> None:
    """Goals are first; each section has its command, its machine and its table."""
    text = page(results())
    assert text.index("## Goals") < text.index("## Jobs")
    assert {"`python -m benchmarks`", "the table of jobs"} <= set(text.splitlines())
    assert "today; one, 2 cores, Linux 6" in text
    assert text.index("## Jobs") < text.index("## Instructions of a request")
    assert "| json-grpc, first of a connection | " in text


def test_an_interrupted_run_can_be_resumed(tmp_path: Path) -> None:
    """Finished jobs are saved, and replace the last results only at the end."""
    path = tmp_path / "results.json"
    path.write_text('{"kept": {"rows": ["old"]}, "jobs": {"rows": ["old"]}}')
    Store(path, ABOUT, "first").put("jobs", [{"job": "a"}], "table", ["a"])
    assert ["old"] == load(path)["jobs"]["rows"]

    fresh = Store(path, ABOUT, "second")
    assert [] == fresh.done("jobs")
    resumed = Store(path, ABOUT, "second", resume=True)
    assert ["a"] == resumed.done("jobs")
    resumed.put("jobs", [{"job": "a"}, {"job": "b"}], "table", ["a", "b"])
    sections = resumed.finish()
    assert sections == load(path)
    assert [{"job": "a"}, {"job": "b"}] == sections["jobs"]["rows"]
    assert ("first", ["old"]) == (sections["jobs"]["words"], sections["kept"]["rows"])
    assert [path] == list(tmp_path.iterdir())


def test_a_run_without_a_file_saves_nothing() -> None:
    """Its sections are still available for the tables."""
    store = Store(None, ABOUT, "words")
    store.put("codecs", [], "table", ["codecs"])
    assert ["codecs"] == [*store.finish()]


@pytest.mark.parametrize("name", ["README.md", "benchmarks/README.md", "benchmarks/NOTES.md"])
def test_links_have_a_target(name: str) -> None:
    """Every file that a page links to exists, the chart among them."""
    file = ROOT / name
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", file.read_text(encoding="utf-8"))
    missing = [link for link in links if "://" not in link and not (file.parent / link).exists()]
    assert [] == missing


def test_the_readme_shows_the_chart() -> None:
    """The committed results produce the committed picture to the byte."""
    assert "](benchmarks/chart.svg)" in (ROOT / "README.md").read_text(encoding="utf-8")
    committed = (ROOT / "benchmarks" / "chart.svg").read_text(encoding="utf-8")
    assert chart.svg(load(ROOT / "benchmarks" / "results.json")) == committed
