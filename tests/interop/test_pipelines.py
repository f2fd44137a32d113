"""Pipelines called by every tritonclient: its checks of models hold for pipelines of that name."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interop.client import SCRIPT_WORDS, Client
from tests.interop.gateways import serving
from tests.interop.judge import problems
from tests.interop.servers.process import RunningServer

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

PIPELINES = """
version: 1
listeners: [{http: "127.0.0.1:0", grpc: "127.0.0.1:0"}]
admin: {address: null, metrics: null}
lifecycle: {pre_stop: 0s}
pipelines:
  add_sub:
    steps:
      sum: {model: numbers, inputs: {INPUT0: request.INPUT0, INPUT1: request.INPUT1}}
      difference: {model: numbers, inputs: {INPUT0: request.INPUT0, INPUT1: request.INPUT1}}
    outputs: {OUTPUT0: sum.OUTPUT0, OUTPUT1: difference.OUTPUT1}
  add_sub_string:
    steps:
      both: {model: texts, inputs: {INPUT0: request.INPUT0, INPUT1: request.INPUT1}}
    outputs: {OUTPUT0: both.OUTPUT0, OUTPUT1: both.OUTPUT1}
"""
IN_PROCESS = """
models:
  numbers: {backend: python, options: {callable: "gateway.backends.examples:simple"}}
  texts: {backend: python, options: {callable: "gateway.backends.examples:simple_string"}}
"""
BEHIND = """
upstreams:
  triton: {url: "oip+%s://%s"}
routes:
  - {match: {model: add_sub}, targets: [{model: add_sub}]}
  - {match: {model: add_sub_string}, targets: [{model: add_sub_string}]}
  - {match: {model: numbers}, targets: [{upstream: triton, model: add_sub}]}
  - {match: {model: texts}, targets: [{upstream: triton, model: add_sub_string}]}
"""

# Every form in which tritonclient asks for a sum and a difference, and what it asks of a model.
OF_A_MODEL = (
    *(
        f"add_sub_{form}_{other}_out"
        for form, other in (("binary_in", "json"), ("json_in", "binary"))
    ),
    *("add_sub_binary_both", "add_sub_json_both", "add_sub_no_outputs_named"),
    *("add_sub_string", "add_sub_string_json"),
    *(
        f"{kind}_{way}"
        for kind in ("gzip", "deflate")
        for way in ("request", "response", "both_json")
    ),
    *("model_ready", "model_metadata", "one_output", "outputs_swapped", "request_id", "at_once"),
    "unknown_output",  # of an unknown version the gateway speaks in its own words
)


def check(client: Client, script: str, config: Path) -> None:
    """Run the checks of a script against a gateway of *config*."""
    with serving(str(config)) as gateway:
        name = "main.http" if script.endswith("_http") else "main.grpc"
        seen = client.checks(script, gateway.addresses[name], *OF_A_MODEL)
    assert set(OF_A_MODEL) == set(seen)
    assert {} == problems(seen, script)


@pytest.mark.parametrize("script", SCRIPT_WORDS)
def test_tritonclient_infers_with_pipelines(client: Client, tmp_path: Path, script: str) -> None:
    """JSON, binary tensors, compression, outputs, ids and text work as for a model."""
    config = tmp_path / "gateway.yaml"
    config.write_text(PIPELINES + IN_PROCESS)
    check(client, script, config)


@pytest.mark.parametrize("carrier", ["grpc", "http"])
@pytest.mark.parametrize("script", ["tritonclient_http", "tritonclient_grpc"])
def test_pipelines_with_steps_on_triton(
    client: Client, triton_server: RunningServer, tmp_path: Path, script: str, carrier: str
) -> None:
    """The steps are models of Triton under other names."""
    places = {"grpc": triton_server.grpc_address, "http": triton_server.http_address}
    config = tmp_path / "gateway.yaml"
    config.write_text(PIPELINES + BEHIND % (carrier, places[carrier]))
    check(client, script, config)
