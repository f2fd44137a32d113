"""What a certification found, for people, for JSON and JUnit, and as a page.

Texts come from servers: each form escapes what would control a terminal, and its own signs.
"""

import enum
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any, Final
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from gateway.cli.output import format_table
from gateway.cli.report.blocks import Block, Command, Section, TextTable, html_page
from gateway.conformance.findings import (
    Findings,
    PairVerdict,
    RuleFinding,
    Subject,
    Verdict,
)
from gateway.ir.texts import printable


class CertifyFormat(enum.Enum):
    """The format in which `certify` prints what it found."""

    TEXT = "text"
    JSON = "json"
    JUNIT = "junit"


_ALIKE: Final = "The servers answer the rules alike."
_ORDER: Final = (Verdict.DIFFERS, Verdict.CANNOT_TELL, Verdict.KEEPS, Verdict.SAYS_NOTHING)
"""What to look at first."""
_FEW: Final = 2


def differences(one: Findings, other: Findings) -> list[tuple[RuleFinding, RuleFinding]]:
    """Return what came of the rules that both servers were asked and answer otherwise."""
    by_rule = {each.rule: each for each in other.rules}
    both = [(each, by_rule[each.rule]) for each in one.rules if each.rule in by_rule]
    return [(each, its) for each, its in both if each.verdict is not its.verdict]


def json_document(found: Findings, against: Findings | None = None) -> dict[str, Any]:
    """Return the findings as JSON values; of two servers with their differences."""
    document: dict[str, Any] = {
        "subject": asdict(found.subject),
        "rules": [_rule(each) for each in found.rules],
        "pairs": [asdict(each) for each in found.pairs],
        "counts": _counts(found),
    }
    if against is not None:
        document["against"] = json_document(against)
        document["differences"] = [
            {
                "id": each.rule,
                "verdicts": [str(each.verdict), str(its.verdict)],
                "found": [each.found, its.found],
            }
            for each, its in differences(found, against)
        ]
    return document


def _rule(found: RuleFinding) -> dict[str, str]:
    fields = asdict(found)
    return {"id": fields.pop("rule"), **fields}


def _counts(found: Findings) -> dict[str, int]:
    """Return the counts of the verdicts that were given, in the order of the verdicts."""
    counts = found.counts()
    return {str(each): counts[each] for each in (*Verdict, *PairVerdict) if each in counts}


def _counts_text(found: Findings) -> str:
    texts = [f"{count} {verdict}" for verdict, count in _counts(found).items()]
    return ", ".join(texts) or "nothing was asked"


def _title(subject: Subject) -> str:
    server = " ".join(filter(None, (subject.server, subject.version))) or "a server without a name"
    return f"{subject.url}: {server}, {subject.protocol}"


def text_page(found: Findings, against: Findings | None = None) -> str:
    """Return the findings for people: what to look at first, then counts and client protocols."""
    parts = list(_server_text(found))
    if against is not None:
        parts += [*_server_text(against), *_shown(_difference_table(found, against))]
        if not differences(found, against):
            parts.append(_ALIKE)
    return "\n\n".join(parts)


def _server_text(found: Findings) -> Iterator[str]:
    yield printable(f"{_title(found.subject)}: {_counts_text(found)}")
    yield from (_rule_text(each) for each in found.rules if each.verdict is Verdict.DIFFERS)
    for table in (_unclear_table(found), _group_table(found), _pair_table(found)):
        yield from _shown(table)
    if found.pairs:
        yield (
            "Requests to try, once `gateway serve --upstream URL` runs, are in --output json and "
            "--report FILE."
        )


def _shown(table: TextTable) -> Iterator[str]:
    if table.rows:
        yield format_table(table.head, table.rows, right=table.right)


def _rule_text(found: RuleFinding) -> str:
    lines = [f"{found.verdict}: {printable(found.rule)}"]
    lines += [f"  {name:8}  {printable(text)}" for name, text in _details(found) if text]
    return "\n".join(lines)


def _details(found: RuleFinding) -> tuple[tuple[str, str], ...]:
    return (
        ("expected", found.expected),
        ("found", found.found),
        ("source", found.source),
        ("request", found.request),
    )


def _unclear_table(found: Findings) -> TextTable:
    """Return why nothing can be told of rules."""
    rules: dict[str, list[str]] = {}
    for each in found.rules:
        if each.verdict is Verdict.CANNOT_TELL:
            rules.setdefault(each.found, []).append(each.rule)
    rows = [(str(len(names)), _few(names), why) for why, names in rules.items()]
    return TextTable(("cannot tell", "rules", "why"), rows, right=(0,))


def _few(names: Sequence[str]) -> str:
    """Return the first names; JSON and the page have all."""
    rest = len(names) - _FEW
    return ", ".join(names[:_FEW]) + (f", {rest} more" if rest > 0 else "")


def _difference_table(found: Findings, against: Findings) -> TextTable:
    rows = [
        (each.rule, str(each.verdict), str(its.verdict), each.found, its.found)
        for each, its in differences(found, against)
    ]
    head = ("rule", "first", "second", "found at the first", "found at the second")
    return TextTable(head, rows)


def _group_table(found: Findings) -> TextTable:
    """Return how often each verdict was given in each group of rules."""
    counts: dict[str, dict[Verdict, int]] = {}
    for each in found.rules:
        group = counts.setdefault(each.group, dict.fromkeys(Verdict, 0))
        group[each.verdict] += 1
    rows = [(name, *(str(each[verdict]) for verdict in Verdict)) for name, each in counts.items()]
    return TextTable(("group", *map(str, Verdict)), rows, right=range(1, 1 + len(Verdict)))


