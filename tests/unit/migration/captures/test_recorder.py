"""The recorder: balanced counts, sealed segments, and full disks."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from structlog.testing import capture_logs

from gateway.ir.calls import InferResponse
from gateway.ir.context import ModelRef
from gateway.ir.tensors.data import SharedMemoryData, SlicedData
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import Tensor, array_tensor
from gateway.migration.captures.capture import Capture
from gateway.migration.captures.directory import (
    MANIFEST,
    append_line,
    new_segment,
    open_segments,
    read_manifest,
    tag_of,
)
from gateway.migration.captures.sampling import CaptureOptions
from gateway.settings.private_files import make_directory, replace_private, write_private
from gateway.shadow.draw import draw
from gateway.shadow.records.privacy import Privacy
from tests.unit.migration.captures.kit import LocalCapture, record, recorder
from tests.unit.shadow.kit import FULL, recordable, request


def assert_balanced(made: LocalCapture) -> None:
    counts = made.counts
    left_out = sum(counts.left_out.values())
    assert counts.sampled == counts.recorded + left_out + counts.in_flight


def test_calls_with_too_many_replies_are_skipped(tmp_path: Path) -> None:
    """They are counted, and the manifest has the count."""
    made = recorder(tmp_path, FULL, max_items=1)
    reply = InferResponse(model=ModelRef("m"), outputs=())
    for items in ([(1, reply), (2, reply)], [(1, reply)]):
        made.samples("fraud", "r")
        made.put(recordable(items=items))
    made.close()
    assert made.counts.left_out == {"too_many_items": 1}
    assert_balanced(made)
    (entry,) = read_manifest(tmp_path)[0]
    assert (entry["calls"], entry["skipped"], entry["dropped"]) == (1, {"too_many_items": 1}, {})


def test_payload_hash_writes_no_elements(tmp_path: Path) -> None:
    """Equal elements have equal hashes."""
    record(tmp_path, 2, Privacy(payload="hash"))
    one, other = Capture(tmp_path).calls()
    assert {each.data for each in one.tensors} == {None}
    assert [each.digest for each in one.tensors] == [each.digest for each in other.tensors]
    assert all(len(each.digest or b"") == 32 for each in one.tensors)


def test_tensors_in_shared_memory_are_skipped(tmp_path: Path) -> None:
    """Without payload the call is recorded, and with payload it is skipped."""
    tensor = Tensor("x", Datatype.FP32, (4,), SharedMemoryData("region", 0, 16))
    call = request().changed(inputs=(tensor,))
    for directory, privacy, left_out in (
        (tmp_path / "a", None, {}),
        (tmp_path / "b", FULL, {"shared_memory": 1}),
    ):
        made = recorder(directory, privacy)
        made.samples("fraud", "r")
        made.put(recordable(request=call))
        made.close()
        assert made.counts.left_out == left_out


def test_an_array_of_a_model_is_copied(tmp_path: Path) -> None:
    """The model may write to its array after its reply."""
    array = np.zeros(4, np.float32)
    made = recorder(tmp_path, FULL)
    made.samples("fraud", "r")
    reply = InferResponse(model=ModelRef("m"), outputs=(array_tensor("y", array),))
    made.put(recordable(items=[(1, reply)]))
    array[:] = 7
    made.close()
    (call,) = Capture(tmp_path).calls()
    outputs = call.outputs()
    assert outputs is not None
    assert outputs[0][0] == array_tensor("y", np.zeros(4, np.float32))


def test_segments_are_sealed_and_rotated(tmp_path: Path) -> None:
    """A full segment becomes a read-only file of the manifest, and the oldest are removed."""
    record(tmp_path, 300, FULL, segment_bytes=2000, max_bytes=1_500_000)
    found = Capture(tmp_path)
    assert len(found.segments) > 1
    assert {each.stat().st_mode & 0o777 for each in found.segments} == {0o440}
    removed = [entry for entry in read_manifest(tmp_path)[0] if "removed" in entry]
    assert removed
    calls, problems = found.verify()
    assert problems == []
    assert 0 < calls < 300


def test_a_full_directory_stops_the_capture(tmp_path: Path) -> None:
    """With `when_full: stop` one event is logged, and further calls are dropped."""
    with capture_logs() as logs:
        made = recorder(tmp_path, FULL, segment_bytes=1000, max_bytes=1000, rotates=False)
        while not made.stopped:
            made.samples("fraud", "r")
            made.put(recordable())
        made.samples("fraud", "r")
        made.put(recordable())
        made.close()
    assert [each["event"] for each in logs].count("capture stopped") == 1
    assert made.counts.dropped["stopped"] >= 1
    assert_balanced(made)
    assert made.counts.in_flight == 0


def test_a_full_disk_stops_the_capture(tmp_path: Path) -> None:
    """Below `min_free` nothing is written."""
    with capture_logs() as logs:
        made = recorder(tmp_path, min_free=1.0)
        made.samples("fraud", "r")
        made.put(recordable())
        made.close()
    assert "min_free" in made.stopped
    assert [each["event"] for each in logs] == ["capture stopped"]
    assert made.counts.in_flight == 0
    assert_balanced(made)


def test_a_vanished_directory_stops_the_capture(tmp_path: Path) -> None:
    """Calls into a removed file are not counted as recorded."""
    made = recorder(tmp_path / "c")
    made.samples("fraud", "r")
    made.put(recordable())
    while not made.counts.recorded:
        made.samples("fraud", "x")
        made.put(recordable())
    for path in (tmp_path / "c").iterdir():
        path.unlink()
    while not made.stopped:
        made.samples("fraud", "r")
        made.put(recordable())
    made.close()
    assert_balanced(made)
    assert made.counts.in_flight == 0


def test_an_uncreatable_directory_fails_the_start(tmp_path: Path) -> None:
    """No call fails instead."""
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        recorder(tmp_path / "file" / "c")


def test_samples_are_the_same_everywhere() -> None:
    """The draw depends only on key and name, and its share is the configured one."""
    assert draw("r1") == draw("r1") != draw("r1", "other")
    drawn = [draw(f"r{number}") < 0.05 for number in range(20_000)]
    assert 800 < sum(drawn) < 1200


def test_models_option_selects_the_recorded_models(tmp_path: Path) -> None:
    """`models` records only calls of these."""
    made = recorder(tmp_path, models=frozenset({"fraud"}))
    assert [made.samples(name, "r") for name in ("fraud", "other")] == [True, False]
    made.close()


_WRITER = """
import sys
from pathlib import Path
from tests.unit.migration.captures.kit import LocalCapture, recorder
from tests.unit.shadow.kit import FULL, recordable

