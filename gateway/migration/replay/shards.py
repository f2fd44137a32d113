"""Shards of a replay: which calls each has, and whether results are of all of them.

A sequence is in one shard. The results of a shard note which one they are of, and that they are
complete.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from gateway.migration.captures.capture import Capture
from gateway.migration.captures.segment_reader import SegmentReader, UnreadableSegment
from gateway.migration.replay.replay import sequence_key
from gateway.shadow.records.records import RecordedCall

SHARD: Final = "shard"
"""What the results of a shard have its text, such as "3/16", under."""
WHOLE: Final = "whole"
"""What results have under this name once all calls of the shard are written."""
AUTO: Final = "auto"
INDEX: Final = "JOB_COMPLETION_INDEX"
"""The variable that Kubernetes gives the pods of an indexed Job."""
COUNT: Final = "JOB_COMPLETIONS"
"""The variable for the number of shards, if the flag does not have it."""


@dataclass(frozen=True, slots=True)
class Shard:
    """One of *count* parts of a capture, from 0."""

    index: int
    count: int

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    def includes(self, record: RecordedCall) -> bool:
        """Return whether a call belongs to it; calls of a sequence have one shard."""
        key = sequence_key(record) or record.id
        digest = blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        return int.from_bytes(digest, "big") % self.count == self.index

    @property
    def object_name(self) -> str:
        """The name of its results in an object store; another run of it replaces them."""
        return f"shard-{self.index}-of-{self.count}-s{self.index}.capture"


def parse_shard(text: str, variables: Mapping[str, str]) -> Shard:
    """Parse `I/N`, `auto/N` or `auto`.

    Args:
        text: The text; `auto` stands for the number of a pod of an indexed Job.
        variables: The environment.

    Raises:
        ValueError: It has another form, a variable is missing, or there is no such shard.
    """
    index, slash, count = text.partition("/")
    if not slash:
        count = variables.get(COUNT, "") if index == AUTO else ""
        if index == AUTO and not count:
            raise ValueError(f"--shard auto needs the variable {COUNT}, or --shard auto/N")
    if index == AUTO:
        index = variables.get(INDEX, "")
        if not index:
            raise ValueError(f"--shard {text} needs the variable {INDEX}, which an indexed Job has")
    if not (index.isdecimal() and count.isdecimal()):
        raise ValueError(f"--shard is {text!r}; expected I/N from 0/N, such as 3/16, or auto/N")
    if int(index) >= int(count):
        raise ValueError(f"--shard {index}/{count} does not exist; the last one is the one before")
    return Shard(int(index), int(count))


def shard_problems(results: Capture) -> list[str]:
    """Return which shards are missing, doubled or not complete; none for results without shards."""
    places: defaultdict[str, list[str]] = defaultdict(list)
    incomplete: list[str] = []
    without: list[str] = []
    for segment in results.segments:
        try:
            with SegmentReader(segment) as reader:
                notes = reader.description
        except UnreadableSegment as error:
            incomplete.append(str(error))
            continue
        shard = notes.get(SHARD)
        if shard is None:
            without.append(segment.name)
            continue
        places[shard].append(str(segment))
        if WHOLE not in notes:
            incomplete.append(f"shard {_named(shard)} is not complete: {segment.name}")
    if not places:
        return []
    counts = {shard.partition("/")[2] for shard in places}
    if len(counts) > 1:
        return [f"results of {' and '.join(sorted(counts))} shards do not belong together"]
    (count,) = counts
    return [
        *(
            f"shard {_named(each)} is missing"
            for each in (f"{index}/{count}" for index in range(int(count)))
            if each not in places
        ),
        *(
            f"shard {_named(shard)} is there {len(found)} times: {', '.join(sorted(found))}"
            for shard, found in sorted(places.items())
            if len(found) > 1
        ),
        *incomplete,
        *(f"{name} is of no shard" for name in without),
    ]


def _named(shard: str) -> str:
    index, _, count = shard.partition("/")
    return f"{index} of {count}"
