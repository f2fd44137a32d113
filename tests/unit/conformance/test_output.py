"""What was found, for people, as JSON, as JUnit and as a page."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest

from gateway.conformance.findings import (
    Findings,
    PairFinding,
    PairVerdict,
    RuleFinding,
    Subject,
    Verdict,
)
from gateway.conformance.output import (
    differences,
    json_document,
    junit_document,
    report_page,
    text_page,
)

SUBJECT = Subject("grpc://127.0.0.1:8001", "oip+grpc", "triton", "2.51.0")
KEPT = RuleFinding(
    "infer.fp32.binary",
    "infer",
    Verdict.KEEPS,
    "the input",
    "the input",
    "v2, Tensor Data",
    "curl a",
)
BROKEN = replace(KEPT, rule="infer.fp16.binary", verdict=Verdict.DIFFERS, found="1.0 for 1.5")
UNCLEAR = replace(
    KEPT, rule="health.live", group="health", verdict=Verdict.CANNOT_TELL, found="no reply in 5 s"
)
OPEN = replace(KEPT, rule="infer.empty", verdict=Verdict.SAYS_NOTHING, found="status 400")
WORKS = PairFinding("m", "oip+http", PairVerdict.WORKS, (), "", "curl b")
LOSES = PairFinding("m", "grps+http", PairVerdict.LOSES, ("request id", "classes"), "", "curl c")
ALSO_LOSES = replace(LOSES, protocol="grps+grpc", request="gateway infer d")
REFUSED = PairFinding(
    "m", "mlflow+http", PairVerdict.REFUSED, ("no model",), "listeners[].default_model", ""
)
FOUND = Findings(SUBJECT, (KEPT, BROKEN, UNCLEAR, OPEN), (WORKS, LOSES, ALSO_LOSES, REFUSED))
OTHER = Findings(
    replace(SUBJECT, url="http://new:8000", protocol="oip+http", server=""),
    (KEPT, replace(BROKEN, verdict=Verdict.KEEPS, found="the input"), UNCLEAR),
    (),
)

HOSTILE = "\x1b[2J\x00\u202e\ud800\uffff\x85 <script>&amp;\"' ]]> | %s"
"""What controls terminals, reverses text, is no XML, or has signs of HTML."""


def test_people_see_first_what_differs() -> None:
    """The counts come first, then rules that differ, groups, and outcomes with their protocols."""
    expected = """\
grpc://127.0.0.1:8001: triton 2.51.0, oip+grpc: 1 keeps, 1 differs, 1 cannot tell, \
1 says nothing, 1 works, 2 loses, 1 refused

differs: infer.fp16.binary
  expected  the input
  found     1.0 for 1.5
  source    v2, Tensor Data
  request   curl a

cannot tell  rules        why
          1  health.live  no reply in 5 s

group   keeps  differs  cannot tell  says nothing
infer       1        1            0             1
health      0        0            1             0

model  verdict  client protocols      key                        what
m      refused  mlflow+http           listeners[].default_model  no model
m      loses    grps+http, grps+grpc                             request id; classes
m      works    oip+http

Requests to try, once `gateway serve --upstream URL` runs, are in --output json and --report FILE."""
    assert expected == text_page(FOUND)


def test_people_see_few_rules_of_each_reason() -> None:
    """JSON and the page have the names of all."""
    unclear = RuleFinding("", "infer", Verdict.CANNOT_TELL, "", "no model", "", "")
    rules = [replace(unclear, rule=f"infer.{number}") for number in range(5)]
    text = text_page(Findings(FOUND.subject, rules, ()))
    assert "          5  infer.0, infer.1, 3 more  no model" in text


def test_people_see_the_differences_of_two_servers() -> None:
    """A rule that one server keeps and the other does not; the others are no difference."""
    end = """
