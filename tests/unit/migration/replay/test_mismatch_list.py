"""The list of all calls whose results differ, as JSON and CSV."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from gateway.ir.errors import ErrorCode
from gateway.ir.tensors.tensor import array_tensor
from gateway.migration.compare.replies import Comparison, Result, compare_results
from gateway.migration.compare.rules import OutputRules
from gateway.migration.replay.mismatch_list import MismatchList
from gateway.shadow.records.records import CallRow, RecordedCall


def record(number: int, client_id: str) -> RecordedCall:
    call = CallRow(
        at_us=number,
        took_us=1,
        request_id=f"r{number}",
        kind="InferRequest",
        model="m",
        details=json.dumps({"id": client_id}),
    )
    return RecordedCall(call, [], [])


def comparison(old: float, new: float | ErrorCode) -> Comparison:
    results = [
        Result(error=each)
        if isinstance(each, ErrorCode)
        else Result(((array_tensor("y", np.array([each], np.float32)),),))
        for each in (old, new)
    ]
    return compare_results(results[0], results[1], OutputRules())


def write(path: Path) -> None:
    listed = MismatchList(path)
    listed.add(record(1, "same"), comparison(1, 1), "ok")
    listed.add(record(2, "=1+1"), comparison(1, 3), "ok")
    refused = comparison(1, ErrorCode.INTERNAL)
    listed.add(record(3, "b"), refused, "internal", 'no "GPU",\nat all')
    listed.close()
    listed.close()


def test_json_has_every_call_that_differs(tmp_path: Path) -> None:
    """Calls that agree are not in it; a failed call has the text of its error."""
    write(tmp_path / "m.json")
    found = json.loads((tmp_path / "m.json").read_text())
    assert [("r2", "mismatch", ["y"], 2.0), ("r3", "new_error", [], None)] == [
        (each["request_id"], each["outcome"], each["outputs"], each["max_abs"]) for each in found
    ]
    assert ("=1+1", "tolerance", "ok") == (
        found[0]["client_id"],
        found[0]["reason"][3:12],
        found[0]["new_code"],
    )
    assert 'no "GPU",\nat all' == found[1]["error"]


def test_csv_has_the_same_calls_and_no_formula(tmp_path: Path) -> None:
    """A spreadsheet would run what a client wrote into its id."""
    write(tmp_path / "m.csv")
    with (tmp_path / "m.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert ["r2", "r3"] == [each["request_id"] for each in rows]
    assert ["'=1+1", "b"] == [each["client_id"] for each in rows]
    assert ["", 'no "GPU",\nat all'] == [each["error"] for each in rows]
    assert ["2.0", ""] == [each["max_abs"] for each in rows]


def test_an_infinite_error_is_valid_json(tmp_path: Path) -> None:
    """JSON has no infinity, which a difference of the largest numbers is."""
    results = [
        Result(((array_tensor("y", np.array([each], np.float64)),),))
        for each in (1.7e308, -1.7e308)
    ]
    listed = MismatchList(tmp_path / "m.json")
    listed.add(record(2, "a"), compare_results(results[0], results[1], OutputRules()), "ok")
    listed.close()
    (found,) = json.loads((tmp_path / "m.json").read_text(), parse_constant=pytest.fail)
    assert found["max_abs"] is None


def test_no_text_of_a_client_is_hidden_or_reversed(tmp_path: Path) -> None:
    """JSON has the same value, and a cell has the escape."""
    for name in ("m.json", "m.csv"):
        listed = MismatchList(tmp_path / name)
        listed.add(record(2, "a\u202etxt"), comparison(1, 3), "ok")
        listed.close()
    texts = {name: (tmp_path / name).read_text() for name in ("m.json", "m.csv")}
    assert not any("\u202e" in text for text in texts.values())
    assert "a\u202etxt" == json.loads(texts["m.json"])[0]["client_id"]
    assert r"a\u202etxt" in texts["m.csv"]


def test_a_list_without_a_call_is_valid(tmp_path: Path) -> None:
    """It has no row."""
    for name in ("m.json", "m.csv"):
        MismatchList(tmp_path / name).close()
    assert [] == json.loads((tmp_path / "m.json").read_text())
    assert (tmp_path / "m.csv").read_text().startswith("id,request_id,client_id,at,")


def test_other_formats_are_rejected(tmp_path: Path) -> None:
    """The error names both formats, and no file is made."""
    with pytest.raises(ValueError, match=r"expected a name with \.json or \.csv"):
        MismatchList(tmp_path / "m.txt")
    assert [] == list(tmp_path.iterdir())
