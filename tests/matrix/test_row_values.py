"""JSON without datatypes, as a client's form and as an upstream's, with every datatype.

A listener of rows gets datatypes from the model's metadata, and so does an upstream of rows for its
replies. What JSON cannot carry is refused or lost, as the tests say.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gateway.ir.context import ModelRef
from gateway.ir.errors import ErrorCode
from gateway.ir.tensors.datatypes import Datatype, fp32_of_bf16
from tests.matrix.cases import NOT_TEXT, Case, cases
from tests.matrix.chains import gateway
from tests.matrix.clients import CLIENTS, Client, Refused, Spoken
from tests.matrix.test_matrix import metadata_of
from tests.properties.carries import WAYS, Carries

TENSORFLOW = Carries(codec="tfs.http", way="tensorflow")
BINARY = next(client for client in CLIENTS if client.name == "oip.grpc-raw")
TRITON = next(way for way in WAYS if way.name == "oip.grpc-triton")

CHAINS = [
    pytest.param(Spoken(TENSORFLOW), TRITON, id="client"),
    pytest.param(BINARY, TENSORFLOW, id="upstream"),
    pytest.param(Spoken(TENSORFLOW), TENSORFLOW, id="both"),
]


@pytest.mark.parametrize("datatype", Datatype, ids=lambda datatype: datatype.name)
@pytest.mark.parametrize(("client", "way"), CHAINS)
async def test_rows_carry_every_value(client: Client, way: Carries, datatype: Datatype) -> None:
    """Each value returns exactly; of NaN only that it is one; bytes that are no text are refused."""
    source = f"gateway.backends.examples:identity_{datatype.name.lower()}"
    for case in cases(datatype):
        if not case.array.size and case.array.ndim > 1:
            continue  # nested lists do not tell the axes behind an empty one
        metadata = metadata_of("m", datatype, case)
        inputs = {"INPUT0": (case.datatype, case.array)}
        async with gateway(client, way, "m", source, metadata) as transport:
            if NOT_TEXT in case.traits:
                with pytest.raises(Refused, match="not UTF-8") as caught:
                    await client.infer(transport, ModelRef("m"), inputs)
                assert ErrorCode.UNSUPPORTED is caught.value.code
                continue
            found = await client.infer(transport, ModelRef("m"), inputs)
        check(case, found["OUTPUT0"])


def check(case: Case, found: npt.NDArray[Any]) -> None:
    """Compare values."""
    expected = case.array
    assert expected.shape == found.shape, case.name
    if case.datatype is Datatype.BF16:
        expected, found = fp32_of_bf16(expected), fp32_of_bf16(found)
    if case.datatype is Datatype.BOOL:
        expected = expected.view("u1") != 0
    if case.datatype.is_float:
        assert np.array_equal(np.signbit(expected), np.signbit(found)) or np.isnan(expected).any()
        assert np.array_equal(expected, found, equal_nan=True), case.name
    else:
        assert expected.tolist() == found.tolist(), case.name
