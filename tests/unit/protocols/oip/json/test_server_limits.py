"""Requests that are not sent as JSON to servers of one process."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gateway.ir.calls import InferRequest
from gateway.ir.context import ModelRef
from gateway.ir.errors import TooLarge
from gateway.ir.limits import MessageLimits
from gateway.ir.tensors.tensor import Tensor, array_tensor, items_tensor
from gateway.protocols.oip.dialects import DIALECTS
from gateway.protocols.oip.http.infer_request import encode_request

MIB = 1 << 20


def encoded(dialect: str, *tensors: Tensor, **limits: Any) -> int:
    """Return the size of a request with *tensors* as it is sent to a server of *dialect*."""
    call = InferRequest(model=ModelRef("m"), inputs=tensors)
    _, body = encode_request(call, "", DIALECTS[dialect], MessageLimits(**limits))
    return sum(map(len, body))


def texts(count: int, longest: int) -> Tensor:
    """Return texts of which one has *longest* characters."""
    return items_tensor("x", (count,), [b"a"] * (count - 1) + [b"b" * longest])


def test_one_long_text_among_many_is_not_sent_to_mlserver() -> None:
    """MLServer's numpy makes each text as wide as the longest: 0.4 MB become 1.5 GiB."""
    with pytest.raises(TooLarge, match="as wide as the longest") as raised:
        encoded("mlserver", texts(1000, 400_000))
    assert "bytes_rectangle" == raised.value.limit
    assert encoded("mlserver", texts(1000, 16_000)) > 16_000
    assert encoded("kserve", texts(1000, 400_000)) > 400_000
    assert encoded("mlserver", texts(1000, 400_000), bytes_rectangle=1 << 31) > 400_000


@pytest.mark.parametrize("dialect", ["mlserver", "kserve"])
def test_many_texts_are_not_sent_to_servers_of_one_process(dialect: str) -> None:
    """1,000,000 texts block such a server for seconds; Triton reads them concurrently."""
    with pytest.raises(TooLarge, match="100001 BYTES elements") as raised:
        encoded(dialect, texts(100_001, 1))
    assert "json_strings" == raised.value.limit
    assert encoded(dialect, texts(100_000, 1)) > 100_000
    assert encoded("triton", texts(100_001, 1)) > 100_000


@pytest.mark.parametrize(("dialect", "most"), [("mlserver", 2_500_000), ("kserve", 400_000)])
def test_many_numbers_are_not_sent_to_servers_of_one_process(dialect: str, most: int) -> None:
    """KServe needs 2.6 us for each number and serves no other request meanwhile."""
    too_many = array_tensor("x", np.zeros(most + 1, np.uint8))
    with pytest.raises(TooLarge, match="use its gRPC port") as raised:
        encoded(dialect, too_many)
    assert "json_numbers" == raised.value.limit
    assert encoded(dialect, array_tensor("x", np.zeros(most, np.uint8))) > most
    assert encoded(dialect, too_many, json_numbers=most + 1) > most
    assert encoded("triton", too_many) > most


@pytest.mark.parametrize(
    ("limit", "parts"),
    [
        ("json_strings", [texts(50_001, 1)] * 2),
        ("json_numbers", [array_tensor("x", np.zeros(1_250_001, np.uint8))] * 2),
        ("bytes_rectangle", [texts(1000, 9_000)] * 2),
    ],
)
def test_the_inputs_of_a_request_count_together(limit: str, parts: list[Tensor]) -> None:
    """The limits apply to the sum over all inputs of a request."""
    with pytest.raises(TooLarge) as raised:
        encoded("mlserver", *parts)
    assert limit == raised.value.limit
    assert encoded("mlserver", parts[0]) > 1000


@pytest.mark.parametrize("dtype", ["<f4", "<f8", "<i4", "|u1"])
def test_numbers_are_not_written_beyond_the_limit_of_json(dtype: str) -> None:
    """60 MB of binary tensors would be 150 MB of JSON; the error suggests gRPC."""
    values = array_tensor("x", np.full(8 * MIB, 111, np.dtype(dtype)))
    with pytest.raises(TooLarge, match="use its gRPC port") as raised:
        encoded("mlserver", values, json_numbers=8 * MIB)
    assert "json_bytes" == raised.value.limit
    assert encoded("triton", values) >= 8 * MIB


def test_json_longer_than_its_estimate_is_not_sent() -> None:
    """The length of JSON is estimated before it is written, and checked afterwards."""
    values = np.zeros(5 * MIB, np.int32)
    values[4096:] = 1234567
    with pytest.raises(TooLarge, match="as JSON"):
        encoded("mlserver", array_tensor("x", values), json_numbers=5 * MIB)
    assert encoded("mlserver", array_tensor("x", values[:MIB])) < 16 * MIB
