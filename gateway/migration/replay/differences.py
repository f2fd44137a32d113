"""Compares two captures call by call, by their request ids."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from gateway.ir.errors import GatewayError
from gateway.migration.captures.capture import Capture
from gateway.migration.captures.segment_reader import SegmentReader
from gateway.migration.compare.replies import Comparison, Result
from gateway.migration.compare.rules import OutputRules
from gateway.migration.compare.summary import Summary
from gateway.migration.evidence.guards import Guards
from gateway.migration.evidence.verdicts import Evidence, evidence_of, uncompared_evidence
from gateway.migration.replay.forwarded import of_protocol
from gateway.migration.replay.replay import compare, recorded_result
from gateway.migration.replay.times import times_problem
from gateway.shadow.records.records import OK, OLD, CallRow, RecordedCall


@dataclass(frozen=True, slots=True)
class ComparedCall:
    """A call of both captures.

    Attributes:
        old: The call of the first capture.
        new: The call of the second capture.
        evidence: For guards; its results have no outputs where both have the same bytes.
    """

    old: RecordedCall
    new: RecordedCall
    comparison: Comparison
    evidence: Evidence


_Compared = tuple[Result, Result, Comparison]
_REPLIED: Final = Result()
_MAX_KEPT: Final = 1024


class _Comparer:
    """Compares recorded replies; for equal bytes it has the comparison from an earlier call.

    The comparison of equal bytes depends on names, datatypes and shapes alone, except where NaN
    differs from NaN.
    """

    def __init__(self, rules: OutputRules) -> None:
        self._rules = rules
        self._kept: dict[tuple[Any, ...], Comparison | None] = {}

    def compare(self, old: RecordedCall, new: RecordedCall) -> _Compared | None:
        """Return both results and their comparison; None if elements are not recorded.

        The results of equal bytes have no outputs.

        Raises:
            GatewayError: A record is malformed.
        """
        key = _key_of_equal(old, new)
        if key is not None:
            kept = self._kept.get(key)
            if kept is not None:
                return _REPLIED, _REPLIED, kept
        a = recorded_result(of_protocol(old, new.call.protocol))
        b = recorded_result(of_protocol(new, old.call.protocol))
        if a is None or b is None:
            a, b = a or _REPLIED, b or _REPLIED
            if a.error is b.error is None:
                return None  # an error needs no elements
        comparison = compare(old, a, b, self._rules)
        if key is not None and key not in self._kept and len(self._kept) < _MAX_KEPT:
            self._kept[key] = comparison if self._is_constant(a) else None
        return a, b, comparison

    def _is_constant(self, result: Result) -> bool:
        """Return whether the rules of all outputs find NaN equal to NaN."""
        return all(
            self._rules.rule(tensor.name, tensor.datatype).nan == "equal"
            for items in result.items
            for tensor in items
        )


def _key_of_equal(old: RecordedCall, new: RecordedCall) -> tuple[Any, ...] | None:
    """Return what a comparison depends on, for single replies of equal bytes; None for others."""
    if not (old.call.code == new.call.code == OK and len(old.items) == len(new.items) == 1):
        return None
    a = [each for each in old.tensors if each.side == OLD]
    b = [each for each in new.tensors if each.side == OLD]
    if a != b or any(each.data is None for each in a):
        return None
    shapes = tuple([(it.name, it.datatype, it.shape, it.form, it.place) for it in a])
    return old.class_outputs, shapes


class _Place(NamedTuple):
    reader: SegmentReader
    number: int
    at_us: int


class _Places:
    """Where the calls of a capture are, by their request ids.

    Clients that try again, or have one id for all their calls, repeat it. Results of a replay have
    the starts of the recorded calls, by which they are paired; others are paired in their order.
    """

    def __init__(self, readers: Iterable[SegmentReader]) -> None:
        self._places: dict[str, _Place | dict[int, _Place]] = {}
        for reader in readers:
            for number, request_id, at_us in reader.request_ids():
                place = _Place(reader, number, at_us)
                found = self._places.setdefault(request_id, place)
                if found is place:
                    continue
                if isinstance(found, _Place):
                    found = self._places[request_id] = {found.at_us: found}
                found[-len(found) if at_us in found else at_us] = place

    def take(self, call: CallRow) -> _Place | None:
        """Return the place of the call that belongs to *call*, each one once; None for none."""
        found = self._places.get(call.request_id)
        if isinstance(found, dict) and len(found) > 1:
            return found.pop(call.at_us if call.at_us in found else next(iter(found)))
        self._places.pop(call.request_id, None)
        return next(iter(found.values())) if isinstance(found, dict) else found

    def rest(self) -> Iterator[_Place]:
        """Yield the places that nobody has taken."""
        for each in self._places.values():
            yield from each.values() if isinstance(each, dict) else (each,)


OnSkipped = Callable[[str], None]
"""Called with the reason for each pair of calls that cannot be compared."""


def _ignore(_evidence: Evidence) -> None:
    """Judge nothing."""


def compare_captures(
    old: Capture,
    new: Capture,
    rules: OutputRules,
    on_skipped: OnSkipped,
    on_compared: Callable[[ComparedCall], None] | None = None,
    guards: Guards | None = None,
) -> Summary:
    """Compare the replies of two captures, call by call.

    The positions of the old calls are in memory, not the calls. *on_compared* is called for each
    pair, in the order of the second capture. *guards* get the same calls as the summary.

    Raises:
        UnreadableSegment: A file is no segment.
    """
    summary, equal = Summary(), _Comparer(rules)
    judge = _ignore if guards is None else guards.add
    summary.times_problem = times_problem(old.description(), new.description())
    with ExitStack() as stack:
        readers = [stack.enter_context(SegmentReader(each)) for each in old.segments]
        places = _Places(readers)
        for call in new.calls():
            found = places.take(call.call)
            if found is None:
                summary.missing += 1
                continue
            before = found.reader.call(found.number)
            if before is None:
                on_skipped("damaged")
                continue
            reason = "payload not recorded"
            try:
                compared = equal.compare(before, call)
                summary.uncompared += compared is None and not before.is_forwarded
            except GatewayError as error:
                summary.unreadable += 1
                compared, reason = None, error.message[:200]
            if compared is None:
                summary.forwarded += before.is_forwarded
                on_skipped("forwarded" if before.is_forwarded else reason)
                judge(uncompared_evidence(call.call.at_us / 1e6))
                continue
            a, b, comparison = compared
            times = (before.call.took_us / 1e6, call.call.took_us / 1e6)
            evidence = evidence_of(a, b, comparison, times, call.call.at_us / 1e6)
            summary.add(
                before.id, comparison, evidence.times_s, call.call.error or before.call.error
            )
            judge(evidence)
            if on_compared is not None:
                on_compared(ComparedCall(before, call, comparison, evidence))
        for each in places.rest():
            left = each.reader.call(each.number)
            is_forwarded = left is not None and left.is_forwarded
            summary.forwarded += is_forwarded
            summary.missing += not is_forwarded
        old.problems += [each for reader in readers for each in reader.problems]
    return summary
