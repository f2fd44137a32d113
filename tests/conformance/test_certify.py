"""`gateway certify` before servers of known quality: one without a fault, and many with one each."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.conformance.certify import certify_server
from gateway.conformance.findings import Findings, Verdict
from gateway.conformance.rules import load_rules
from tests.conformance.faults import FAULTS
from tests.conformance.faulty_server import EXPECT, MODELS, Fault, FaultyServer, running
from tests.integration import asking_kit

OF_SEVERAL = (
    "tfs+http",
    "mlflow+http",
    "trtis+http",
    "torchserve+http",
    "trtis+grpc",
    "torchserve+grpc",
)
OF_KINDS = ("tfs+grpc", "grps+grpc", "graphpipe+http")
FURTHER = (*OF_SEVERAL, *OF_KINDS, "seldon+http", "seldon+grpc", "grps+http")
"""The protocols whose rules are asked about models that the user names."""

CARRIERS = ("http", "grpc")
OURS = """
version: 1
listeners:
  - http: "127.0.0.1:0"
    grpc: "127.0.0.1:0"
    transport: %s
    options: {oip: {repository_index: true, model_configuration: true, model_control: true, statistics: gateway}}
admin: {address: null, metrics: null}
lifecycle: {drain: 1s}
models:
  copy: {backend: python, options: {callable: "tests.conformance.models:copy"}}
  halves: {backend: python, options: {callable: "tests.conformance.models:halves"}}
  matrix: {backend: python, options: {callable: "tests.conformance.models:matrix"}}
  doubles: {backend: python, options: {callable: "tests.conformance.models:doubles"}}
  integers: {backend: python, options: {callable: "tests.conformance.models:integers"}}
  sum: {backend: python, options: {callable: "gateway.backends.examples:simple"}}
  repeat: {backend: python, options: {callable: "gateway.backends.examples:repeat_stream"}}
  running:
    backend: python
    options: {callable: "gateway.backends.examples:SequenceSum"}
    signature: {stateful: true}
