"""A replay in shards: each call in one of them, and joined results that are those of one process."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from gateway.ir.calls import InferRequest, InferResponse
from gateway.ir.context import CallSequence, Context, ModelRef, Need
from gateway.ir.tensors.tensor import array_tensor
from gateway.migration.captures.capture import Capture
from gateway.migration.replay.shards import Shard, parse_shard
from gateway.shadow.records.privacy import Privacy
from gateway.shadow.records.records import Recordable
from tests.integration.cli_kit import Running, gateway, serving
from tests.unit.migration.captures.kit import recorder

pytestmark = pytest.mark.timeout(180)

CALLS, SHARDS = 400, 16
CONFIG = """
version: 1
listeners: [{grpc: "127.0.0.1:0"}]
admin: {address: null, metrics: null}
models: {m: {backend: python, options: {callable: "tests.integration.shard_models:twice"}}}
lifecycle: {pre_stop: 0s}
"""


def recordable(number: int) -> Recordable:
    """Return a call with its old reply; every fifth one belongs to one of eight sequences."""
    sequence = CallSequence(number % 8 + 1, start=number < 40) if number % 5 == 0 else None
    context = Context(protocol="oip.grpc", request_id=f"r{number}", needs=frozenset({Need.NAMES}))
    request = InferRequest(
        model=ModelRef("m"),
        context=context,
        inputs=(array_tensor("X", np.array([number], np.float32)),),
        sequence=sequence,
    )
    reply = InferResponse(
        model=ModelRef("m"), outputs=(array_tensor("Y", np.array([number * 2], np.float32)),)
    )
    return Recordable(
        # Some calls began in the same microsecond.
        started_us=1_700_000_000_000_000 + number // 3,
        request=request,
        kind="InferRequest",
        context=context,
        took_us=1500,
        items=[(1400, reply)],
    )


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("capture")
    made = recorder(folder, Privacy(payload="full"))
    for number in range(CALLS):
        assert made.samples("m", f"r{number}")
        made.put(recordable(number))
    made.close()
    assert made.counts.recorded == CALLS
    return folder


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    path = tmp_path_factory.mktemp("server") / "gateway.yaml"
    path.write_text(CONFIG)
    with serving(str(path)) as found:
        yield found


def replay(server: Running, capture: str, *flags: str) -> str:
    """Run `gateway replay` to its end; return what it prints."""
    url = f"oip+grpc://{server.addresses['main.grpc']}"
    done = gateway("replay", capture, "--against", url, *flags)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def diff(*words: str) -> tuple[int, str, str]:
    done = gateway("diff", *words)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def results(
    server: Running, capture: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """Return the results of one process, those of all shards, and the store with both kinds."""
    folder = tmp_path_factory.mktemp("results")
    replay(server, str(capture), "-o", str(folder / "whole"))
    store = folder / "store"

    def run(index: int) -> str:
        return replay(
            server,
            f"file://{capture}",
            "--shard",
            f"{index}/{SHARDS}",
            "-o",
            f"file://{store}/results",
        )

    with ThreadPoolExecutor(2) as threads:
        assert len(list(threads.map(run, range(SHARDS)))) == SHARDS
    return {"whole": folder / "whole", "shards": store / "results"}


def test_each_call_is_in_one_shard_and_sequences_are_whole(
    capture: Path, results: dict[str, Path]
) -> None:
    """All calls are in the results once, and those of a sequence in one file."""
    ids: Counter[str] = Counter()
    homes: dict[str, set[str]] = {}
    for segment in Capture(results["shards"]).segments:
        for call in Capture(segment).calls():
            ids[call.call.request_id] += 1
            if call.call.sequence is not None:
                homes.setdefault(json.loads(call.call.sequence)[0], set()).add(segment.name)
    assert ids == Counter(call.call.request_id for call in Capture(capture).calls())
    assert len(homes) == 8
    assert all(len(names) == 1 for names in homes.values())


@pytest.mark.parametrize("output", ["text", "json"])
def test_joined_results_are_those_of_one_process(
    capture: Path, results: dict[str, Path], output: str
) -> None:
    """`diff` prints the same bytes, but for the times of two replays."""
    one = diff(str(capture), str(results["whole"]), "--output", output)
    several = diff(str(capture), f"file://{results['shards']}", "--output", output)
    assert one[0] == several[0] == 0
    if output == "text":
        assert one[1] == several[1]
        assert f"{CALLS} calls compared" in one[1]
        return
    documents = [json.loads(each[1]) for each in (one, several)]
    for document in documents:  # both were sent at another time
        del document["latency"]
    assert documents[0] == documents[1]


def test_the_report_joins_shards(capture: Path, results: dict[str, Path], tmp_path: Path) -> None:
    """Separate places of the shards are one recording, whatever their order."""
    pages = []
    segments = [str(each) for each in sorted(results["shards"].glob("*.capture"))]
    for number, words in enumerate((segments, reversed(segments))):
        page = tmp_path / f"{number}.md"
        done = gateway("report", str(capture), *words, "--markdown", str(page))
        assert done.returncode == 0, done.stderr
        pages.append(sorted(page.read_text().splitlines()))
    assert pages[0] == pages[1]
    assert any(f"{CALLS}" in line for line in pages[0])


def test_a_missing_shard_is_named(capture: Path, results: dict[str, Path]) -> None:
    """The exit status is 1, also of a report, and nothing is compared."""
    segments = [
        str(each) for each in results["shards"].glob("*.capture") if "shard-5-" not in each.name
    ]
    assert (1, "") == diff(str(capture), *segments)[:2]
    assert "shard 5 of 16 is missing" in diff(str(capture), *segments)[2]
    done = gateway("report", str(capture), *segments, "--markdown", "-")
    assert 1 == done.returncode
    assert "shard 5 of 16 is missing" in done.stderr


def test_a_doubled_shard_is_named(
    server: Running, capture: Path, results: dict[str, Path], tmp_path: Path
) -> None:
    """A second run of a shard in another place is no part of the first."""
    again = str(tmp_path / "again")
    replay(server, str(capture), "--shard", "3/16", "-o", again)
    status, _, text = diff(str(capture), f"file://{results['shards']}", again)
    assert 1 == status
    assert "shard 3 of 16 is there 2 times: " in text


def test_another_run_of_a_shard_replaces_the_first_in_a_store(
    server: Running, capture: Path, results: dict[str, Path]
) -> None:
    """A pod that is started again leaves no second results."""
    place = f"file://{results['shards']}"
    replay(server, str(capture), "--shard", "3/16", "-o", place)
    assert 0 == diff(str(capture), place)[0]


def test_shards_share_a_folder(server: Running, capture: Path, tmp_path: Path) -> None:
    """Results of all calls go into an empty folder only."""
    out = str(tmp_path / "out")
    for index in range(2):
        replay(server, str(capture), "--shard", f"{index}/2", "-o", out)
    assert 0 == diff(str(capture), out)[0]
    url = f"oip+grpc://{server.addresses['main.grpc']}"
    done = gateway("replay", str(capture), "--against", url, "-o", out)
    assert (2, True) == (done.returncode, "is not empty" in done.stderr)


@pytest.mark.parametrize(
    ("text", "variables", "expected"),
    [
        ("0/4", {}, Shard(0, 4)),
        ("auto/4", {"JOB_COMPLETION_INDEX": "3"}, Shard(3, 4)),
        ("auto", {"JOB_COMPLETION_INDEX": "1", "JOB_COMPLETIONS": "2"}, Shard(1, 2)),
        ("4/4", {}, "does not exist"),
        ("1", {}, "expected I/N"),
        ("-1/4", {}, "expected I/N"),
        ("1/0", {}, "does not exist"),
        ("auto/4", {}, "JOB_COMPLETION_INDEX"),
        ("auto", {"JOB_COMPLETION_INDEX": "1"}, "JOB_COMPLETIONS"),
    ],
)
def test_the_flag_names_a_shard(
    text: str, variables: dict[str, str], expected: Shard | str
) -> None:
    """`auto` is the number of a pod of an indexed Job."""
    if isinstance(expected, Shard):
        assert expected == parse_shard(text, variables)
        return
    with pytest.raises(ValueError, match=expected):
        parse_shard(text, variables)


@pytest.mark.parametrize("verb", ["ls", "verify"])
def test_verbs_read_captures_by_url(capture: Path, results: dict[str, Path], verb: str) -> None:
    """Uploaded segments have their lines of the manifest."""
    for place in (f"file://{capture}", f"file://{results['shards']}"):
        done = gateway("capture", verb, place)
        assert 0 == done.returncode, done.stdout + done.stderr
    assert (2, True) == (
        (done := gateway("capture", verb, "s3://")).returncode,
        "names no bucket" in done.stderr,
    )
