"""Instructions and cache misses of one request, as cachegrind counts them.

The whole gateway runs on connections in memory (`stages`), on a simulated processor with fixed
caches. The figures do not depend on the machine, nor on its load. The load generator and the canned
server are included. `counted` forks twice for each way after a warm-up, for a short and for a long
run, and the difference of the two is divided by the requests.

`counts.json` has the recorded figures of both builds: compiled, and plain Python. A way that takes
3 % more instructions has become slower.
"""

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks import applications, messages
from benchmarks.progress import Say
from benchmarks.stages import (
    REBUILT,
    SENT_ON,
    Way,
    application_ways,
    extreme_ways,
    first_ways,
    passing_ways,
    row_ways,
    ways,
)
from gateway.accelerator import BUILD

RECORDED = Path(__file__).parent / "counts.json"
TOLERANCE = 1.03
BOUNDS = {
    applications.TRACED: 1.14,
    applications.CLIENTS: 1.15,
    applications.FORMS: 1.15,
    applications.EVERYTHING: 1.25,
    applications.LONG_HEAD: 1.15,
    applications.MANY_FORMS: 1.25,
}
"""The most that a request of a kind costs in the compiled build, in units of the repeated one."""

_CACHES = ("--I1=32768,8,64", "--D1=49152,12,64", "--LL=2097152,16,64")
_EVENTS = {
    "instructions": ("Ir",),
    "i1_misses": ("I1mr",),
    "d1_misses": ("D1mr", "D1mw"),
    "ll_misses": ("ILmr", "DLmr", "DLmw"),
}


class CannotCountError(Exception):
    """Nothing was counted, for the reason in the text."""


@dataclass(frozen=True)
class Count:
    """What one request of a way costs.

    Attributes:
        ll_misses: Misses of the last cache; each waits for the memory.
    """

    way: str
    instructions: int
    i1_misses: int
    d1_misses: int
    ll_misses: int


def all_ways() -> list[Way]:
    """Return the ways that are counted.

    The small ways, rows, those sent on and rebuilt, 602 KB from HTTP to HTTP, what applications
    send, and those of long heads, many forms and first requests.
    """
    image = messages.image()
    binary = Way("binary-http 602KB", "http", "http", messages.binary_request(image), image)
    usual = [*ways(), *row_ways(), *passing_ways(), binary, *application_ways()]
    return [*usual, *extreme_ways(), *first_ways()]


def measure(only: str, say: Say) -> list[Count]:
    """Count the ways whose names contain *only*; this takes some minutes.

    Raises:
        CannotCountError: valgrind is missing or has failed, or no name contains *only*.
    """
    every = {way.name: way for way in all_ways()}
    names = [name for name in every if only in name]
    if not names:
        raise CannotCountError(f"no way has {only!r} in its name: {', '.join(every)}")
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        raise CannotCountError("valgrind is not installed: apt-get install valgrind")
    with tempfile.TemporaryDirectory() as folder:
        words = [valgrind, "--tool=cachegrind", "--cache-sim=yes", *_CACHES]
        words += [f"--cachegrind-out-file={folder}/%p", f"--log-file={folder}/log.%p"]
        words += [sys.executable, "-m", "benchmarks.counted", folder, *names]
        say(f"  counts: {', '.join(names)}")
        done = subprocess.run(words, check=False, env={**os.environ, "PYTHONHASHSEED": "0"})
        if done.returncode:
            raise CannotCountError(f"valgrind ended with exit status {done.returncode}")
        return [_count(Path(folder), every[name]) for name in names]


def _count(folder: Path, way: Way) -> Count:
    """Return the cost of a request: the difference of the two runs of a way."""
    pids = json.loads((folder / f"{way.name}.json").read_text())
    short, long = (events((folder / pid).read_text()) for pid in pids)
    fewer, more = way.runs
    per_request = {
        field: round(sum(long[event] - short[event] for event in found) / (more - fewer))
        for field, found in _EVENTS.items()
    }
    return Count(way.name, **per_request)


def events(text: str) -> Mapping[str, int]:
    """Return the totals of an output file of cachegrind by the names of the events."""
    lines = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)
    return dict(zip(lines["events"].split(), map(int, lines["summary"].split()), strict=True))


def table(counts: list[Count], recorded: Mapping[str, Count]) -> str:
    """Return a table of *counts*, with the change of the instructions since they were recorded."""
    lines = [
        "| way | instructions | change | I1 misses | D1 misses | LL misses |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for count in counts:
        before = recorded.get(count.way)
        change = "" if before is None else f"{count.instructions / before.instructions - 1:+.1%}"
        lines.append(
            f"| {count.way} | {count.instructions:,} | {change} | {count.i1_misses:,} "
            f"| {count.d1_misses:,} | {count.ll_misses:,} |"
        )
    return "\n".join(lines)


def grown(counts: list[Count], recorded: Mapping[str, Count]) -> Iterator[str]:
    """Yield a sentence for each way that takes more instructions than the tolerance allows."""
    for count in counts:
        before = recorded.get(count.way)
        if before is not None and count.instructions > before.instructions * TOLERANCE:
            yield (
                f"{count.way} takes {count.instructions:,} instructions per request, "
                f"expected at most 3 % more than the recorded {before.instructions:,}"
            )


def dearer(counts: list[Count], recorded: Mapping[str, Count]) -> Iterator[str]:
    """Yield a sentence for each kind of request that costs more than its bound allows."""
    known = {**recorded, **{count.way: count for count in counts}}
    found = [known[way].instructions for way in (SENT_ON, REBUILT) if way in known]
    if len(found) > 1 and found[0] >= found[1]:
        yield f"{SENT_ON} takes {found[0]:,} instructions, expected fewer than {found[1]:,} rebuilt"
    for count in counts:
        way, _, kind = count.way.partition(" ")
        if BUILD == "compiled" and kind in BOUNDS and way in known:
            ratio = count.instructions / known[way].instructions
            if ratio > BOUNDS[kind]:
                yield (
                    f"{count.way} takes {ratio:.2f} times the instructions of {way}, "
                    f"expected at most {BOUNDS[kind]:.2f} times"
                )


def load(path: Path = RECORDED) -> dict[str, Count]:
    """Return the recorded counts of this build by way.

    Raises:
        CannotCountError: Another version of Python recorded them.
    """
    document = json.loads(path.read_text())
    if document["python"] != platform.python_version():
        raise CannotCountError(
            f"{path.name} was recorded with Python {document['python']}, "
            f"this is Python {platform.python_version()}: its figures differ (use --record)"
        )
    return {count.way: count for count in recorded(BUILD, path)}


def recorded(build: str, path: Path = RECORDED) -> list[Count]:
    """Return the recorded counts of a build, "compiled" or "plain Python", in their order."""
    builds = json.loads(path.read_text())["builds"]
    return [Count(**count) for count in builds.get(build, ())]


def record(counts: list[Count], path: Path = RECORDED) -> None:
    """Write *counts* of this build, and the version of Python, which they depend on.

    The other build keeps its figures, unless they are of another version of Python.
    """
    document = json.loads(path.read_text()) if path.exists() else {}
    version = platform.python_version()
    builds = document["builds"] if document.get("python") == version else {}
    builds[BUILD] = [asdict(each) for each in counts]
    path.write_text(json.dumps({"python": version, "builds": builds}, indent=2) + "\n")