rule               first    second  found at the first  found at the second
infer.fp16.binary  differs  keeps   1.0 for 1.5         the input"""
    assert text_page(FOUND, OTHER).endswith(end)
    assert text_page(FOUND, FOUND).endswith("\n\nThe servers answer the rules alike.")


def test_json_has_the_documented_form() -> None:
    """Rules, pairs and counts have their keys in their order."""
    document = json.loads(json.dumps(json_document(FOUND)))
    assert {
        "url": "grpc://127.0.0.1:8001",
        "protocol": "oip+grpc",
        "server": "triton",
        "version": "2.51.0",
    } == document["subject"]
    assert {
        "id": "infer.fp16.binary",
        "group": "infer",
        "verdict": "differs",
        "expected": "the input",
        "found": "1.0 for 1.5",
        "source": "v2, Tensor Data",
        "request": "curl a",
    } == document["rules"][1]
    assert {
        "model": "m",
        "protocol": "grps+http",
        "verdict": "loses",
        "what": ["request id", "classes"],
        "key": "",
        "request": "curl c",
    } == document["pairs"][1]
    assert {
        "keeps": 1,
        "differs": 1,
        "cannot tell": 1,
        "says nothing": 1,
        "works": 1,
        "loses": 2,
        "refused": 1,
    } == document["counts"]


def test_json_has_the_differences_of_two_servers() -> None:
    """The second document stands within the first one, with the rules that differ."""
    document = json.loads(json.dumps(json_document(FOUND, OTHER)))
    assert document["against"] == json.loads(json.dumps(json_document(OTHER)))
    assert [
        {
            "id": "infer.fp16.binary",
            "verdicts": ["differs", "keeps"],
            "found": ["1.0 for 1.5", "the input"],
        },
    ] == document["differences"]
    assert not differences(FOUND, FOUND)


def test_junit_has_a_case_for_each_rule_and_pair() -> None:
    """A rule that differs is a failure; what cannot be told, or is refused by name, is skipped."""
    root = ET.fromstring(junit_document(FOUND))  # noqa: S314  # our own
    suite = root[0]
    counts = {name: suite.get(name) for name in ("tests", "failures", "skipped")}
    assert {"tests": "8", "failures": "1", "skipped": "3"} == counts
    cases = {
        f"{case.get('classname')} {case.get('name')}": [
            (each.tag, each.get("message"), each.text) for each in case
        ]
        for case in suite
    }
    details = "expected: the input\nfound: {}\nsource: v2, Tensor Data\nrequest: curl a"
    assert {
        "oip+grpc.infer infer.fp32.binary": [],
        "oip+grpc.infer infer.fp16.binary": [
            ("failure", "differs: 1.0 for 1.5", details.format("1.0 for 1.5"))
        ],
        "oip+grpc.health health.live": [
            ("skipped", "cannot tell: no reply in 5 s", details.format("no reply in 5 s"))
        ],
        "oip+grpc.infer infer.empty": [
            ("skipped", "says nothing: status 400", details.format("status 400"))
        ],
        "pairs.m oip+http": [],
        "pairs.m grps+http": [("system-out", None, "loses\nrequest id\nclasses\ncurl c")],
        "pairs.m grps+grpc": [("system-out", None, "loses\nrequest id\nclasses\ngateway infer d")],
        "pairs.m mlflow+http": [("skipped", "refused", "no model\nlisteners[].default_model")],
    } == cases


def test_junit_fails_for_each_difference_of_two_servers() -> None:
    """The third suite has a case for each rule that both servers were asked."""
    suites = ET.fromstring(junit_document(FOUND, OTHER))  # noqa: S314  # our own
    assert ["8", "3", "3"] == [suite.get("tests") for suite in suites]
    assert "grpc://127.0.0.1:8001 against http://new:8000" == suites[2].get("name")
    failed = {case.get("name"): case[0].get("message") for case in suites[2] if len(case)}
    assert {
        "infer.fp16.binary": "differs at the first server, keeps at the second",
    } == failed


def test_the_page_shows_requests_in_full() -> None:
    """A line of a request is longer than the texts of a table, and can be copied."""
    long = "curl " + "x" * 3_000
    page = report_page(replace(FOUND, rules=(replace(BROKEN, request=long),))).decode()
    assert f"<pre>{long}</pre>" in page
    assert (
        "<td>m</td><td>mlflow+http</td><td>refused</td><td>listeners[].default_model</td>" in page
    )


@pytest.mark.parametrize(
    "write",
    [
        lambda *found: text_page(*found).encode(),
        junit_document,
        report_page,
        lambda *found: json.dumps(json_document(*found)).encode(),
    ],
    ids=["text", "junit", "html", "json"],
)
def test_texts_of_servers_control_nothing(write: Callable[..., bytes]) -> None:
    """What a server writes stays text in a terminal, in XML and in HTML; equal findings are equal."""
    rule = RuleFinding(*(HOSTILE,) * 2, Verdict.DIFFERS, *(HOSTILE,) * 4)
    pair = PairFinding(HOSTILE, HOSTILE, PairVerdict.LOSES, (HOSTILE,), HOSTILE, HOSTILE)
    found = Findings(Subject(*(HOSTILE,) * 4), (rule,), (pair,))
    written = write(found, replace(found, rules=(replace(rule, verdict=Verdict.KEEPS),)))
    text = written.decode()
    assert not {each for each in text if not each.isprintable()} - {"\n"}
    if write in (junit_document, report_page):
        assert "<script>" not in text
    if write is junit_document:
        ET.fromstring(written)  # noqa: S314  # our own
    assert written == write(found, replace(found, rules=(replace(rule, verdict=Verdict.KEEPS),)))
