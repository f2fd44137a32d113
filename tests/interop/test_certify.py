"""`gateway certify` before the real servers: each difference is one that was looked up by hand.

What Triton's documents and the specification say, Triton 2.51.0 keeps. Those of the others are in
`gateway/conformance/known.yaml`, with what the gateway does about them.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from gateway.conformance.certify import certify_server
from gateway.conformance.findings import Verdict
from tests.interop.servers.datatypes import DATATYPES, identity_name
from tests.interop.servers.process import RunningServer

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

_WITHOUT_MEMBERS = {f"errors.no_{each}" for each in ("inputs", "name", "shape", "datatype", "data")}
_PYTHON = {
    "errors.wrong_datatype",
    "errors.wrong_shape",
    "errors.negative_shape",
    "errors.malformed_json",
}

DIFFERENCES: Mapping[str, Mapping[str, set[str]]] = {
    "triton": {"http": set(), "grpc": set()},
    "mlserver": {
        "http": {
            *_WITHOUT_MEMBERS,
            *_PYTHON,
            *("errors.missing_input", "errors.unknown_datatype", "errors.too_few_elements"),
        },
        "grpc": {
            *("errors.missing_input", "errors.wrong_datatype", "errors.wrong_shape"),
            *("errors.raw_and_typed", "forms.id.text", "streams.one", "repository.index.ready"),
        },
    },
    "kserve": {
        "http": {
            *_WITHOUT_MEMBERS,
            *_PYTHON,
            *("metadata.model.unknown_version", "forms.version.unknown"),
            *("infer.fp32.nonfinite.json", "infer.fp64.nonfinite.json", "infer.empty.json"),
            *("forms.outputs.content_type", "forms.content_type.absent"),
        },
        "grpc": {
            *("metadata.model.unknown_version", "forms.version.unknown"),
            *("forms.outputs", "forms.outputs.unknown", "errors.wrong_shape"),
        },
    },
}
"""The rules that a server breaks, by carrier: no others, and each of these."""

OF_TRITON = ("versions", "classify", "sequence_sum", "repeat_stream")
WITHOUT_BF16 = [identity_name(each) for each in DATATYPES if each != "BF16"]


@pytest.mark.parametrize("carrier", ["http", "grpc"])
@pytest.mark.parametrize("name", DIFFERENCES)
async def test_each_difference_is_known(
    request: pytest.FixtureRequest, name: str, carrier: str
) -> None:
    """A server differs in the rules of the table alone, each named as known; little of Triton is untold."""
    server: RunningServer = request.getfixturevalue(f"{name}_server")
    address = server.http_address if carrier == "http" else server.grpc_address
    is_triton = name == "triton"
    copies = [*WITHOUT_BF16, *([identity_name("BF16")] if is_triton else [])]
    found = await certify_server(
        f"oip+{carrier}://{address}",
        models=[*copies, "add_sub", *(OF_TRITON if is_triton else ())],
        expect={**dict.fromkeys(copies, "identity"), "add_sub": "sum"},
    )
    differs = {each.rule: each for each in found.rules if each.verdict is Verdict.DIFFERS}
    assert differs.keys() == DIFFERENCES[name][carrier]
    assert [] == [each for each in differs.values() if "(known of" not in each.found]

    if is_triton:
        untold = {each.rule for each in found.rules if each.verdict is Verdict.CANNOT_TELL}
        # Nothing is loaded or hurt here; and the model `repeat_stream` refuses negative numbers.
        on_request = {"repository.load", "repository.load.unknown", "streams.decoupled"}
        assert not [each for each in untold - on_request if not each.startswith("limits.hurt.")]
