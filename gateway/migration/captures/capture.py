"""Reads a capture: a directory of segments, or one file.

`ls`, `verify` and `repair` work on all its segments; `calls` yields every call.
"""

import heapq
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from gateway.migration.captures.directory import (
    MANIFEST,
    PERCENT,
    append_line,
    open_segments,
    read_manifest,
    sealed_segments,
    sha256_of,
)
from gateway.migration.captures.segment_reader import SegmentReader, UnreadableSegment
from gateway.migration.captures.segment_writer import SegmentWriter
from gateway.shadow.records.records import RecordedCall


@dataclass(slots=True)
class SegmentSummary:
    """What a segment contains.

    Attributes:
        calls: Those that can be read.
        forwarded: Those that a server got unread.
        refused: Those that the gateway itself refused.
        models: Calls by model.
        clients: Calls by client address and agent.
        dropped: Calls that were dropped while it was written, by reason.
        percent: Share of the calls that its writer noted, such as "20"; "" for none.
    """

    name: str
    calls: int = 0
    forwarded: int = 0
    refused: int = 0
    nbytes: int = 0
    first_us: int = 0
    last_us: int = 0
    models: dict[str, int] = field(default_factory=dict)
    clients: dict[str, int] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)
    is_open: bool = False
    percent: str = ""


class Capture:
    """A capture.

    Args:
        path: Its directory, or one segment.
        others: Further ones, whose calls belong to the same capture.

    Attributes:
        problems: What could not be read so far, and why.

    Raises:
        UnreadableSegment: There is no segment.
    """

    def __init__(self, path: Path, *others: Path) -> None:
        self.path = path
        self.problems: list[str] = []
        self._paths = (path, *others)
        self.segments: list[Path] = []
        for each in self._paths:
            found = [*sealed_segments(each), *open_segments(each)] if each.is_dir() else [each]
            if not found or not found[0].exists():
                raise UnreadableSegment(f"{each}: no capture there")
            self.segments += found

    def calls(self) -> Iterator[RecordedCall]:
        """Yield the calls of all segments by their start; `problems` names what is skipped.

        Segments of several workers overlap in time: their calls are merged. Calls that began at the
        same time come in the order of their request ids, in whichever segments they are.
        """
        with ExitStack() as stack:
            readers = []
            for segment in self.segments:
                try:
                    readers.append(stack.enter_context(SegmentReader(segment)))
                except UnreadableSegment as error:
                    self.problems.append(str(error))
            # A call is written when it ends: the order of starts differs by little.
            ordered = [_by_start(reader.calls()) for reader in readers]
            yield from heapq.merge(*ordered, key=_start_of)
            for reader in readers:
                self.problems += reader.problems

    def description(self) -> dict[str, str]:
        """Return what the writers of the segments noted of them.

        The first one by its name, which has its time, decides. Of the shares of the recorded calls
        it is the least one.
        """
        found: dict[str, str] = {}
        percents: list[str] = []
        for segment in sorted(self.segments, key=lambda each: each.name):
            try:
                with SegmentReader(segment) as reader:
                    notes = reader.description
            except UnreadableSegment:
                continue  # `calls` names it
            found = {**notes, **found}
            percents += [notes[PERCENT]] if PERCENT in notes else []
        if percents:
            found[PERCENT] = min(percents, key=_number)
        return found

    def call(self, call_id: str) -> RecordedCall | None:
        """Return the call of an id, "SEGMENT-NUMBER", of a request id, or of a client's own id."""
        tag, _, number = call_id.rpartition("-")
        for segment in self.segments:
            try:
                with SegmentReader(segment) as reader:
                    found = int(number, 16) if reader.tag == tag and _is_hex(number) else None
                    found = reader.number_of(call_id) if found is None else found
                    call = None if found is None else reader.call(found)
                    self.problems += reader.problems
            except UnreadableSegment as error:
                self.problems.append(str(error))
                continue
            if call is not None:
                return call
        return None

    def summaries(self) -> Iterator[SegmentSummary]:
        """Yield a summary of each readable segment."""
        manifest = {entry.get("segment"): entry for entry in self._manifest()[0]}
        for segment in self.segments:
            summary = SegmentSummary(segment.name, is_open=segment.name.endswith(".open"))
            try:
                with SegmentReader(segment) as reader:
                    summary.percent = reader.description.get(PERCENT, "")
                    for call in reader.calls():
                        _count(summary, call)
                    self.problems += reader.problems
            except UnreadableSegment as error:
                self.problems.append(str(error))
                continue
            summary.dropped = _dropped_of(manifest.get(segment.name, {}))
            yield summary

    def dropped_calls(self) -> dict[str, int]:
        """Return how many calls the manifest notes as dropped, by reason."""
        total: dict[str, int] = {}
        for entry in self._manifest()[0]:
            for reason, count in _dropped_of(entry).items():
                total[reason] = total.get(reason, 0) + count
        return total

    def checksums(self) -> dict[str, str]:
        """Return the SHA-256 of the manifest by the name of the segment."""
        entries = self._manifest()[0]
        return {
            str(each["segment"]): str(each.get("sha256")) for each in entries if "segment" in each
        }

    def verify(self) -> tuple[int, list[str]]:
        """Return the number of whole calls, and what is wrong with the files."""
        entries, problems = self._manifest()
        expected = {str(entry.get("segment")): entry for entry in entries if "segment" in entry}
        removed = {entry.get("removed") for entry in entries}
        present = {segment.name for segment in self.segments}
        if self.path.is_dir():
            for name in expected.keys() - present - removed:
                problems.append(f"{name}: listed in {MANIFEST}, but missing")
        calls = 0
        for segment in self.segments:
            entry = expected.get(segment.name)
            if entry is not None and entry.get("sha256") != sha256_of(segment):
                problems.append(f"{segment.name}: its SHA-256 is not that of {MANIFEST}")
            if entry is None and not segment.name.endswith(".open") and self.path.is_dir():
                problems.append(f"{segment.name}: not listed in {MANIFEST}")
            found, wrong = _whole_calls(segment)
            calls += found
            problems += wrong
            if entry is not None and not wrong and found != entry.get("calls"):
                problems.append(
                    f"{segment.name}: {found} calls; {MANIFEST} has {entry.get('calls')}"
                )
        return calls, problems

    def repair(self) -> int:
        """Copy the whole calls of damaged segments to new ones, and return their number.

        A damaged segment gets the ending `.damaged`. The manifest notes both.
        """
        kept = 0
        entries = {entry.get("segment"): entry for entry in self._manifest()[0]}
        for segment in sealed_segments(self.path):
            entry = entries.get(segment.name)
            _, wrong = _whole_calls(segment)
            if not wrong and entry is not None and entry.get("sha256") == sha256_of(segment):
                continue
            try:
                with SegmentReader(segment) as reader:
                    notes = reader.description
            except UnreadableSegment:
                notes = {}
            writer = SegmentWriter(self.path, {**notes, "repaired": segment.name})
            writer.begin()
            try:
                with SegmentReader(segment) as reader:
                    for call in reader.calls():
                        writer.add(call)
            except UnreadableSegment as error:
                self.problems.append(str(error))
            writer.commit()
            kept += writer.calls
            writer.seal({})
            segment.rename(segment.with_name(segment.name + ".damaged"))
            append_line(self.path, {"removed": segment.name, "reason": "damaged"})
        return kept

    def _manifest(self) -> tuple[list[dict[str, object]], list[str]]:
        entries: list[dict[str, object]] = []
        problems: list[str] = []
        for each in self._paths:
            if each.is_dir():
                found, wrong = read_manifest(each)
                entries += found
                problems += wrong
        return entries, problems


