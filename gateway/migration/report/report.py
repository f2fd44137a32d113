"""The report on two captures: verdict, agreement, outputs, samples, times, callers.

The same calls make the same report. `cli/report/blocks.py` writes it as HTML and Markdown.
"""

import math
from array import array
from bisect import insort
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Final

from gateway.cli.report.blocks import Block, Plot, Section, TextTable
from gateway.ir.texts import utc_text
from gateway.migration.compare.statistics import (
    confidence_sequence,
    quantile_bounds,
    ratio_bounds,
)
from gateway.migration.compare.summary import Summary, percentile
from gateway.migration.compare.tensors import Outcome
from gateway.migration.evidence.verdicts import GuardVerdict
from gateway.migration.replay.differences import ComparedCall
from gateway.migration.report.plots import (
    AgreementPoint,
    agreement_plot,
    histogram_plot,
)
from gateway.migration.report.samples import sample_section
from gateway.shadow.records.records import REFUSED, CallRow

_SAMPLES: Final = 10
_POINTS: Final = 40
_NAMES: Final = 10
_CALLERS: Final = 4_096
_CALLERS_SHOWN: Final = 50
_SHARES: Final = (0.5, 0.9, 0.99)
_OTHER: Final = ("other", "", "", "")

_RANKS: Final = {
    Outcome.MATCH: 0,
    Outcome.REFUSED: 1,
    Outcome.OLD_ERROR: 1,
    Outcome.MISMATCH: 2,
    Outcome.BOTH_ERROR: 3,
    Outcome.TIMEOUT: 4,
    Outcome.NEW_ERROR: 4,
    Outcome.STRUCTURE: 4,
}


@dataclass(slots=True)
class RecordedSide:
    """What the calls of a recording say of its server, of at most some targets and models.

    Attributes:
        calls: Number of calls.
        first_us: Start of the earliest call in UTC, microseconds since 1970; 0 for no call.
        last_us: Start of the latest call.
    """

    calls: int = 0
    first_us: int = 0
    last_us: int = 0
    targets: dict[str, None] = field(default_factory=dict)
    models: dict[str, None] = field(default_factory=dict)

    def add(self, row: CallRow) -> None:
        """Add a call."""
        self.calls += 1
        self.first_us = min(self.first_us or row.at_us, row.at_us)
        self.last_us = max(self.last_us, row.at_us)
        for names, name in ((self.targets, row.target), (self.models, _model(row))):
            if name and len(names) < _NAMES:
                names[name] = None


def _model(row: CallRow) -> str:
    return f"{row.model}:{row.version}" if row.version else row.model


@dataclass(slots=True)
class _Caller:
    calls: int = 0
    compared: int = 0
    different: int = 0
    failed: int = 0
    refused: int = 0


class ReportEvidence:
    """What the report shows of single calls; it keeps few of them.

    Attributes:
        times_us: Start of each call whose replies were compared.
        agrees: Whether the replies of each call agree, in the same order.
        callers: By client, agent, protocol and model; from the 4 096th on they are one.
        old: The calls of the old server.
        new: The calls of the new server.
    """

    def __init__(self) -> None:
        self.times_us = array("q")
        self.agrees = bytearray()
        self.callers: dict[tuple[str, str, str, str], _Caller] = {}
        self.old, self.new = RecordedSide(), RecordedSide()
        self._worst: list[tuple[tuple[float, float, str], Section]] = []
        self._random: list[tuple[bytes, Section]] = []

    def add(self, call: ComparedCall) -> None:
        """Add one call."""
        outcome = call.comparison.outcome
        self.old.add(call.old.call)
        self.new.add(call.new.call)
        if call.comparison.is_compared:
            self.times_us.append(call.old.call.at_us)
            self.agrees.append(outcome is Outcome.MATCH)
        self._count_caller(call)
        if outcome is not Outcome.MATCH:
            error = call.comparison.largest_error or 0.0
            _keep(self._worst, (-_RANKS[outcome], -error, call.old.id), call)
        _keep(self._random, blake2b(call.old.id.encode(), digest_size=8).digest(), call)

    def _count_caller(self, call: ComparedCall) -> None:
        row = call.old.call
        key = (row.client, row.agent, row.protocol, _model(row))
        if key not in self.callers and len(self.callers) >= _CALLERS:
            key = _OTHER
        caller = self.callers.setdefault(key, _Caller())
        caller.calls += 1
        caller.compared += call.comparison.is_compared
        caller.different += call.comparison.differs
        caller.failed += call.evidence.new.error is not None
        caller.refused += call.comparison.outcome is Outcome.REFUSED

    @property
    def worst(self) -> list[Section]:
        """The calls that differ most."""
        return [section for _, section in self._worst]

    @property
    def random(self) -> list[Section]:
        """Calls chosen by a hash of their ids."""
        return [section for _, section in self._random]


