"""Capture files that are damaged or malicious."""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path

import pytest
from msgspec.structs import replace  # noqa: TID251  # rows have no wire origin

from gateway.migration.captures import segment_reader
from gateway.migration.captures.capture import Capture
from gateway.migration.captures.directory import SEALED
from gateway.migration.captures.segment_reader import SegmentReader, UnreadableSegment
from gateway.migration.captures.segment_writer import SegmentWriter, recover
from gateway.shadow.records.privacy import Hasher
from gateway.shadow.records.records import RecordedCall, record_of
from tests.unit.migration.captures.kit import record
from tests.unit.shadow.kit import FULL, recordable


@pytest.fixture(scope="module")
def segment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("capture")
    record(directory, 20, FULL)
    return Capture(directory).segments[0]


def copy_of(segment: Path, directory: Path, *statements: str) -> Path:
    """Return a copy of a segment that was changed by SQL."""
    path = directory / f"copy-ab12{SEALED}"
    path.write_bytes(segment.read_bytes())
    database = sqlite3.connect(path)
    for statement in statements:
        database.execute(statement)
    database.commit()
    database.close()
    return path


def read(path: Path) -> tuple[int, list[str]]:
    with SegmentReader(path) as reader:
        return sum(1 for _ in reader.calls()), reader.problems


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TRIGGER evil AFTER INSERT ON calls BEGIN SELECT load_extension('x'); END",
        "CREATE VIEW evil AS SELECT * FROM calls",
        "CREATE TABLE evil (a)",
        "ALTER TABLE calls ADD COLUMN evil AS (length(code))",
        "DROP TABLE wire",
        "PRAGMA application_id = 1",
    ],
)
def test_another_schema_is_rejected(segment: Path, tmp_path: Path, statement: str) -> None:
    """Only the tables, indexes and triggers of the version are accepted; none of them runs."""
    with pytest.raises(UnreadableSegment):
        SegmentReader(copy_of(segment, tmp_path, statement))


def test_an_unknown_version_is_rejected(segment: Path, tmp_path: Path) -> None:
    """The error has the version of a file of a newer gateway."""
    path = copy_of(segment, tmp_path, "PRAGMA user_version = 99")
    with pytest.raises(UnreadableSegment, match="capture version 99; expected 1"):
        SegmentReader(path)


def test_a_changed_row_is_skipped_and_reported(segment: Path, tmp_path: Path) -> None:
    """A row that does not match its checksum drops only its own call."""
    path = copy_of(
        segment,
        tmp_path,
        "DROP TRIGGER tensors_update",
        "UPDATE tensors SET data = x'00' WHERE call = 7 AND name = 'text'",
        "CREATE TRIGGER tensors_update BEFORE UPDATE ON tensors "
        "BEGIN SELECT RAISE(ABORT, 'a capture is append-only'); END",
    )
    assert read(path) == (19, ["ab12-7: its checksum is wrong"])
    found = Capture(path)
    assert found.verify() == (19, ["ab12-7: its checksum is wrong"])


def test_a_schema_of_bytes_is_rejected(segment: Path, tmp_path: Path) -> None:
    """SQLite accepts bytes as the text of a table; the reader does not."""
    statement = "UPDATE sqlite_master SET sql = CAST(sql AS BLOB) WHERE name = 'calls'"
    path = copy_of(segment, tmp_path, "PRAGMA writable_schema = ON", statement)
    with pytest.raises(UnreadableSegment, match="its tables are not those of version 1"):
        SegmentReader(path)


@pytest.mark.timeout(60)
def test_unordered_call_numbers_end_the_reading(segment: Path, tmp_path: Path) -> None:
    """A page whose last call has the number of the first one causes no endless loop."""
    path = tmp_path / f"copy-ab12{SEALED}"
    content = bytearray(segment.read_bytes())
    database = sqlite3.connect(segment)
    ((root,),) = database.execute("SELECT rootpage FROM sqlite_master WHERE name = 'calls'")
    ((size,),) = database.execute("PRAGMA page_size")
    database.close()
    page = (root - 1) * size
    last = page + 8 + 2 * 19  # the place of the 20th cell of a leaf
    cell = page + int.from_bytes(content[last : last + 2], "big")
    while content[cell] & 0x80:  # the length of the row, in seven bits a byte
        cell += 1
    assert content[cell + 1] == 20
    content[cell + 1] = 1
    path.write_bytes(content)
    assert read(path) == (0, [f"{path.name}: the calls after 0 are in no order"])