made = recorder(Path(sys.argv[1]), FULL)
number = 0
while True:
    made.samples("fraud", "r")
    made.put(recordable(number))
    number += 1
    if made.counts.recorded:
        print(made.counts.recorded, flush=True)
"""


@pytest.mark.timeout(60)
@pytest.mark.parametrize("reports", [1, 40, 400])
def test_a_killed_process_loses_only_the_last_transaction(tmp_path: Path, reports: int) -> None:
    """After kill -9 every committed call is readable, and the next start seals the segment."""
    process = subprocess.Popen(
        [sys.executable, "-c", _WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    committed = 0
    for _ in range(reports):
        committed = int(process.stdout.readline())
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert open_segments(tmp_path)
    recorder(tmp_path).close()
    assert not open_segments(tmp_path)
    calls, problems = Capture(tmp_path).verify()
    assert problems == []
    assert calls >= committed


def test_a_segment_in_use_is_not_recovered(tmp_path: Path) -> None:
    """A second process does not touch the open segment of the first one."""
    first = recorder(tmp_path)
    first.samples("fraud", "r")
    first.put(recordable())
    while not first.counts.recorded:
        pass
    second = recorder(tmp_path)
    assert len(open_segments(tmp_path)) == 1
    second.close()
    first.close()
    assert Capture(tmp_path).verify() == (1, [])


def test_a_truncated_manifest_line_is_removed(tmp_path: Path) -> None:
    """A crash during the write of the manifest leaves no unreadable line."""
    record(tmp_path, 1)
    with (tmp_path / MANIFEST).open("ab") as file:
        file.write(b'{"segment": "x')
    append_line(tmp_path, {"removed": "y"})
    entries, problems = read_manifest(tmp_path)
    assert problems == []
    assert [entry.get("removed") for entry in entries] == [None, "y"]


def test_a_partly_sealed_segment_is_added_to_the_manifest(tmp_path: Path) -> None:
    """A crash between rename and manifest line is repaired at the next start."""
    record(tmp_path, 2)
    (tmp_path / MANIFEST).unlink()
    assert Capture(tmp_path).verify()[1]
    recorder(tmp_path).close()
    assert Capture(tmp_path).verify() == (2, [])


def test_closing_twice_is_harmless(tmp_path: Path) -> None:
    """`close` ends the thread once."""
    made = recorder(tmp_path)
    made.close()
    made.close()
    assert not [each for each in threading.enumerate() if each.name == "capture"]


def test_an_unwritable_call_counts_as_dropped(tmp_path: Path) -> None:
    """An internal error drops one call, and the thread continues."""
    made = recorder(tmp_path)
    made.samples("fraud", "r")
    made.put(recordable(started_us=1 << 63))  # more than an integer of SQLite
    made.samples("fraud", "r")
    made.put(recordable())
    made.close()
    assert made.counts.dropped == {"internal": 1}
    assert made.counts.recorded == 1


def test_an_unwritable_call_affects_no_other_call(tmp_path: Path) -> None:
    """A size beyond 64 bits drops one call, and the capture stays valid."""
    buffer = SlicedData(memoryview(b"ab"), 0, 1 << 63)
    bad = request(1).changed(inputs=(Tensor("x", None, None, buffer),))
    made = recorder(tmp_path, FULL)
    for number, call in enumerate((request(0), bad, request(2))):
        assert made.samples("fraud", f"r{number}")
        made.put(recordable(number, request=call))
    made.close()
    assert (made.counts.recorded, made.counts.dropped, made.stopped) == (2, {"internal": 1}, "")
    capture = Capture(tmp_path)
    assert [call.call.at_us % 10 for call in capture.calls()] == [0, 2]
    assert capture.verify() == (2, [])


def test_a_call_is_found_by_each_of_its_ids(tmp_path: Path) -> None:
    """They are its own one, its request id, and the id that the client wrote into the body."""
    made = recorder(tmp_path)
    for number in range(2):
        made.samples("m", f"r{number}")
        made.put(recordable(number))
    made.close()
    found = Capture(tmp_path)
    first = found.call("r0")
    assert first is not None
    assert "own" == first.client_id
    for name in (first.id, "own"):
        call = found.call(name)
        assert call is not None
        assert first.id == call.id
    assert found.call("no such id") is None


def test_ids_of_calls_look_like_ids(tmp_path: Path) -> None:
    """They begin with a letter, so that nobody takes one for a number or a range."""
    tags = set()
    for _ in range(50):
        path = new_segment(tmp_path)
        path.touch()
        tags.add(tag_of(path))
    assert 50 == len(tags)
    assert all(re.fullmatch("[a-f][0-9a-f]{3}", tag) for tag in tags)


@pytest.mark.parametrize("umask", [0o000, 0o022])
def test_directories_are_private_under_any_umask(tmp_path: Path, umask: int) -> None:
    """Those above are, too; one that exists keeps its mode."""
    (tmp_path / "there").mkdir(0o755)
    (tmp_path / "there").chmod(0o755)
    before = os.umask(umask)
    try:
        make_directory(tmp_path / "there" / "state" / "cutover")
        write_private(tmp_path / "there" / "state" / "file", b"x")
        replace_private(tmp_path / "there" / "other" / "sub" / "file", b"x")
    finally:
        os.umask(before)
    found = {
        name: (tmp_path / "there" / name).stat().st_mode & 0o777
        for name in (".", "state", "state/cutover", "state/file", "other", "other/sub/file")
    }
    assert {
        ".": 0o755,
        "state": 0o700,
        "state/cutover": 0o700,
        "state/file": 0o600,
        "other": 0o700,
        "other/sub/file": 0o600,
    } == found


def shares_of(directory: Path) -> list[tuple[str, int]]:
    return [(each.percent, each.calls) for each in Capture(directory).summaries()]


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        ((0, 100), [("100", 3)]),
        ((0, 20), [("20", 3)]),
        ((100, 20), [("100", 3), ("20", 3)]),
        ((20, 100), [("20", 3), ("100", 3)]),
        ((100, 0, 100), [("100", 6)]),
        ((100, 20, 100), [("100", 3), ("20", 3), ("100", 3)]),
    ],
    ids=str,
)
def test_each_segment_has_the_share_in_force_at_its_time(
    tmp_path: Path, shares: tuple[float, ...], expected: list[tuple[str, int]]
) -> None:
    """A capture that was off has the share of its start, and the least share judges its times."""
    now = [0.0]
    options = CaptureOptions(directory=tmp_path, percent=shares[0], min_free=0.0)
    made = LocalCapture(options, clock=lambda: now[0])
    for percent in shares:
        made.change(replace(options, percent=percent))
        now[0] += 60
        for number in range(3 if percent else 0):
            made.counts.sampled += 1
            made.put(recordable(number))
        made.flush()
    made.close()
    assert expected == shares_of(tmp_path)
    assert (
        min((share for share, _ in expected), key=float)
        == Capture(tmp_path).description()["percent"]
    )


def test_workers_that_follow_a_larger_share_later_begin_no_segment_each(tmp_path: Path) -> None:
    """Within a second, calls of both shares are in one segment, which has the smaller share."""
    options = CaptureOptions(directory=tmp_path, percent=20, min_free=0.0)
    made = LocalCapture(options, clock=lambda: 7.0)
    for percent in (20, 100, 20, 100, 20):
        made.change(replace(options, percent=percent))
        made.counts.sampled += 1
        made.put(recordable())
    made.close()
    assert [("20", 5)] == shares_of(tmp_path)