def _pair_table(found: Findings) -> TextTable:
    """Return the outcomes of each model, the worst first, each with the protocols that have it."""
    rows: list[tuple[str, ...]] = []
    for model in dict.fromkeys(each.model for each in found.pairs):
        own = [each for each in found.pairs if each.model == model]
        protocols: dict[tuple[PairVerdict, str, str], list[str]] = {}
        for each in sorted(
            own, key=lambda pair: list(PairVerdict).index(pair.verdict), reverse=True
        ):
            outcome = (each.verdict, each.key, "; ".join(each.what))
            protocols.setdefault(outcome, []).append(each.protocol)
        for (verdict, key, what), names in protocols.items():
            shown = "all" if len(names) == len(own) else ", ".join(names)
            rows.append((model, str(verdict), shown, key, what))
    return TextTable(("model", "verdict", "client protocols", "key", "what"), rows)


def junit_document(found: Findings, against: Findings | None = None) -> bytes:
    """Return the findings as JUnit XML: a case for each rule and pair, a failure if it differs."""
    root = Element("testsuites", name="gateway certify")
    _suite(root, found)
    if against is not None:
        _suite(root, against)
        changed = {each.rule: its for each, its in differences(found, against)}
        name = f"{found.subject.url} against {against.subject.url}"
        suite = SubElement(root, "testsuite", name=printable(name))
        others = {each.rule for each in against.rules}
        for rule in found.rules:
            if rule.rule in others:
                case, other = _case(suite, "differences", rule.rule), changed.get(rule.rule)
                if other is not None:
                    verdicts = f"{rule.verdict} at the first server, {other.verdict} at the second"
                    _result(case, "failure", verdicts, rule.found, other.found)
        _count(suite)
    indent(root)
    document: bytes = tostring(root, encoding="utf-8", xml_declaration=True)
    return document + b"\n"


def _suite(root: Element, found: Findings) -> None:
    suite = SubElement(root, "testsuite", name=printable(_title(found.subject)))
    for rule in found.rules:
        case = _case(suite, f"{found.subject.protocol}.{rule.group}", rule.rule)
        if rule.verdict is not Verdict.KEEPS:
            tag = "failure" if rule.verdict is Verdict.DIFFERS else "skipped"
            lines = (f"{name}: {text}" for name, text in _details(rule) if text)
            _result(case, tag, f"{rule.verdict}: {rule.found}", *lines)
    for pair in found.pairs:
        case = _case(suite, f"pairs.{pair.model}", pair.protocol)
        if pair.verdict is not PairVerdict.WORKS:
            tag = "skipped" if pair.verdict is PairVerdict.REFUSED else "system-out"
            lines = (text for text in (*pair.what, pair.key, pair.request) if text)
            _result(case, tag, str(pair.verdict), *lines)
    _count(suite)


def _case(suite: Element, classname: str, name: str) -> Element:
    return SubElement(suite, "testcase", classname=printable(classname), name=printable(name))


def _result(case: Element, tag: str, message: str, *lines: str) -> None:
    """Add what came of a case; XML has no form for controls, so that they are escaped."""
    result = SubElement(case, tag)
    if tag == "system-out":  # has no attributes
        lines = (message, *lines)
    else:
        result.set("message", printable(message))
    result.text = "\n".join(map(printable, lines))


def _count(suite: Element) -> None:
    suite.set("tests", str(len(suite)))
    for name, path in (("failures", "testcase/failure"), ("skipped", "testcase/skipped")):
        suite.set(name, str(len(suite.findall(path))))


def report_page(found: Findings, against: Findings | None = None) -> bytes:
    """Return the findings as one page of HTML, without scripts."""
    sections = list(_sections(found))
    if against is not None:
        table: Block = _difference_table(found, against) if differences(found, against) else _ALIKE
        sections = [Section("Differences", (table,)), *sections, *_sections(against)]
    return html_page(f"Certification of {found.subject.url}", sections)


def _sections(found: Findings) -> Iterator[Section]:
    rules: list[Block] = [_group_table(found)] if found.rules else []
    yield Section(_title(found.subject), (f"{_counts_text(found)}.", *rules))
    for verdict in _ORDER:
        given = [each for each in found.rules if each.verdict is verdict]
        if given:
            requests = _commands((each.rule, each.request) for each in given)
            yield Section(f"Rules: {verdict}", (_rule_table(given), *requests), level=3)
    if found.pairs:
        pairs = [
            (each.model, each.protocol, str(each.verdict), each.key, "; ".join(each.what))
            for each in found.pairs
        ]
        table = TextTable(("model", "client protocol", "verdict", "key", "what"), pairs)
        requests = _commands((f"{it.model}, {it.protocol}", it.request) for it in found.pairs)
        yield Section("Client protocols", (table, *requests), level=3)


def _rule_table(rules: Sequence[RuleFinding]) -> TextTable:
    rows = [(each.rule, each.expected, each.found, each.source) for each in rules]
    return TextTable(("rule", "expected", "found", "source"), rows)


def _commands(requests: Iterable[tuple[str, str]]) -> Iterator[Command]:
    return (Command(title, request) for title, request in requests if request)