def _keep(kept: list[tuple[Any, Section]], key: Any, call: ComparedCall) -> None:
    """Keep the calls of the least keys, in order."""
    if len(kept) == _SAMPLES and key >= kept[-1][0]:
        return
    insort(kept, (key, sample_section(call)), key=lambda pair: pair[0])
    del kept[_SAMPLES:]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportFacts:
    """Everything that a report shows.

    Attributes:
        title: The title of the page.
        verdict: The verdict that the commands print.
        conditions: As the user wrote them, each with why it fails or "".
        lost: Calls that are not compared, by reason, with the capture.
        method: Rules, files and versions: what and its value.
        servers: Side, server, version, models and calls of both servers.
        command: The command of the replay; "" for none.
    """

    title: str
    verdict: str
    summary: Summary
    evidence: ReportEvidence
    guards: Sequence[GuardVerdict] = ()
    conditions: Sequence[tuple[str, str]] = ()
    lost: Mapping[str, int] = field(default_factory=Counter)
    method: Sequence[tuple[str, str]] = ()
    servers: Sequence[tuple[str, str, str, str, str]] = ()
    command: str = ""


def report_sections(facts: ReportFacts) -> list[Section]:
    """Return the report."""
    evidence = facts.evidence
    return [
        _verdict_section(facts),
        Section("Servers", list(_server_blocks(facts))),
        Section("Agreement over time", list(_agreement_blocks(evidence))),
        Section("Outputs", list(_output_blocks(facts.summary))),
        Section("Latency", list(_latency_blocks(facts.summary))),
        Section("Callers", list(_caller_blocks(evidence))),
        Section("Worst samples", () if evidence.worst else ("No call differs.",)),
        *evidence.worst,
        Section("Random samples", ("Chosen by a hash of the ids of the calls.",)),
        *evidence.random,
        Section("Calls that are not compared", [_counts_table("reason", facts.lost)]),
        Section("Method", list(_method_blocks(facts))),
    ]


def _verdict_section(facts: ReportFacts) -> Section:
    summary = facts.summary
    bad, total = summary.counts("mismatch")
    low, high = confidence_sequence(bad, total)
    compared = "No reply was compared."
    if total:
        compared = (
            f"{total} calls compared: {bad} differ. The rate is between {low:.3%} and {high:.3%} "
            "(confidence sequence, 95 %)."
        )
    blocks: list[Block] = [
        *_refused_blocks(facts),
        f"{summary.failed} of {summary.calls} calls failed at the new server. {compared}",
        f"Verdict: {facts.verdict}.",
    ]
    if summary.forwarded:
        blocks.append(f"{summary.forwarded} forwarded: calls that only their server has read.")
    if facts.guards:
        rows = [(each.guard, each.standing.value, each.evidence) for each in facts.guards]
        blocks.append(TextTable(("guard", "verdict", "evidence"), rows))
    if facts.conditions:
        found = [(text, failure or "holds") for text, failure in facts.conditions]
        blocks.append(TextTable(("condition", "verdict"), found))
    outcomes = {each.value: summary.outcomes.get(each, 0) for each in Outcome}
    blocks.append(_counts_table("outcome", outcomes))
    if summary.reasons:
        blocks.append("Why calls failed or have another structure, each with an example:")
        blocks.append(_reasons_table(summary))
    return Section("Verdict", blocks)


def _server_blocks(facts: ReportFacts) -> Iterator[Block]:
    yield TextTable(("side", "server", "version", "models", "calls"), facts.servers)
    if facts.command:
        yield f"Command: {facts.command}"


def _refused_blocks(facts: ReportFacts) -> Iterator[Block]:
    """Yield who sends what the gateway itself refuses: these clients fail on the first day."""
    if not facts.summary.refused:
        return
    yield (
        f"{facts.summary.refused} of {facts.summary.calls} calls were {REFUSED}: whatever a server "
        "would say, these clients fail."
    )
    callers = facts.evidence.callers.items()
    rows = [(*(part or "-" for part in key), str(it.refused)) for key, it in callers if it.refused]
    rows.sort(key=lambda row: -int(row[-1]))
    head = ("client", "agent", "protocol", "model", "refused")
    yield TextTable(head, rows[:_CALLERS_SHOWN], right=(4,))


def _reasons_table(summary: Summary) -> Block:
    rows = [
        (each.name, each.code or "-", str(each.count), each.example or "-", each.call)
        for each in summary.reasons
    ]
    return TextTable(("outcome", "code", "calls", "example", "call"), rows, right=(2,))


def _counts_table(name: str, counts: Mapping[str, int]) -> Block:
    rows = [(key, str(count)) for key, count in counts.items() if count]
    return TextTable((name, "calls"), rows, right=(1,)) if rows else "None."


def _agreement_blocks(evidence: ReportEvidence) -> Iterator[Block]:
    points = _agreement(evidence)
    if not points:
        yield "No reply was compared."
        return
    yield (
        f"Share of the compared replies that agree, in {len(points)} equal parts of the time that "
        "have calls, with its 95 % interval."
    )
    yield Plot("Agreement over time; UTC", agreement_plot(points))
    least = min(points, key=lambda point: point.agreement)
    yield f"Least agreement: {least.agreement:.2%} from {least.label} on."


