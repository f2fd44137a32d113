"""Compared calls that are kept for inspection."""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson
import pytest

from gateway.ir.calls import InferRequest, InferResponse
from gateway.ir.context import Context, ModelRef
from gateway.ir.errors import ErrorCode
from gateway.ir.tensors.datatypes import Datatype, bf16_of_fp32
from gateway.ir.tensors.tensor import Tensor, array_tensor, raw_tensor
from gateway.migration.compare.replies import Result, compare_results
from gateway.migration.compare.rules import OutputRules
from gateway.migration.evidence.kept_samples import ErrorTexts, KeptSamples, kept_sample
from gateway.shadow.records.privacy import Privacy
from gateway.shadow.records.records import CallRow, Recordable, RecordedCall, record_of

FULL = Privacy(payload="full")
FLOATS = np.array([np.nan, np.inf, -np.inf, 1.5], np.float32)


def shown(output: Tensor) -> Any:
    """Return the elements of an output in the document of a kept call, as a browser gets it."""
    context = Context(protocol="oip.http", request_id="r")
    request = InferRequest(model=ModelRef("m"), context=context)
    reply = InferResponse(model=ModelRef("m"), outputs=(output,))
    source = Recordable(1, request, "InferRequest", context, items=[(1, reply)])
    result = Result(((output,),))
    comparison = compare_results(result, result, OutputRules())
    samples = KeptSamples(FULL)
    assert samples.wants(comparison)
    record = record_of(source, FULL, None)
    samples.add(kept_sample("s-1", record, "old", result, comparison, (0.1, 0.1)))
    document = orjson.loads(orjson.dumps(samples.document("s-1")))
    assert document["old"] == document["new"]
    return document["new"][0][0]["values"]


@pytest.mark.parametrize(
    "output",
    [
        array_tensor("y", FLOATS),
        raw_tensor("y", Datatype.BF16, (4,), memoryview(bf16_of_fp32(FLOATS).tobytes())),
    ],
)
def test_floats_are_shown_as_their_values(output: Tensor) -> None:
    """BF16 is shown by value, not by bits; NaN and infinities stay visible."""
    assert shown(output) == ["NaN", "Infinity", "-Infinity", 1.5]


def test_integers_and_booleans_are_shown_unchanged() -> None:
    """They are JSON numbers and booleans."""
    assert shown(array_tensor("y", np.array([1, -2], np.int8))) == [1, -2]
    assert shown(array_tensor("y", np.array([True, False]))) == [True, False]


def test_a_sample_has_the_reason_of_its_failure() -> None:
    """The line has the text that the log shows, and the document what is kept with payloads."""
    samples = KeptSamples(Privacy())
    result = Result(error=ErrorCode.INVALID_ARGUMENT)
    comparison = compare_results(Result(((),)), result, OutputRules())
    texts = ErrorTexts("", "input 'X' has dims [64], got 4111", "input 'X' has dims [64]")
    assert samples.wants(comparison)
    record = RecordedCall(CallRow(at_us=1, took_us=1, request_id="r", kind="InferRequest"), [], [])
    samples.add(kept_sample("s", record, "old", result, comparison, (0.1, 0.1), texts))
    document = samples.document("s")
    assert document is not None
    assert [texts.shown] == [each["reason"] for each in samples.list()]
    assert {"old": "", "new": texts.new} == document["errors"]
