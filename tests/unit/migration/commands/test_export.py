"""Captures in the formats of other programs: one table, one archive, one input file."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from gateway.ir.calls import InferRequest, InferResponse
from gateway.ir.context import Context, ModelRef
from gateway.ir.tensors.tensor import array_tensor, items_tensor
from gateway.migration.commands import export
from gateway.shadow.records.privacy import Privacy
from gateway.shadow.records.records import INPUT, OLD, RecordedCall, record_of
from tests.unit.shadow.kit import FULL, recordable

X = np.arange(4, dtype=np.float32).reshape(1, 4)


def recorded(number: int, payload: str = "full") -> RecordedCall:
    context = Context(protocol="oip.http", request_id=f"r{number}")
    inputs = (array_tensor("x", X + number), items_tensor("text", (1,), [b"a\xff"]))
    request = InferRequest(model=ModelRef("m", "7"), context=context, inputs=inputs)
    reply = InferResponse(model=ModelRef("m"), outputs=(array_tensor("y", X * number),))
    call = recordable(number, request=request, context=context, items=[(1, reply)])
    privacy = Privacy(payload="full" if payload == "full" else "none")
    return record_of(call, privacy, None)


def ignore(_record: RecordedCall, _reason: str) -> None: ...


def test_parquet_has_a_row_for_each_tensor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Row groups are written incrementally, and elements have their wire form."""
    parquet = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr(export, "_GROUP_ROWS", 4)
    path = tmp_path / "calls.parquet"
    assert export.write_parquet(iter([recorded(n) for n in range(5)]), path, ignore) == 5
    file = parquet.ParquetFile(path)
    assert file.metadata.num_row_groups > 1
    rows = file.read().to_pylist()
    assert [(row["request_id"], row["side"], row["name"]) for row in rows[:4]] == [
        ("r0", INPUT, "x"),
        ("r0", INPUT, "text"),
        ("r0", OLD, "y"),
        ("r1", INPUT, "x"),
    ]
    assert rows[3]["data"] == (X + 1).tobytes()
    assert (rows[3]["shape"], rows[3]["datatype"], rows[3]["version"]) == ("[1, 4]", "FP32", "7")


def test_parquet_without_payload_or_calls_has_the_same_columns(tmp_path: Path) -> None:
    """The schema does not depend on the recorded calls."""
    parquet = pytest.importorskip("pyarrow.parquet")
    schemas = []
    for name, calls in (("none", [recorded(1, "none")]), ("empty", []), ("full", [recorded(1)])):
        export.write_parquet(iter(calls), tmp_path / name, ignore)
        schemas.append(parquet.read_schema(tmp_path / name))
    assert schemas[0] == schemas[1] == schemas[2]


def test_perf_analyzer_gets_inputs_and_expected_outputs(tmp_path: Path) -> None:
    """Elements are flat, with their shapes; bytes that are not text are base64."""
    path = tmp_path / "input.json"
    assert export.write_perf_analyzer(iter([recorded(2)]), path, ignore) == 1
    document = json.loads(path.read_text())
    assert document["data"] == [
        {
            "x": {"content": [2.0, 3.0, 4.0, 5.0], "shape": [1, 4]},
            "text": {"content": [{"b64": "Yf8="}], "shape": [1]},
        }
    ]
    assert document["validation_data"] == [
        {"y": {"content": [0.0, 2.0, 4.0, 6.0], "shape": [1, 4]}}
    ]


def test_calls_without_elements_are_omitted_with_the_reason(tmp_path: Path) -> None:
    """Arrays need elements; JSON lines do not."""
    reasons: list[str] = []
    for write in (export.write_npz, export.write_perf_analyzer):
        count = write(
            iter([recorded(1, "none")]), tmp_path / "x", lambda _, reason: reasons.append(reason)
        )
        assert count == 0
    assert reasons == ["payload not recorded"] * 2
    assert export.write_jsonl(iter([recorded(1, "none")]), tmp_path / "y", ignore) == 1


def test_non_finite_parameters_are_exported_as_text() -> None:
    """JSON has no number for a NaN that was received over gRPC."""
    call = InferRequest(model=ModelRef("m"), context=Context(), parameters={"p": float("nan")})
    record = record_of(recordable(request=call), FULL, None)
    assert record.problem == ""
    assert export.call_document(record)["parameters"] == {"p": "NaN"}