def _agreement(evidence: ReportEvidence) -> list[AgreementPoint]:
    """Return the agreement in equal parts of the time; parts without calls are left out."""
    if not evidence.times_us:
        return []
    first, last = min(evidence.times_us), max(evidence.times_us)
    width = max(1, -(-(last - first + 1) // _POINTS))
    good, total = Counter[int](), Counter[int]()
    for at_us, agrees in zip(evidence.times_us, evidence.agrees, strict=True):
        part = (at_us - first) // width
        total[part] += 1
        good[part] += agrees
    points = []
    for part, count in sorted(total.items()):
        low, high = confidence_sequence(good[part], count)
        label = utc_text(first + part * width)
        points.append(AgreementPoint(label, good[part] / count, low, high))
    return points


def _output_blocks(summary: Summary) -> Iterator[Block]:
    rows = []
    for name, each in summary.outputs.items():
        errors = each.errors
        rows.append(
            (
                name,
                *each.rate_texts(),
                "-" if errors is None else f"{errors.max_abs:.3g}",
                "-" if errors is None else f"{errors.mean_abs:.3g}",
                "-" if errors is None else f"{errors.max_rel:.3g}",
                "-" if errors is None else str(errors.max_ulp),
                each.worst or "-",
            )
        )
    if not rows:
        yield "No output was compared."
        return
    head = ("output", "compared", "mismatched", "rate", "95% interval", "max abs", "mean abs")
    yield TextTable((*head, "max rel", "max ULP", "worst call"), rows, right=range(1, 9))
    yield from (
        f"Output {name}: {each.shape_text}."
        for name, each in summary.outputs.items()
        if each.shape_text
    )
    for name, each in summary.outputs.items():
        if each.errors is not None and any(each.errors.histogram):
            title = f"{name}: elements by the decimal exponent of their absolute error"
            yield Plot(title, histogram_plot(each.errors.histogram, title))


def _latency_blocks(summary: Summary) -> Iterator[Block]:
    old, new = sorted(summary.old_s), sorted(summary.new_s)
    if not new:
        yield "No call has times of both servers."
        return
    if summary.times_problem:
        shown = [(f"p{share * 100:.0f}", _ms(percentile(new, share))) for share in _SHARES]
        yield f"The times of both servers are not compared: {summary.times_problem}."
        yield TextTable(("quantile", "new"), shown, right=(1,))
        return
    rows = []
    for share in _SHARES:
        below, above = percentile(old, share), percentile(new, share)
        low, high = ratio_bounds(new, old, share)
        ratio = f"{above / below:.3g}" if below > 0 else "-"
        bounds = f"{low:.3g} to {_unbounded(high)}"
        rows.append((f"p{share * 100:.0f}", _ms(below), _ms(above), ratio, bounds))
    yield TextTable(("quantile", "old", "new", "ratio", "95% bounds"), rows, right=(1, 2, 3, 4))
    pairs = sorted(b - a for a, b in zip(summary.old_s, summary.new_s, strict=True))
    least, most = (_ms(each) for each in quantile_bounds(pairs, 0.5))
    yield (
        f"Median of the differences of the same calls, new less old: "
        f"{_ms(percentile(pairs, 0.5))} in {len(pairs)} calls (95 % bounds {least} to {most})."
    )


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.4g} ms" if math.isfinite(seconds) else "unknown"


def _unbounded(value: float) -> str:
    return f"{value:.3g}" if math.isfinite(value) else "unknown"


def _caller_blocks(evidence: ReportEvidence) -> Iterator[Block]:
    ordered = sorted(evidence.callers.items(), key=lambda pair: (-pair[1].calls, pair[0]))
    rows = [
        (
            *(part or "-" for part in key),
            str(each.calls),
            str(each.failed),
            str(each.compared),
            str(each.different),
            f"{each.different / each.compared:.2%}" if each.compared else "-",
        )
        for key, each in ordered[:_CALLERS_SHOWN]
    ]
    head = ("client", "agent", "protocol", "model", "calls", "errors at new", "compared")
    yield TextTable((*head, "mismatched", "rate"), rows, right=range(4, 9)) if rows else "None."
    if len(ordered) > _CALLERS_SHOWN:
        yield f"{len(ordered) - _CALLERS_SHOWN} further callers are not shown."


def _method_blocks(facts: ReportFacts) -> Iterator[Block]:
    yield TextTable(("what", "value"), facts.method)
    yield (
        "Requests are counted, not rows. Rates have the bounds of a confidence sequence (Robbins "
        "1970; Howard et al. 2021), valid at every number of calls. Guards hold by it, and trip by "
        "an e-detector (Shin, Ramdas, Rinaldo 2023). An excess of "
        "errors holds by two such sequences, joined as by Newcombe (1998), and trips by the "
        "likelihood ratio of the latest calls (Lai 1995). Bounds of latency are order statistics, "
        "without an assumed distribution."
    )
