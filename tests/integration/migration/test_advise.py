"""`gateway advise` for the clients of a running gateway; its curl commands run."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.migration.callers.advice import CURL, GRPC_CLIENT, HTTP_CLIENT
from tests.integration.cli_kit import Running
from tests.integration.migration.advice_kit import advise, called_gateway, code_of, servers_of

pytestmark = pytest.mark.timeout(90)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with called_gateway(tmp_path_factory.mktemp("state") / "state") as found:
        yield found


def test_advice_names_caller_library_and_changes(running: Running) -> None:
    """The text names the caller, its protocol, the library and the changes."""
    result = advise("digits", running.addresses["admin"], *servers_of(running))
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    callers = sorted(line.split(", ")[0] for line in lines if ", digits" in line)
    assert callers == ["127.0.0.1: grps.http", "127.0.0.1: trtis.http"]
    assert "tritonclient[http] instead of tensorrtserver (ProtocolType.HTTP)" in result.stdout
    assert "  change   it pins version 1; without a version it gets the newest one" in lines
    assert f"# The same call with {HTTP_CLIENT}:" in lines


def test_advised_curl_commands_succeed(running: Running) -> None:
    """The shell runs the advised commands unchanged against the gateway."""
    assert shutil.which("curl"), "curl is a part of every development machine"
    found = code_of(running)
    libraries = [CURL, HTTP_CLIENT, GRPC_CLIENT]
    assert list(found) == [(model, each) for model in ("digits", "language") for each in libraries]
    for (model, library), code in found.items():
        if library == CURL:
            done = subprocess.run(
                ["sh", "-c", code], check=False, capture_output=True, text=True, timeout=20
            )
            assert done.returncode == 0, done.stderr + done.stdout
            assert json.loads(done.stdout)["model_name"] == model


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (("nothing",), 1, "the stock has no client of model 'nothing'"),
        (("digits", "--to", "trtis+http://new:8000"), 2, "expected oip+http://HOST:PORT"),
        (("digits", "--to", "new"), 2, "new"),
        (("digits", "--to", "oip+http://127.0.0.1:1"), 1, "127.0.0.1:1"),
    ],
)
def test_errors_are_one_line(
    running: Running, arguments: tuple[str, ...], status: int, text: str
) -> None:
    """Each error is one line with what is expected."""
    model, *flags = arguments
    result = advise(model, running.addresses["admin"], *flags)
    assert (result.exit_code, text in result.output) == (status, True), result.output


def test_an_empty_state_directory_has_no_client(tmp_path: Path) -> None:
    """The stock is read from a directory, too."""
    result = advise("digits", str(tmp_path))
    assert (result.exit_code, "no client of model" in result.output) == (1, True)


SIGNATURE = """
inputs: [{name: X, datatype: FP32, shape: [-1, 64]}]
outputs: [{name: label, datatype: INT64, shape: [-1]}]
max_batch_size: 8
"""


def test_advice_needs_no_running_server(tmp_path: Path) -> None:
    """A state directory and a signature suffice; the code uses the model name of `--as`."""
    state, file = tmp_path / "state", tmp_path / "digits.yaml"
    file.write_text(SIGNATURE)
    with called_gateway(state):
        pass
    flags = ("--to", "oip+http://new:8000", "--to", "oip+grpc://new:8001", "--as", "numbers")
    result = advise("digits", str(state), *flags, "--signature", str(file), "--output", "json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert sorted(each["protocol"] for each in found["callers"]) == ["grps.http", "trtis.http"]
    assert list(found["code"]) == [CURL, HTTP_CLIENT, GRPC_CLIENT]
    for code in found["code"].values():
        assert "numbers" in code
    assert "triton.InferInput('X', [1, 64], 'FP32')" in found["code"][GRPC_CLIENT]
    file.write_text("models: {other: {signature: {max_batch_size: 1}}}")
    result = advise("digits", str(state), "--signature", str(file))
    assert (result.exit_code, "no inputs and outputs of model 'digits'" in result.output) == (
        2,
        True,
    )