def _dropped_of(entry: dict[str, object]) -> dict[str, int]:
    """Return how many calls an entry of the manifest notes as dropped, by reason."""
    found = entry.get("dropped")
    counts = found.items() if isinstance(found, dict) else ()
    return {reason: count for reason, count in counts if isinstance(count, int)}


_WINDOW = 1024
# Of each segment; those of several workers are read together.
_WINDOW_BYTES = 32 << 20


def _by_start(calls: Iterator[RecordedCall]) -> Iterator[RecordedCall]:
    """Yield calls by their start; they are written by their end, within a window of calls."""
    heap: list[tuple[int, str, int, RecordedCall]] = []
    nbytes = 0
    for number, call in enumerate(calls):
        heapq.heappush(heap, (*_start_of(call), number, call))
        nbytes += call.nbytes
        while len(heap) > _WINDOW or (nbytes > _WINDOW_BYTES and len(heap) > 1):
            first = heapq.heappop(heap)[-1]
            nbytes -= first.nbytes
            yield first
    while heap:
        yield heapq.heappop(heap)[-1]


def _start_of(call: RecordedCall) -> tuple[int, str]:
    return call.call.at_us, call.call.request_id


def _number(text: str) -> float:
    """Return the number of a text; 0 for another text."""
    try:
        return float(text)
    except ValueError:
        return 0.0


def _is_hex(text: str) -> bool:
    try:
        int(text, 16)
    except ValueError:
        return False
    return True


def _count(summary: SegmentSummary, record: RecordedCall) -> None:
    call = record.call
    summary.calls += 1
    summary.forwarded += record.is_forwarded
    summary.refused += record.is_refused
    summary.nbytes += record.nbytes
    summary.first_us = min(summary.first_us or call.at_us, call.at_us)
    summary.last_us = max(summary.last_us, call.at_us)
    model = f"{call.model}:{call.version}" if call.version else call.model
    summary.models[model] = summary.models.get(model, 0) + 1
    client = f"{call.client} {call.agent}".strip() or "-"
    summary.clients[client] = summary.clients.get(client, 0) + 1


def _whole_calls(segment: Path) -> tuple[int, list[str]]:
    try:
        with SegmentReader(segment) as reader:
            count = sum(1 for _ in reader.calls())
            return count, reader.problems
    except UnreadableSegment as error:
        return 0, [str(error)]
