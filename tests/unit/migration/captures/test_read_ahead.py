"""A segment is read many calls at once, with the same result as one call after the other."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from gateway.migration.captures.segment_reader import SegmentReader
from gateway.migration.captures.segment_writer import SegmentWriter
from gateway.shadow.records.records import CallRow, ItemRow, RecordedCall, TensorRow


def record(number: int, data: bytes = b"\0" * 16) -> RecordedCall:
    call = CallRow(at_us=number, took_us=5, request_id=f"r{number}", kind="InferRequest", model="é")
    rows = [
        TensorRow("input", 0, 0, "x", "FP32", "[4]", "raw", None, len(data), None, data),
        TensorRow("old", 0, 0, "y", "FP32", "[4]", "raw", None, 16, b"d" * 8),
    ]
    return RecordedCall(call, rows, [ItemRow(0, 3, "ok")])


def segment(directory: Path, records: list[RecordedCall]) -> Path:
    writer = SegmentWriter(directory, {})
    writer.begin()
    for each in records:
        writer.add(each)
    writer.commit()
    return writer.seal({})


def damage(path: Path, statement: str) -> None:
    path.chmod(0o600)
    with sqlite3.connect(path) as database:
        triggers = database.execute(
            "SELECT name, sql FROM sqlite_master WHERE type = 'trigger'"
        ).fetchall()
        for name, _ in triggers:
            database.execute(f"DROP TRIGGER {name}")
        database.execute(statement)
        for _, text in triggers:
            database.execute(text)
    database.close()


@pytest.mark.parametrize("count", [1, 63, 64, 65, 200])
def test_every_call_is_read_once(tmp_path: Path, count: int) -> None:
    """Calls are read forwards, by number, and backwards."""
    path = segment(tmp_path, [record(number) for number in range(1, count + 1)])
    expected = [f"r{number}" for number in range(1, count + 1)]
    with SegmentReader(path) as reader:
        assert expected == [each.call.request_id for each in reader.calls()]
        for numbers in (range(1, count + 1), range(count, 0, -1)):
            found = [reader.call(number) for number in numbers]
            names = [each.call.request_id for each in found if each is not None]
            assert [f"r{number}" for number in numbers] == names
        assert (None, []) == (reader.call(count + 1), reader.problems)


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("UPDATE calls SET took_us = 6 WHERE seq = 70", "its checksum is wrong"),
        ("UPDATE calls SET at_us = 'x' WHERE seq = 70", "Expected `int`, got `str`"),
        ("UPDATE tensors SET name = 'z' WHERE call = 70 AND side = 'old'", "its checksum is wrong"),
        ("UPDATE tensors SET place = 'z' WHERE call = 70", "Expected `int`, got `str`"),
        ("DELETE FROM items WHERE call = 70", "its checksum is wrong"),
        ("UPDATE calls SET details = '[' WHERE seq = 70", "its checksum is wrong"),
    ],
)
def test_a_damaged_call_affects_no_other_call(tmp_path: Path, statement: str, problem: str) -> None:
    """It is reported once, when it is read."""
    path = segment(tmp_path, [record(number) for number in range(1, 101)])
    damage(path, statement)
    with SegmentReader(path) as reader:
        assert 99 == sum(1 for _ in reader.calls())
        assert [True] == [problem in each and "-46: " in each for each in reader.problems]
    with SegmentReader(path) as reader:
        assert 69 == len([reader.call(number) for number in range(1, 70)])
        assert [] == reader.problems
        assert reader.call(70) is None
        assert 1 == len(reader.problems)
        assert reader.call(71) is not None


def test_large_calls_are_read_one_by_one(tmp_path: Path) -> None:
    """64 of them together would need too much memory."""
    path = segment(tmp_path, [record(number, b"\1" * (1 << 20)) for number in range(1, 9)])
    with SegmentReader(path) as reader:
        sizes = [each.nbytes for each in reader.calls()]
    assert [1 << 20] * 8 == sizes
