"""`gateway certify` before the real servers: each difference is one that was looked up by hand.

What Triton's documents and the specification say, Triton 2.51.0 keeps. Those of the others are in
`gateway/conformance/known.yaml`, with what the gateway does about them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest

from gateway.conformance.certify import certify_server
from gateway.conformance.findings import RuleFinding, Verdict
from gateway.conformance.rules import is_named, known_differences
from tests.integration.certify_kit import tried_lines
from tests.interop.servers.datatypes import DATATYPES, identity_name
from tests.interop.servers.mlflow import start as mlflow
from tests.interop.servers.process import Prepare, RunningServer, running
from tests.interop.servers.seldon import start as seldon
from tests.interop.servers.torchserve import start as torchserve

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

OF_TRITON = ("versions", "classify", "sequence_sum", "repeat_stream")
WITHOUT_BF16 = [identity_name(each) for each in DATATYPES if each != "BF16"]


@pytest.mark.parametrize("name", ["triton", "mlserver", "kserve"])
async def test_each_difference_is_known(request: pytest.FixtureRequest, name: str) -> None:
    """A server differs as `known.yaml` says alone, in each entry of it; little of Triton is untold."""
    server: RunningServer = request.getfixturevalue(f"{name}_server")
    is_triton = name == "triton"
    copies = [*WITHOUT_BF16, *([identity_name("BF16")] if is_triton else [])]
    differs: list[RuleFinding] = []
    for carrier, address in (("http", server.http_address), ("grpc", server.grpc_address)):
        found = await certify_server(
            f"oip+{carrier}://{address}",
            models=[*copies, "add_sub", *(OF_TRITON if is_triton else ())],
            expect={**dict.fromkeys(copies, "identity"), "add_sub": "sum"},
        )
        differs += [each for each in found.rules if each.verdict is Verdict.DIFFERS]
        untold = {each.rule for each in found.rules if each.verdict is Verdict.CANNOT_TELL}
        # Nothing is loaded or hurt here; and the model `repeat_stream` refuses negative numbers.
        on_request = {"repository.load", "repository.load.unknown", "streams.decoupled"}
        left = [each for each in untold - on_request if not each.startswith("limits.hurt.")]
        assert not (is_triton and left)
    assert [] == [each for each in differs if "(known of" not in each.found]
    known = [each for each in known_differences() if each.server == name]
    seen = [each for each in known if any(is_named(found.rule, each.rules) for found in differs)]
    assert [each for each in known if "limits.hurt.deep_json" not in each.rules] == seen


def test_lines_of_clients_before_triton_succeed_unless_refused(
    triton_server: RunningServer,
) -> None:
    """The line of each cell, run with curl or `gateway infer`, succeeds where it is not refused."""
    models = ("add_sub", "classify", identity_name("FP16"), identity_name("BYTES"))
    tried = tried_lines(f"grpc://{triton_server.grpc_address}", *models)
    assert {"works", "loses", "refused"} == set(tried)
    assert len(tried) > 40


def tensor(name: str, datatype: str, shape: Sequence[int], *data: float) -> dict[str, Any]:
    """Return a tensor in the form that a file of `--expect` has."""
    return {"name": name, "datatype": datatype, "shape": list(shape), "data": data}


FURTHER: Mapping[str, tuple[Prepare, dict[str, Any]]] = {
    "mlflow": (
        mlflow.serving("add_sub"),
        {
            "inputs": [
                tensor("INPUT0", "INT64", (2, 2), 1, 2, 3, 4),
                tensor("INPUT1", "INT64", (2, 2), 4, 3, 2, 1),
            ],
            "outputs": [
                tensor("OUTPUT0", "INT64", (2, 2), 5, 5, 5, 5),
                tensor("OUTPUT1", "INT64", (2, 2), -3, -1, 1, 3),
            ],
        },
    ),
    "seldon": (
        seldon.prepare,
        {
            "inputs": [tensor("x", "FP64", (2, 2), 1, 2, 3, 0.5)],
            "outputs": [tensor("y", "FP64", (2, 2), 2, 4, 6, 1)],
        },
    ),
    # Its replies are bytes of a handler: no rule is about them.
    "torchserve": (torchserve.prepare, {"inputs": [], "outputs": []}),
}
"""Servers of further protocols, each with an answer of its model."""


@pytest.mark.parametrize("name", FURTHER)
async def test_a_server_of_a_further_protocol_keeps_each_rule(name: str, tmp_path: Path) -> None:
    """The server whose behaviour was recorded still has it, over each carrier."""
    prepare, known = FURTHER[name]
    (tmp_path / "known.json").write_text(json.dumps(known))
    with running(name, prepare, tmp_path / "server") as server:
        urls = [f"{name}+{server.http_url}"]
        if name != "mlflow":
            with grpc.insecure_channel(server.grpc_address) as channel:  # later than HTTP
                grpc.channel_ready_future(channel).result(timeout=60)
            urls.append(f"{name}+grpc://{server.grpc_address}")
        found = [
            await certify_server(url, expect={"digits": str(tmp_path / "known.json")})
            for url in urls
        ]
    rules = [each for findings in found for each in findings.rules]
    assert [] == [each for each in rules if each.verdict is not Verdict.KEEPS]
