"""Comparing the output of a real client with its checks, or with other output."""

from collections.abc import Mapping
from typing import Any

from tests.interop.scripts.checks import CHECKS
from tests.interop.scripts.steps import (
    END_OF_REQUEST,
    Answer,
    Expected,
    Failure,
    Outputs,
    Transport,
)
from tests.interop.scripts.tensors import printed_tensor

Seen = Mapping[str, list[Any]]
"""What a script printed: for each check, one item a step."""


ENDLESS = "tritonclient_aio_grpc"
"""The script whose client cannot ask for a stream's empty final responses."""


def problems(seen: Seen, script: str) -> dict[str, str]:
    """Return, by check, the difference from the expected results of *script*; empty if none."""
    transport: Transport = "http" if script.endswith("_http") else "grpc"
    found: dict[str, str] = {}
    for name, items in seen.items():
        expected = CHECKS[name].expected_over(transport)
        if script == ENDLESS:
            expected = tuple(each for each in expected if each is not END_OF_REQUEST)
        differing = [
            f"expected {expected_item}, saw {item}"
            for expected_item, item in zip(expected, items, strict=False)
            if not _agrees(expected_item, item)
        ]
        if len(expected) != len(items):
            differing.append(f"expected {len(expected)} items, saw {items}")
        if differing:
            found[name] = differing[0]
    return found


def differences(left: Seen, right: Seen) -> dict[str, tuple[Any, Any]]:
    """Return the checks with different results, with both results."""
    return {
        name: (left.get(name), right.get(name))
        for name in sorted(left.keys() | right.keys())
        if left.get(name) != right.get(name)
    }


def _agrees(expected: Expected, item: Any) -> bool:
    if isinstance(expected, Failure):
        error = item.get("error")
        return error is not None and expected.text in f"{error['type']}: {error['message']}"
    if isinstance(expected, Answer):
        return "answer" in item and _within(expected.value, item["answer"])
    return "outputs" in item and _has_outputs(expected, item)


def _within(expected: object, answer: Any) -> bool:
    """Return whether *answer* is *expected*, or has at least its members; None fits anything."""
    if isinstance(expected, dict) and isinstance(answer, dict):
        return all(k in answer and _within(v, answer[k]) for k, v in expected.items())
    return expected is None or expected == answer


def _has_outputs(expected: Outputs, item: Any) -> bool:
    expected_outputs = [printed_tensor(tensor) for tensor in expected.tensors]
    outputs = [{key: output[key] for key in output if key in _TOLD} for output in item["outputs"]]
    same_id = expected.request_id is None or item.get("id") == expected.request_id
    return expected_outputs == outputs and same_id


_TOLD = frozenset({"name", "datatype", "shape", "values", "sha256"})
