"""Which parts of a call are written, and how they are decoded."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace  # noqa: TID251  # rows have no wire origin

from gateway.ir.errors import ErrorCode, GatewayError
from gateway.ir.tensors.data import JsonLayout, RawData, SlicedData, UntypedData, UntypedRules
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import Tensor
from gateway.migration.captures.capture import Capture, _by_start
from gateway.migration.captures.redact import Redaction, redact
from gateway.migration.captures.segment_reader import SegmentReader
from gateway.shadow.records.privacy import Hasher, Privacy, is_credential
from gateway.shadow.records.records import Recordable, RecordedCall, record_of, with_hashes
from tests.unit.migration.captures.kit import record, recorder
from tests.unit.shadow.kit import FULL, HEADER, SECRET, recordable, request


def contents(directory: Path) -> bytes:
    return b"".join(each.read_bytes() for each in sorted(directory.iterdir()))


def only_call(directory: Path) -> RecordedCall:
    (call,) = Capture(directory).calls()
    return call


def test_a_call_round_trips(tmp_path: Path) -> None:
    """With full payload and parameters, request and reply equal the recorded ones."""
    record(tmp_path, 1, FULL)
    call = only_call(tmp_path)
    expected = request()
    context = expected.context.changed(metadata=())
    assert call.request() == expected.changed(context=context)
    assert call.missing == ""
    assert call.class_outputs == {"y"}
    outputs = call.outputs()
    assert outputs == tuple(item.outputs for _, item in recordable().items)
    assert (call.call.took_us, call.call.at_us) == (1500, 1_700_000_000_000_000)


@pytest.mark.parametrize("payload", ["none", "hash"])
def test_no_secret_is_written_by_default(tmp_path: Path, payload: str) -> None:
    """Elements, parameters, headers and error texts are written only on request."""
    privacy = Privacy() if payload == "none" else Privacy(payload="hash")
    directory = tmp_path / "capture"
    record(directory, 1, privacy)
    written = contents(directory)
    assert b"features" in written
    assert SECRET not in written
    assert HEADER.encode() not in written
    assert only_call(directory).missing == "payload not recorded"
    assert oct(directory.stat().st_mode & 0o777) == "0o700"


def test_error_texts_need_full_payload() -> None:
    """The text of an error may quote a request."""
    for privacy, text in ((Privacy(), ""), (FULL, SECRET.decode())):
        failed = recordable(items=[])
        failed.code, failed.error = "not_found", SECRET.decode()
        row = record_of(failed, privacy, Hasher()).call
        assert (row.code, row.error) == ("not_found", text)
        assert record_of(failed, privacy, Hasher()).error_code is ErrorCode.NOT_FOUND


def test_hashes_are_equal_for_equal_elements_of_one_process() -> None:
    """Hashes show equal elements of calls, and their key is not written."""
    rows = [record_of(recordable(), Privacy(payload="hash"), Hasher()).tensors for _ in range(2)]
    one, other = ([each.digest for each in found] for found in rows)
    assert one != other
    hasher = Hasher()
    assert hasher(memoryview(b"a")) == hasher(memoryview(b"a")) != hasher(memoryview(b"b"))


def test_payload_by_tensor() -> None:
    """`tensors` overrides the payload of single tensors."""
    privacy = Privacy(payload="full", tensors={"text": "hash", "y": "none"})
    rows = {each.name: each for each in record_of(recordable(), privacy, Hasher()).tensors}
    assert rows["features"].data is not None
    assert rows["text"].data is None
    assert rows["text"].digest is not None
    assert (rows["y"].data, rows["y"].digest) == (None, None)


@pytest.mark.parametrize(
    "name",
    [
        "Authorization",
        "cookie",
        "Set-Cookie",
        "x-api-key",
        "X-Auth-Token",
        "proxy-authorization",
        "apikey",
        "X-ApiKey",
        "x-client-jwt",
        "x-credentials",
    ],
)
def test_credential_headers_are_rejected(name: str) -> None:
    """No configuration records a credential."""
    assert is_credential(name)
    with pytest.raises(ValueError, match="credential"):
        Privacy(headers=(name,))


def test_wire_messages_need_full_payload() -> None:
    """A message contains all tensors."""
    with pytest.raises(ValueError, match="expected 'full'"):
        Privacy(wire=True)


def test_slices_round_trip() -> None:
    """Inputs of sizes that only the model knows stay slices of one buffer."""
    whole = memoryview(np.arange(8, dtype=np.uint8).tobytes())
    inputs = tuple(
        Tensor(f"x{index}", None, (2,), SlicedData(whole, index, 4)) for index in range(2)
    )
    record = record_of(recordable(request=request().changed(inputs=inputs)), FULL, Hasher())
    read = record.request().inputs
    assert read == inputs


def sliced_call() -> Recordable:
    """Return a call of two inputs whose elements are in one buffer, with a secret in the second."""
    whole = memoryview(b"public" + SECRET)
    inputs = tuple(Tensor(n, None, None, SlicedData(whole, i)) for i, n in enumerate(("a", "b")))
    return recordable(request=request().changed(inputs=inputs), items=[])


@pytest.mark.parametrize(
    "privacy",
    [
        Privacy(tensors={"a": "full"}),
        Privacy(payload="full", tensors={"b": "hash"}),
        Privacy(payload="full", tensors={"b": "none"}),
    ],
)
def test_a_slice_does_not_expose_its_neighbours(privacy: Privacy) -> None:
    """Slices share one buffer, so the strictest privacy applies to all of them."""
    for hasher in (Hasher(), None):
        record = record_of(sliced_call(), privacy, hasher)
        record = record if hasher else with_hashes(record, Hasher())
        assert [each.data for each in record.tensors] == [None, None]


def test_redaction_of_a_slice_removes_it_from_its_neighbours(tmp_path: Path) -> None:
    """The slice before it does not contain the redacted elements."""
    made = recorder(tmp_path / "a", FULL)
    assert made.samples("fraud", "r0")
    made.put(sliced_call())
    made.close()
    redact(Capture(tmp_path / "a"), tmp_path / "b", Redaction(tensors={"b": "hash"}))
    assert b"public" not in contents(tmp_path / "b")
    assert only_call(tmp_path / "b").tensors[0].digest


def test_tensors_without_datatype_keep_their_bytes() -> None:
    """A tensor of a protocol without datatypes is raw bytes."""
    tensor = Tensor("x", None, None, RawData(memoryview(b"abc")))
    record = record_of(recordable(request=request().changed(inputs=(tensor,))), FULL, Hasher())
    assert record.request().inputs == (tensor,)


def test_malformed_values_raise_an_error() -> None:
    """A row that was changed together with its checksum raises a `GatewayError`."""
    good = record_of(recordable(), FULL, Hasher())
    bad = replace(good.tensors[0], datatype="FP99")
    with pytest.raises(GatewayError, match="malformed"):
        RecordedCall(good.call, [bad]).request()


def test_redaction_removes_the_selected_parts(tmp_path: Path) -> None:
    """The copy has hashes, no headers and no parameters; other tensors stay."""
    record(tmp_path / "a", 3, FULL)
    redaction = Redaction(
        tensors={"text": "hash", "y": "none"}, headers=True, parameters=True, clients=True
    )
    assert redact(Capture(tmp_path / "a"), tmp_path / "b", redaction) == 3
    assert SECRET not in contents(tmp_path / "b")
    assert HEADER.encode() not in contents(tmp_path / "b")
    calls = list(Capture(tmp_path / "b").calls())
    assert [each.call.request_id for each in calls] == ["r0", "r1", "r2"]
    assert {each.name: each.data is None for each in calls[0].tensors} == {
        "features": False,
        "text": True,
        "y": True,
    }
    assert calls[0].missing == "payload not recorded"
    assert Capture(tmp_path / "b").verify() == (3, [])


def test_a_capture_is_append_only(tmp_path: Path) -> None:
    """Triggers prevent changes and deletions of rows."""
    record(tmp_path, 1)
    (segment,) = Capture(tmp_path).segments
    segment.chmod(0o600)
    database = sqlite3.connect(segment)
    for statement in ("UPDATE calls SET code = 'x'", "DELETE FROM tensors"):
        with pytest.raises(sqlite3.IntegrityError, match="append-only"):
            database.execute(statement)
    database.close()


def test_few_large_calls_are_read_ahead(tmp_path: Path) -> None:
    """Calls are sorted within 32 MiB, so large calls need little memory."""
    big = Tensor("x", Datatype.UINT8, (8 << 20,), RawData(memoryview(bytes(8 << 20))))
    made = recorder(tmp_path, FULL, outbox_bytes=1 << 30)
    for number in range(10):
        assert made.samples("fraud", f"r{number}")
        call = request(number).changed(inputs=(big,))
        made.put(recordable(number, request=call, items=[]))
    made.close()
    read: list[int] = []

    class Counted(SegmentReader):
        def calls(self) -> Iterator[RecordedCall]:
            for call in super().calls():
                read.append(call.call.at_us)
                yield call

    with Counted(Capture(tmp_path).segments[0]) as reader:
        calls = _by_start(reader.calls())
        next(calls)
        assert len(read) == 5
        assert len(list(calls)) == 9


def record_inputs(directory: Path, privacy: Privacy, *inputs: Tensor) -> RecordedCall:
    """Record a call with these inputs, and return it."""
    made = recorder(directory, privacy)
    call = request().changed(inputs=inputs)
    assert made.samples("fraud", "r0")
    made.put(recordable(request=call))
    made.close()
    return only_call(directory)


def untyped(name: str = "", **fields: Any) -> Tensor:
    value = np.array([[1.5, 2.0]])
    data = UntypedData(value, JsonLayout.VALUE, "instances", UntypedRules(protocol="p"), **fields)
    return Tensor(name, None, None, data)


def test_json_without_datatypes_round_trips(tmp_path: Path) -> None:
    """A value keeps its place, its rules and every number, NaN too."""
    rows = [[1, math.nan], [2**63, "text"], [None, True]]
    rules = UntypedRules(has_nulls=True, drops_surplus=True)
    table = UntypedData(rows, JsonLayout.TABLE, "data", rules, "", ("a", "b"), 40)
    expected = (Tensor("", None, None, table), untyped("x"), untyped("flat", shape=(2, 1)))
    call = record_inputs(tmp_path, FULL, *expected)
    assert call.missing == ""
    assert expected == call.request().inputs


@pytest.mark.parametrize(
    ("privacy", "name", "is_written"),
    [
        (Privacy(payload="full"), "", True),
        (Privacy(payload="full", tensors={"x": "none"}), "x", False),
        (Privacy(payload="full", tensors={"x": "none"}), "y", True),
        (Privacy(payload="full", tensors={"x": "none"}), "", False),
        (Privacy(payload="none"), "", False),
    ],
)
def test_values_without_a_name_may_be_any_input(
    tmp_path: Path, privacy: Privacy, name: str, is_written: bool
) -> None:
    """What a rule withholds of one input is withheld of a value that may be that input."""
    call = record_inputs(tmp_path, privacy, untyped(name, size_bytes=9))
    assert is_written == (b"1.5" in contents(tmp_path))
    assert is_written == (call.missing == "" or "parameters" in call.missing)