@pytest.mark.parametrize(
    "line",
    [
        '{"segment": [1], "previous": ""}',
        '{"removed": {}, "previous": ""}',
        "[" * 100_000,
        '{"segment": "NAME", "previous": "", "dropped": {"queue": [1]}}',
    ],
)
def test_a_hostile_manifest_is_reported(tmp_path: Path, line: str) -> None:
    """Entries of other types are problems, and no command fails on them."""
    record(tmp_path, 3, FULL)
    capture = Capture(tmp_path)
    (tmp_path / "MANIFEST.jsonl").write_text(line.replace("NAME", capture.segments[0].name) + "\n")
    assert capture.verify()[1]
    assert capture.dropped_calls() == {}
    assert [each.calls for each in capture.summaries()] == [3]


def test_other_files_do_not_prevent_the_search_of_a_call(tmp_path: Path) -> None:
    """The start of a recording does not fail because of them either."""
    record(tmp_path, 3, FULL)
    (tmp_path / f"20200101T000000-aaaa{SEALED}").write_text("hello")
    capture = Capture(tmp_path)
    found = capture.call("r2")
    assert found is not None
    assert found.call.request_id == "r2"
    assert len(capture.problems) == 1
    assert recover(tmp_path) == []


def test_a_segment_in_a_directory_with_an_encoded_name_is_recovered(tmp_path: Path) -> None:
    """The name of a directory is not decoded like a URI: "%41" is not "A"."""
    directory = tmp_path / "m%41?x#y"
    record(directory, 3, FULL)
    (directory / "MANIFEST.jsonl").unlink()  # as if the process had died before it wrote the line
    assert recover(directory) == Capture(directory).segments
    assert Capture(directory).verify() == (3, [])


