"""The report: its contents, the same bytes each time, and safety from hostile texts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gateway.cli.report.blocks import html_page, markdown_page
from gateway.ir.calls import InferRequest, InferResponse
from gateway.ir.context import Context, ModelRef
from gateway.ir.tensor import Tensor, array_tensor, items_tensor
from gateway.ir.texts import utc_text, visible
from gateway.migration.captures.capture import Capture
from gateway.migration.captures.sampling import CaptureOptions
from gateway.migration.commands.replay import shown_command
from gateway.migration.commands.report import server_row
from gateway.migration.compare.conditions import parse_fail_unless
from gateway.migration.compare.rules import OutputRules
from gateway.migration.compare.statistics import confidence_sequence
from gateway.migration.evidence.guards import Guards
from gateway.migration.replay.differences import compare_captures
from gateway.migration.report.report import (
    RecordedSide,
    ReportEvidence,
    ReportFacts,
    report_sections,
)
from gateway.migration.settings import GuardsConfig, MismatchGuardConfig
from gateway.shadow.records.privacy import Privacy
from tests.unit.migration.captures.kit import LocalCapture, recorder
from tests.unit.shadow.kit import recordable

HOSTILE = "<script>alert(1)</script>|`x`](javascript:alert(1))\n# \u202ehttp://evil www.evil @all"
SECOND_US = 1_000_000


def numbers(*values: float, name: str = "y") -> Tensor:
    return array_tensor(name, np.array(values, np.float32))


def recorded(
    directory: Path,
    replies: Sequence[Tensor],
    privacy: Privacy | None = None,
    *,
    prefix: str = "r",
    **fields: Any,
) -> Capture:
    """Return a capture of one call a second with these replies."""
    made = recorder(directory, privacy or Privacy(payload="full", parameters=True))
    for number, output in enumerate(replies):
        context = Context(protocol="oip.http", request_id=f"{prefix}{number}")
        request = InferRequest(
            model=ModelRef("m"), context=context, inputs=(numbers(1, 2, 3, name="x"),)
        )
        reply = InferResponse(model=ModelRef("m"), outputs=(output,))
        source = recordable(
            number * SECOND_US, request=request, context=context, items=[(1, reply)], **fields
        )
        assert made.samples("m", f"r{number}")
        made.put(source)
    made.close()
    return Capture(directory)


def facts_of(old: Capture, new: Capture, **options: Any) -> ReportFacts:
    evidence = ReportEvidence()
    summary = compare_captures(old, new, OutputRules(), pytest.fail, evidence.add)
    values = {"title": "Report", "verdict": "passed"} | options
    return ReportFacts(summary=summary, evidence=evidence, **values)


def markdown_of(facts: ReportFacts) -> str:
    return markdown_page(facts.title, report_sections(facts)).decode()


class _Page(HTMLParser):
    """Collects tags, attributes and texts."""

    def __init__(self, page: bytes) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.names: set[str] = set()
        self.texts: list[str] = []
        self.feed(page.decode())
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.names |= {name for name, _ in attributes}

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


TAGS = {
    "html", "head", "meta", "title", "style", "body", "h1", "h2", "h3", "p", "div", "table",
    "thead", "tbody", "tr", "td", "th", "figure", "figcaption", "svg", "polygon", "polyline",
    "circle", "text", "rect",
}  # fmt: skip
ATTRIBUTES = {
    "lang", "charset", "http-equiv", "content", "name", "class", "viewbox", "role", "points", "fill",
    "x", "y", "cx", "cy", "r", "width", "height", "text-anchor",
}  # fmt: skip


def test_hostile_texts_are_escaped(tmp_path: Path) -> None:
    """Names, agents and elements of clients add no tag, attribute, link or line."""
    values: dict[str, Any] = {"agent": HOSTILE, "client": HOSTILE}
    replies = [items_tensor(HOSTILE, (1,), [HOSTILE.encode()]), numbers(1, 2, name=HOSTILE)]
    old = recorded(tmp_path / "a", replies, **values)
    new = recorded(tmp_path / "b", [replies[0], numbers(1, 3, name=HOSTILE)], **values)
    facts = facts_of(old, new, title=HOSTILE, lost={HOSTILE: 1}, method=[(HOSTILE, HOSTILE)])
    page = _Page(html_page(facts.title, report_sections(facts)))
    assert page.tags <= TAGS
    assert page.names <= ATTRIBUTES
    assert visible(HOSTILE) in page.texts
    text = markdown_of(facts)
    escaped = (
        r"\<script\>alert(1)\</script\>\|\`x\`\](javascript:alert(1))\\n\# \\u202ehttp:\//evil "
        r"www\.evil \@all"
    )
    assert f"# {escaped}\n" in text
    assert text.count("javascript") == text.count(r"\](javascript") > 8
    assert re.search(r"(?<!\\)[<>`]", text) is None
    widths = {line.replace(r"\|", "").count("|") for line in text.splitlines() if line[:1] == "|"}
    assert widths == {3, 6, 10, 11}  # as many cells as titles


def test_the_page_loads_no_other_resource(tmp_path: Path) -> None:
    """Its content security policy forbids scripts and external resources."""
    capture = recorded(tmp_path, [numbers(1)])
    page = html_page("Report", report_sections(facts_of(capture, capture)))
    assert b"content=\"default-src 'none'; style-src 'unsafe-inline'\"" in page
    assert not {b"href", b"src=", b"@import", b"url("} & {
        each for each in (b"href", b"src=", b"@import", b"url(") if each in page
    }


def test_the_worst_samples_differ_most(tmp_path: Path) -> None:
    """Structure is worse than values, and larger errors are worse than smaller ones."""
    old = recorded(tmp_path / "a", [numbers(0.0, 0.0)] * 30)
    others = [numbers(0.0, float(number)) for number in range(29)]
    new = recorded(tmp_path / "b", [*others, numbers(0.0)])
    evidence = facts_of(old, new).evidence
    places = [int(section.title.rpartition("-")[2], 16) - 1 for section in evidence.worst]
    assert places == [29, *range(28, 19, -1)]
    assert len(evidence.random) == 10
    assert "structure: y: shape [2] against [1]" in str(evidence.worst[0].blocks[0])


def test_random_samples_do_not_depend_on_the_order(tmp_path: Path) -> None:
    """The hash of the id selects them."""
    capture = recorded(tmp_path, [numbers(1.0, 2.0)] * 50)
    calls: list[Any] = []
    compare_captures(capture, capture, OutputRules(), pytest.fail, calls.append)
    forwards, backwards = ReportEvidence(), ReportEvidence()
    for evidence, ordered in ((forwards, calls), (backwards, calls[::-1])):
        for call in ordered:
            evidence.add(call)
    titles = [section.title for section in forwards.random]
    assert titles == [section.title for section in backwards.random]
    assert titles != sorted(titles)
    assert forwards.worst == []


def test_the_agreement_is_plotted_over_time(tmp_path: Path) -> None:
    """Each point has the calls of its interval, and a band around its share."""
    old = recorded(tmp_path / "a", [numbers(1.0)] * 80)
    new = recorded(tmp_path / "b", [numbers(1.0)] * 40 + [numbers(2.0)] * 40)
    text = markdown_of(facts_of(old, new))
    assert "in 40 equal parts" in text
    start = utc_text(next(old.calls()).call.at_us + 20 * 1_975_001)  # the 21st part of 79.000001 s
    assert f"Least agreement: 0.00% from {start} on." in text
    assert "80 calls compared: 40 differ." in text


def test_a_report_begins_with_what_the_gateway_refuses(tmp_path: Path) -> None:
    """It names the callers, which fail on the first day, before anything that servers did."""
    fields: dict[str, Any] = {"code": "invalid_argument", "is_refused": True, "kind": ""}
    old = recorded(tmp_path / "a", [numbers(1.0)] * 3, client="10.0.0.9", **fields)
    text = markdown_of(facts_of(old, old))
    first = text.index("3 of 3 calls were refused by the gateway")
    assert first < text.index("10.0.0.9") < text.index("calls failed at the new server")


def test_only_recorded_elements_are_shown(tmp_path: Path) -> None:
    """Names and values of unrecorded inputs are not in the report."""
    hidden = Privacy(payload="full", tensors={"x": "none"}, parameters=True)
    replies = [items_tensor("t", (2,), [b"caf\xc3\xa9", b"\xff"])]
    without = recorded(tmp_path / "a", replies, hidden)
    text = markdown_of(facts_of(without, without))
    assert "| input |" not in text
    assert '| old | t | BYTES | \\[2\\] | "café", "\\\\xff" |' in text
    whole = recorded(tmp_path / "b", replies)
    assert "| input | x | FP32 | \\[3\\] | 1, 2, 3 |" in markdown_of(facts_of(whole, whole))


def test_extreme_numbers_are_not_drawn(tmp_path: Path) -> None:
    """NaN and infinities are shown as text, and not in the plots."""
    values = [numbers(float("nan"), float("inf")), numbers(0.0, -0.0)]
    capture = recorded(tmp_path, values)
    facts = facts_of(capture, capture)
    assert "nan, inf" in markdown_of(facts)
    page = html_page("Report", report_sections(facts))
    assert b"nan," not in page.replace(b"<td>nan, inf</td>", b"")


def test_a_report_without_calls_has_no_plots(tmp_path: Path) -> None:
    """Two captures without a common call have no plot, times or callers."""
    old = recorded(tmp_path / "a", [numbers(1.0)])
    new = recorded(tmp_path / "b", [numbers(1.0)], prefix="other")
    facts = facts_of(old, new, verdict="none")
    assert facts.summary.missing == 2
    text = markdown_of(facts)
    assert "0 of 0 calls failed at the new server. No reply was compared." in text
    assert "No call has times of both servers." in text
    assert b"<svg" not in html_page(facts.title, report_sections(facts))


def test_times_outside_of_the_calendar_are_unknown() -> None:
    """A damaged capture may contain any number."""
    assert utc_text(0) == "1970-01-01 00:00:00"
    assert utc_text(1 << 62) == "?"


def test_a_report_names_both_servers_and_the_command(tmp_path: Path) -> None:
    """Addresses, versions, models, dates and the command are those of the recordings."""
    upstreams = {"legacy": "trtis+http://old:8000"}
    made = LocalCapture(CaptureOptions(directory=tmp_path / "a", upstreams=upstreams, min_free=0.0))
    for number in range(3):
        assert made.samples("fraud", "r")
        made.put(recordable(number, target="legacy/fraud:7"))
    made.close()
    old = RecordedSide()
    for call in Capture(tmp_path / "a").calls():
        old.add(call.call)
    notes = Capture(tmp_path / "a").description()
    day = "from 2023-11-14 22:13:20 to 2023-11-14 22:13:20 UTC"
    assert server_row("old", old, notes) == (
        "old",
        "legacy/fraud:7 (trtis+http://old:8000)",
        "unknown",
        "fraud:7",
        f"3, {day}",
    )
    replayed = {
        "replayed": "oip+grpc://new:8001",
        "server": "triton 2.50.0",
        "started": "2026-11-29 10:00:00",
    }
    assert server_row("new", old, replayed) == (
        "new",
        "oip+grpc://new:8001",
        "triton 2.50.0",
        "fraud:7",
        "3, sent from 2026-11-29 10:00:00 UTC on",
    )
    capture = recorded(tmp_path / "b", [numbers(1)])
    command = "gateway replay a --against oip+grpc://new:8001"
    facts = facts_of(capture, capture, servers=[server_row("old", old, notes)], command=command)
    text = markdown_of(facts)
    assert "| old | legacy/fraud:7 (trtis+http:" in text
    assert "Command: gateway replay a" in text


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["gateway", "replay", "a b"], "gateway replay 'a b'"),
        (["--header", "authorization=Bearer s3cret", "x"], "--header authorization=... x"),
        (["--header=authorization=s3cret"], "--header=authorization=..."),
    ],
)
def test_the_command_has_no_values_of_headers(arguments: list[str], expected: str) -> None:
    """A value may be a credential."""
    assert expected == shown_command(arguments)


def test_a_page_has_one_bound_for_one_count(tmp_path: Path) -> None:
    """The guard, the first sentence, the output and the condition of 8 of 450 calls agree."""
    old = recorded(tmp_path / "a", [numbers(1.0)] * 40)
    new = recorded(tmp_path / "b", [numbers(1.0)] * 30 + [numbers(2.0)] * 10)
    facts = facts_of(old, new)
    low, high = confidence_sequence(10, 40)
    condition = parse_fail_unless("mismatch<1%@95%")
    guards = Guards(GuardsConfig(mismatch=MismatchGuardConfig(below=0.5), errors="off"))
    compare_captures(old, new, OutputRules(), pytest.fail, guards=guards)
    conditions = [(condition.text, condition.failure(facts.summary))]
    text = markdown_of(replace(facts, guards=guards.verdicts(), conditions=conditions))
    assert f"between {low:.3%} and {high:.3%}" in text
    assert f"{low * 100:.3f}-{high:.3%}" in text
    assert f"10 of 40, at most {high:.3%}" in text
    others = set(re.findall(r"[0-9]+\.[0-9]+%", text))
    assert others == {f"{high:.3%}", f"{low:.3%}", "50.000%", "1.000%", "25.00%", "0.00%"}
