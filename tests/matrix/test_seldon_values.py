"""Arrays of SeldonMessages, as a client's form and as an upstream's, with every datatype.

JSON carries integers of any size, and gRPC those that are exact as doubles.
"""

from __future__ import annotations

import numpy as np
import pytest

from gateway.ir.context import ModelRef
from gateway.ir.errors import ErrorCode
from gateway.ir.tensors.datatypes import Datatype
from tests.matrix.cases import NOT_TEXT, Case, cases
from tests.matrix.chains import gateway
from tests.matrix.clients import Client, Refused, Spoken
from tests.matrix.test_matrix import metadata_of
from tests.matrix.test_row_values import BINARY, TRITON, check
from tests.properties.carries import Carries

MODEL = {"default_model": "m"}
FORM = {"form": "tftensor"}
REST = Carries(codec="seldon.http", listener=MODEL)
GRPC = Carries(codec="seldon.grpc", listener=MODEL)
PROTOS = Carries(codec="seldon.http", way="protos", listener=MODEL, upstream=FORM)
GRPC_PROTOS = Carries(codec="seldon.grpc", way="protos", listener=MODEL, upstream=FORM)
CHAINS = [
    pytest.param(Spoken(REST), TRITON, id="rest-client"),
    pytest.param(BINARY, REST, id="rest-upstream"),
    pytest.param(Spoken(GRPC), TRITON, id="grpc-client"),
    pytest.param(BINARY, GRPC, id="grpc-upstream"),
    pytest.param(Spoken(REST), GRPC, id="both"),
    pytest.param(Spoken(PROTOS), TRITON, id="rest-protos-client"),
    pytest.param(BINARY, PROTOS, id="rest-protos-upstream"),
    pytest.param(Spoken(GRPC_PROTOS), GRPC_PROTOS, id="grpc-protos"),
]
MOST = 2**53


def is_refused(client: Client, way: Carries, case: Case) -> bool:
    """Return whether a chain cannot carry a case."""
    is_of_protos = way.way == "protos" or client.name.endswith("protos")
    if NOT_TEXT in case.traits:
        return not is_of_protos
    has_grpc = way is GRPC or "seldon.grpc" in client.name
    if case.datatype not in (Datatype.INT64, Datatype.UINT64) or not has_grpc or is_of_protos:
        return False
    return any(abs(int(each)) > MOST for each in np.asarray(case.array).reshape(-1))


@pytest.mark.parametrize("datatype", Datatype, ids=lambda datatype: datatype.name)
@pytest.mark.parametrize(("client", "way"), CHAINS)
async def test_an_array_is_exact_or_refused(
    client: Client, way: Carries, datatype: Datatype
) -> None:
    """Each value returns exactly; of NaN only that it is one."""
    source = f"gateway.backends.examples:identity_{datatype.name.lower()}"
    refused = 0
    for case in cases(datatype):
        if not case.array.size and case.array.ndim > 1:
            continue  # nested lists do not tell the axes behind an empty one
        if not case.array.ndim:
            continue  # a list is no scalar
        metadata = metadata_of("m", datatype, case)
        inputs = {"INPUT0": (case.datatype, case.array)}
        async with gateway(client, way, "m", source, metadata) as transport:
            if is_refused(client, way, case):
                with pytest.raises(Refused) as caught:
                    await client.infer(transport, ModelRef("m"), inputs)
                assert ErrorCode.UNSUPPORTED is caught.value.code
                refused += 1
                continue
            found = await client.infer(transport, ModelRef("m"), inputs)
        check(case, found["OUTPUT0"])
    assert refused < len(cases(datatype))