"""


@pytest.fixture(scope="module")
def server() -> Iterator[FaultyServer]:
    with running() as server:
        yield server


async def certify(
    server: FaultyServer, carrier: str, only: Sequence[str] = (), within_s: float = 60
) -> Findings:
    url = f"oip+{carrier}://{getattr(server, carrier)}"
    return await certify_server(
        url, models=list(MODELS), expect=EXPECT, only=only, most_s=within_s, timeout_s=within_s / 4
    )


def rules(findings: Findings, verdict: Verdict) -> set[str]:
    return {each.rule for each in findings.rules if each.verdict is verdict}


@pytest.mark.parametrize("carrier", CARRIERS)
async def test_a_server_without_a_fault_keeps_each_rule(server: FaultyServer, carrier: str) -> None:
    """No rule differs, and each is told but of statistics, which it lacks; a second run finds the same."""
    first, second = await certify(server, carrier), await certify(server, carrier)
    assert [] == [each for each in first.rules if each.verdict is Verdict.DIFFERS]
    all_rules = load_rules(f"oip+{carrier}")
    on_request = {each.id for each in all_rules if each.needs.keys() & {"control", "hurt"}}
    assert rules(first, Verdict.CANNOT_TELL) == {"metadata.statistics", *on_request}
    assert rules(first, Verdict.SAYS_NOTHING) <= {each.id for each in all_rules if each.open}
    assert first == second


@pytest.mark.parametrize(
    "fault", [each for each in FAULTS if each.rules], ids=lambda fault: fault.name
)
async def test_a_fault_is_found_by_its_rule(server: FaultyServer, fault: Fault) -> None:
    """A server with one fault differs in the rules that forbid it."""
    with server.breaking(fault):
        found = await certify(server, fault.carrier, fault.rules, within_s=16)
    assert set(fault.rules) <= rules(found, Verdict.DIFFERS), found.rules


@pytest.mark.parametrize(
    "fault", [each for each in FAULTS if not each.rules], ids=lambda fault: fault.name
)
async def test_a_server_that_stops_to_reply_keeps_nothing(
    server: FaultyServer, fault: Fault
) -> None:
    """One that hangs, closes, floods or sends no HTTP ends within the limits, and prints nothing raw."""
    with server.breaking(fault):
        group = "streams.one" if fault.point == "stream" else "infer"
        found = await certify(server, fault.carrier, (group,), within_s=1)
    assert set() == rules(found, Verdict.KEEPS)
    assert all(each.found.isprintable() for each in found.rules)


@pytest.mark.parametrize("carrier", CARRIERS)
@pytest.mark.parametrize("transport", ["native", "reference"])
async def test_our_own_frontends_keep_each_rule(transport: str, carrier: str) -> None:
    """The gateway before models in its process is asked each rule, and none is left out."""
    async with asking_kit.running(OURS % transport) as gateway:
        url = f"oip+{carrier}://{gateway.addresses[f'main.{carrier}']}"
        found = await certify_server(
            url, models=list(MODELS), expect=EXPECT, control=True, hurt=True
        )
    assert [] == [
        each for each in found.rules if each.verdict in {Verdict.DIFFERS, Verdict.CANNOT_TELL}
    ]
    # JSON has no NaN: what is written instead is a choice, and no fault.
    nan = [each for each in found.rules if each.rule.endswith(".nan.json")]
    assert all("element 0 is null" in each.found for each in nan)
    assert {each.rule for each in nan} <= rules(found, Verdict.SAYS_NOTHING)
    assert len(nan) == (2 if carrier == "http" else 0)


def tensor(name: str, datatype: str, *rows: Sequence[float]) -> dict[str, Any]:
    """Return a matrix in the form that a file of `--expect` has."""
    shape = [len(rows), len(rows[0])]
    data = [value for row in rows for value in row]
    return {"name": name, "datatype": datatype, "shape": shape, "data": data}


def copied(datatype: str) -> dict[str, Any]:
    """Return an answer of a model that returns its matrix."""
    return {
        f"{name.lower()}puts": [tensor(f"{name}_{datatype}", datatype, [1, 2], [3, 4])]
        for name in ("IN", "OUT")
    }


ONE, NUMBERS = [1] * 16, list(range(16))
KNOWN: dict[str, dict[str, Any]] = {
    "matrix": copied("FP32"),
    "doubles": copied("FP64"),
    "integers": copied("INT32"),
    "sum": {
        "inputs": [tensor("INPUT0", "INT32", NUMBERS), tensor("INPUT1", "INT32", ONE)],
        "outputs": [
            tensor("OUTPUT0", "INT32", [each + 1 for each in NUMBERS]),
            tensor("OUTPUT1", "INT32", [each - 1 for each in NUMBERS]),
        ],
    },
}
"""A model of one tensor and one of several, with an answer of each."""


def known(model: str, folder: Path) -> dict[str, str]:
    file = folder / "known.json"
    file.write_text(json.dumps(KNOWN[model]))
    return {model: str(file)}


@pytest.mark.parametrize(
    ("protocol", "model"),
    # A message of Seldon, and an array of grps, are one tensor.
    [
        *((each, "matrix") for each in FURTHER),
        *((each, "sum") for each in OF_SEVERAL),
        *((each, model) for each in OF_KINDS for model in ("doubles", "integers")),
    ],
)
@pytest.mark.parametrize("transport", ["native", "reference"])
async def test_our_frontends_of_further_protocols_keep_each_rule(
    transport: str, protocol: str, model: str, tmp_path: Path
) -> None:
    """Each rule of the protocol is asked of the gateway, and none is left out."""
    name, _, carrier = protocol.partition("+")
    listener = {carrier: "127.0.0.1:0", "transport": transport, "protocols": [name]}
    ours = yaml.safe_load(OURS % transport)
    ours["listeners"] = [{"name": "main", **listener, "default_model": model}]
    async with asking_kit.running(yaml.safe_dump(ours)) as gateway:
        url = f"{protocol}://{gateway.addresses[f'main.{carrier}']}"
        found = await certify_server(url, expect=known(model, tmp_path))
    kind = KNOWN[model]["inputs"][0]["datatype"]
    fitting = {each.id for each in load_rules(protocol) if each.needs.get("first", kind) == kind}
    assert [] == [
        each for each in found.rules if each.rule in fitting and each.verdict is not Verdict.KEEPS
    ]


@pytest.mark.parametrize("protocol", FURTHER)
async def test_a_server_of_another_protocol_differs(
    server: FaultyServer, protocol: str, tmp_path: Path
) -> None:
    """It keeps no rule but those that want an error."""
    address = getattr(server, protocol.partition("+")[2])
    found = await certify_server(f"{protocol}://{address}", expect=known("matrix", tmp_path))
    kept = [rule for rule in rules(found, Verdict.KEEPS) if not rule.startswith("errors.")]
    assert [] == [rule for rule in kept if "unknown" not in rule]
    assert rules(found, Verdict.DIFFERS)
