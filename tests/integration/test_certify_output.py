"""`gateway certify`: client protocols before a server, two servers, and the forms of the output."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tests.integration.certify_kit import tried_lines
from tests.integration.cli_kit import Running, gateway, serving

CONFIG = """
version: 1
listeners:
  - http: "127.0.0.1:0"
    grpc: "127.0.0.1:0"
    options: {oip: {repository_index: true, model_configuration: true}}
lifecycle: {pre_stop: 0s, drain: 1s}
models:
  simple: {backend: python, options: {callable: "gateway.backends.examples:simple"}}
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server of Open Inference with one model."""
    path = tmp_path_factory.mktemp("certify") / "gateway.yaml"
    path.write_text(CONFIG)
    with serving(str(path)) as running:
        yield running


@pytest.mark.skipif(shutil.which("curl") is None, reason="runs the lines with curl")
def test_lines_of_clients_succeed_where_the_table_has_no_refusal(server: Running) -> None:
    """Each line, run before a sidecar, succeeds just where the client protocol works."""
    tried = tried_lines(f"grpc://{server.addresses['main.grpc']}", "simple")
    assert {"works", "loses", "refused"} == set(tried)
    assert len(tried) > 12


def test_two_servers_are_compared(server: Running, tmp_path: Path) -> None:
    """A server and itself over another carrier answer the rules alike, in every form."""
    urls = (f"http://{server.addresses['main.http']}", f"grpc://{server.addresses['main.grpc']}")
    page = tmp_path / "page.html"
    flags = ("--only", "health", "--only", "metadata", "--report", str(page))
    text = gateway("certify", urls[0], "--against", urls[1], *flags)
    assert (0, "") == (text.returncode, text.stderr)
    assert text.stdout.endswith("\nThe servers answer the rules alike.\n")
    assert "The servers answer the rules alike." in page.read_text()
    junit = gateway("certify", urls[0], "--against", urls[1], *flags, "-o", "junit")
    suites = ET.fromstring(junit.stdout)  # noqa: S314  # our own
    assert ["0", "0", "0"] == [suite.get("failures") for suite in suites]
    again = gateway("certify", urls[0], "--against", urls[1], *flags, "-o", "junit")
    assert junit.stdout == again.stdout


def test_a_model_that_its_server_does_not_describe_is_tried_with_a_file(
    server: Running, tmp_path: Path
) -> None:
    """Without a file each cell names the key; with one it says what comes of that key."""
    values = [{"datatype": "INT32", "shape": [16], "data": [0] * 16}] * 2
    inputs, outputs = (
        [{"name": f"{kind}{place}", **each} for place, each in enumerate(values)]
        for kind in ("INPUT", "OUTPUT")
    )
    file = tmp_path / "simple.json"
    file.write_text(json.dumps({"inputs": inputs, "outputs": outputs}))
    command = ("certify", "--upstream", f"torchserve+http://{server.addresses['main.http']}")
    unknown, known = (
        {each["protocol"]: each for each in json.loads(found.stdout)["pairs"]}
        for found in (
            gateway(*command, "--model", "simple", "-o", "json", *flags)
            for flags in ((), ("--expect", str(file)))
        )
    )
    key = "models.NAME.signature"
    assert {key} == {each["key"] for each in unknown.values()}
    assert {"torchserve+http"} == known.keys() - unknown.keys()
    # The messages of TorchServe's own clients pass as they are.
    assert ("works", "") == (known["torchserve+http"]["verdict"], known["torchserve+http"]["key"])
    assert ("refused", key) == (known["oip+grpc"]["verdict"], known["oip+grpc"]["key"])
    assert 1 == len(known["oip+grpc"]["what"]), known["oip+grpc"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((), "expected URL, URL --against URL, or --upstream URL"),
        (("grpc://a:1", "--upstream", "grpc://a:1"), "expected URL, URL --against URL"),
        (("--upstream", "grpc://a:1", "--against", "grpc://a:1"), "expected URL, URL --against"),
        (("--upstream", "grpc://a:1", "--only", "infer"), "--upstream asks no rules"),
        (("--upstream", "grpc://a:1", "--model", "m", "--expect", "sum"), "sum has no inputs"),
        (("--upstream", "grpc://127.0.0.1:1"), "cannot connect to 127.0.0.1:1"),
        (("--upstream", "nothing+grpc://127.0.0.1:1"), "unknown protocol 'nothing'"),
    ],
)
def test_wrong_usage_has_its_reason(arguments: tuple[str, ...], text: str) -> None:
    """Wrong usage and a server that cannot be reached end with status 2."""
    found = gateway("certify", *arguments)
    assert (2, "") == (found.returncode, found.stdout)
    assert text in found.stderr
