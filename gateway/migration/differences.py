"""Compares two captures call by call, by their request ids."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from gateway.captures.capture import Capture
from gateway.captures.records import RecordedCall
from gateway.captures.segment_reader import SegmentReader
from gateway.compare.replies import Comparison
from gateway.compare.rules import OutputRules
from gateway.compare.summary import Summary
from gateway.ir.errors import GatewayError
from gateway.migration.guards import Evidence, evidence_of
from gateway.migration.replay import compare, recorded_result


@dataclass(frozen=True, slots=True)
class ComparedCall:
    """A call of both captures.

    Attributes:
        old: As the first capture has it.
        new: As the second one has it.
        evidence: For guards.
    """

    old: RecordedCall
    new: RecordedCall
    comparison: Comparison
    evidence: Evidence


OnSkipped = Callable[[str], None]
"""Called with the reason for each pair of calls that cannot be compared."""


def compare_captures(
    old: Capture,
    new: Capture,
    rules: OutputRules,
    on_skipped: OnSkipped,
    on_compared: Callable[[ComparedCall], None] | None = None,
) -> Summary:
    """Compare the replies of two captures; a repeated request id counts once.

    The positions of the old calls are in memory, not the calls. *on_compared* is called for each
    pair, in the order of the second capture.

    Raises:
        UnreadableSegment: A file is no segment.
    """
    summary = Summary()
    with ExitStack() as stack:
        readers = [stack.enter_context(SegmentReader(each)) for each in old.segments]
        places: dict[str, tuple[SegmentReader, int]] = {}
        for reader in readers:
            for number, request_id in reader.request_ids():
                places.setdefault(request_id, (reader, number))
        for call in new.calls():
            found = places.pop(call.call.request_id, None)
            if found is None:
                summary.missing += 1
                continue
            before = found[0].call(found[1])
            if before is None:
                on_skipped("damaged")
                continue
            try:
                a, b = recorded_result(before), recorded_result(call)
                if a is None or b is None:
                    on_skipped("payload not recorded")
                    continue
                comparison = compare(before, a, b, rules)
            except GatewayError as error:
                on_skipped(error.message[:200])
                continue
            times = (before.call.took_us / 1e6, call.call.took_us / 1e6)
            evidence = evidence_of(a, b, comparison, times, call.call.at_us / 1e6)
            summary.add(before.id, comparison, evidence.times_s)
            if on_compared is not None:
                on_compared(ComparedCall(before, call, comparison, evidence))
        summary.missing += len(places)
        old.problems += [each for reader in readers for each in reader.problems]
    return summary
