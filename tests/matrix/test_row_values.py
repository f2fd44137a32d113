"""JSON and Seldon's messages without datatypes, as a client's form and as an upstream's, with every datatype.

A listener of rows gets datatypes from the model's metadata, and so does an upstream of rows for its
replies. What a form cannot carry is refused or lost, as the tests say: JSON carries integers of any
size, and Seldon's gRPC those that are exact as doubles.
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
MODEL = {"default_model": "m"}
FORM = {"form": "tftensor"}
REST = Carries(codec="seldon.http", listener=MODEL)
GRPC = Carries(codec="seldon.grpc", listener=MODEL)
PROTOS = Carries(codec="seldon.http", way="protos", listener=MODEL, upstream=FORM)
GRPC_PROTOS = Carries(codec="seldon.grpc", way="protos", listener=MODEL, upstream=FORM)
BINARY = next(client for client in CLIENTS if client.name == "oip.grpc-raw")
TRITON = next(way for way in WAYS if way.name == "oip.grpc-triton")
MOST = 2**53

CHAINS = [
    pytest.param(Spoken(TENSORFLOW), TRITON, id="client"),
    pytest.param(BINARY, TENSORFLOW, id="upstream"),
    pytest.param(Spoken(TENSORFLOW), TENSORFLOW, id="both"),
    pytest.param(Spoken(REST), TRITON, id="rest-client"),
    pytest.param(BINARY, REST, id="rest-upstream"),
    pytest.param(Spoken(GRPC), TRITON, id="grpc-client"),
    pytest.param(BINARY, GRPC, id="grpc-upstream"),
    pytest.param(Spoken(REST), GRPC, id="rest-grpc"),
    pytest.param(Spoken(PROTOS), TRITON, id="rest-protos-client"),
    pytest.param(BINARY, PROTOS, id="rest-protos-upstream"),
    pytest.param(Spoken(GRPC_PROTOS), GRPC_PROTOS, id="grpc-protos"),
]


def refusal_of(client: Client, way: Carries, case: Case) -> str | None:
    """Return the text with which a chain refuses a case that it cannot carry."""
    is_of_protos = way.way == "protos" or client.name.endswith("protos")
    if NOT_TEXT in case.traits:
        return None if is_of_protos else "not UTF-8"
    has_grpc = way is GRPC or "seldon.grpc" in client.name
    if case.datatype not in (Datatype.INT64, Datatype.UINT64) or not has_grpc or is_of_protos:
        return None
    is_exact = all(abs(int(each)) <= MOST for each in np.asarray(case.array).reshape(-1))
    return None if is_exact else "double"


@pytest.mark.parametrize("datatype", Datatype, ids=lambda datatype: datatype.name)
@pytest.mark.parametrize(("client", "way"), CHAINS)
async def test_rows_carry_every_value(client: Client, way: Carries, datatype: Datatype) -> None:
    """Each value returns exactly, or is refused; of NaN only that it is one."""
    source = f"gateway.backends.examples:identity_{datatype.name.lower()}"
    is_of_rows = TENSORFLOW.codec in (way.codec, client.codec)
    for case in cases(datatype):
        if not case.array.size and case.array.ndim > 1:
            continue  # nested lists do not tell the axes behind an empty one
        if not case.array.ndim and not is_of_rows:
            continue  # a list of Seldon is no scalar
        metadata = metadata_of("m", datatype, case)
        inputs = {"INPUT0": (case.datatype, case.array)}
        async with gateway(client, way, "m", source, metadata) as transport:
            if (text := refusal_of(client, way, case)) is not None:
                with pytest.raises(Refused, match=text) as caught:
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