def test_a_call_with_too_many_bytes_is_skipped(
    segment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sum of its values is checked before they are read, not only each size."""
    monkeypatch.setattr(segment_reader, "_MAX_CALL_BYTES", 1_000_000)
    monkeypatch.setattr(segment_reader, "_BYTES_AT_ONCE", 1_000_000)
    insert = (
        "INSERT INTO tensors VALUES (3, 'input', 0, 9, 'x', 'UINT8', '[1]', 'raw', 4, 4, NULL, "
        "zeroblob(400000))"
    )
    path = copy_of(segment, tmp_path, insert, insert, insert)
    count, problems = read(path)
    assert count == 19
    assert "bytes; at most 1000000 are read" in problems[0]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("size", ["zeroblob(300000000)", "x'00'", "1.5"])
def test_values_of_another_type_or_size_are_skipped(
    segment: Path, tmp_path: Path, size: str
) -> None:
    """A huge or mistyped value is not read."""
    path = copy_of(
        segment,
        tmp_path,
        f"INSERT INTO tensors VALUES (3, 'input', 0, 9, 'x', 'FP32', '[1]', {size}, 4, 4, NULL, "  # noqa: S608
        "NULL)",
    )
    count, problems = read(path)
    assert count == 19
    assert len(problems) == 1


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("details", "5"),
        ("details", "{"),
        ("details", "[" * 100_000),
        ("details", '{"outputs": 5}'),
        ("needs", "x"),
        ("sequence", "{"),
        ("sequence", f"[{1 << 64}, true, true]"),
        ("code", "no_code"),
        ("at_us", -1),
        ("at_us", 1 << 62),
        ("parameters", "[1]"),
        ("parameters", '{"a": {"b": 1}}'),
        ("details", "[]"),
        ("details", '{"id": 5}'),
        ("details", '{"batch_size": "x"}'),
        ("details", '{"outputs": [["y", "x"]]}'),
        ("details", '{"flat_members": 5}'),
    ],
)
def test_malformed_values_with_a_valid_checksum_are_skipped(
    tmp_path: Path, field: str, value: str | int
) -> None:
    """Each such call is reported."""
    good = record_of(recordable(), FULL, Hasher())
    bad = RecordedCall(replace(good.call, **{field: value}), good.tensors, good.items)
    writer = SegmentWriter(tmp_path, {})
    writer.begin()
    for call in (good, bad, good):
        writer.add(call)
    writer.commit()
    count, problems = read(writer.seal({}))
    assert (count, len(problems)) == (2, 1)
    assert "malformed" in problems[0]


def test_truncated_files_lose_only_calls(segment: Path, tmp_path: Path) -> None:
    """A file cut at any byte is rejected, or its complete calls are read."""
    whole = segment.read_bytes()
    cuts = [0, 1, 15, 16, 100, 4096, *random.Random(1).sample(range(len(whole)), 60)]  # noqa: S311
    for cut in cuts:
        path = tmp_path / f"cut-ab12{SEALED}"
        path.write_bytes(whole[:cut])
        try:
            count, problems = read(path)
        except UnreadableSegment:
            continue
        assert count == 20 or problems, cut


def test_flipped_bits_are_detected_or_harmless(segment: Path, tmp_path: Path) -> None:
    """Every call that is read from such a file equals a recorded one."""
    original = {call.id.rpartition("-")[2]: call.crc32() for call in SegmentReader(segment).calls()}
    whole = segment.read_bytes()
    generator = random.Random(2)  # noqa: S311
    for _ in range(150):
        changed = bytearray(whole)
        changed[generator.randrange(len(whole))] ^= 1 << generator.randrange(8)
        path = tmp_path / f"flip-ab12{SEALED}"
        path.write_bytes(changed)
        try:
            with SegmentReader(path) as reader:
                for call in reader.calls():
                    assert original[call.id.rpartition("-")[2]] == call.crc32()
        except UnreadableSegment:
            continue


def test_other_files_are_rejected(tmp_path: Path) -> None:
    """A text file, a missing file and an empty directory are no captures."""
    path = tmp_path / f"text{SEALED}"
    path.write_text("hello")
    with pytest.raises(UnreadableSegment, match="no SQLite file"):
        SegmentReader(path)
    for missing in (tmp_path / "nothing", tmp_path / "empty"):
        with pytest.raises(UnreadableSegment, match="no capture"):
            Capture(missing)


def test_verify_detects_a_changed_file_and_repair_keeps_the_rest(tmp_path: Path) -> None:
    """The checksum of the segment is wrong; repair copies its complete calls."""
    record(tmp_path, 20, FULL)
    segment = Capture(tmp_path).segments[0]
    segment.chmod(0o600)
    database = sqlite3.connect(segment)
    database.execute("DROP TRIGGER tensors_update")
    database.execute("UPDATE tensors SET data = x'00' WHERE call = 7 AND name = 'text'")
    database.execute(
        "CREATE TRIGGER tensors_update BEFORE UPDATE ON tensors "
        "BEGIN SELECT RAISE(ABORT, 'a capture is append-only'); END"
    )
    database.commit()
    database.close()
    _, problems = Capture(tmp_path).verify()
    assert len(problems) == 2
    assert Capture(tmp_path).repair() == 19
    assert Capture(tmp_path).verify() == (19, [])


def test_a_missing_segment_is_reported(tmp_path: Path) -> None:
    """Missing segments of the manifest and changed lines are problems."""
    record(tmp_path, 200, FULL, segment_bytes=2000)
    segments = Capture(tmp_path).segments
    segments[0].unlink()
    assert Capture(tmp_path).verify()[1] == [
        f"{segments[0].name}: listed in MANIFEST.jsonl, but missing"
    ]
    manifest = tmp_path / "MANIFEST.jsonl"
    manifest.write_bytes(manifest.read_bytes().replace(b'"calls": ', b'"calls":  ', 1))
    assert any("does not follow" in each for each in Capture(tmp_path).verify()[1])
