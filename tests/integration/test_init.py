"""`gateway init` against a running gateway in every protocol, and for model files."""

from __future__ import annotations

import asyncio
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner, Result

from gateway.cli.commands import command_line
from gateway.cli.demo.config import demo_config
from tests.integration.asking_kit import ask, running, urls

pytestmark = pytest.mark.timeout(60)

DIGITS = str(files("gateway.cli.demo") / "models" / "digits")
PIXELS = np.arange(64, dtype=np.float32).reshape(1, 64) % 17


def command(*arguments: str) -> Result:
    return CliRunner().invoke(command_line(arguments[:1]), list(arguments))


@pytest.mark.parametrize(
    "protocol",
    [
        "oip.http",
        "oip.grpc",
        "trtis.http",
        "trtis.grpc",
        "grps.http",
        "grps.grpc",
        "graphpipe.http",
    ],
)
async def test_file_from_a_running_server_is_valid_and_serves_it(
    protocol: str, tmp_path: Path
) -> None:
    """`validate` and a gateway accept the file, and calls reach the server through it."""
    config = demo_config(http="127.0.0.1:0", grpc="127.0.0.1:0", admin="off")
    config["listeners"][0]["options"] = {"oip": {"repository_index": "true"}}
    out = tmp_path / "gateway.yaml"
    async with running(yaml.safe_dump(config)) as server:
        url = urls(server, "digits")[protocol]
        flags = ("--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--admin", "off", "-o", str(out))
        result = await asyncio.to_thread(command, "init", "--from", url, *flags)
        assert result.exit_code == 0, result.output
        assert result.stdout.endswith(f"{out} written; next: gateway serve {out}\n")
        text = out.read_text()
        assert "digits" in text
        assert "X FP32[-1, 64] -> label INT64" in text
        validated = await asyncio.to_thread(command, "validate", str(out))
        assert validated.stdout == "ok\n"
        async with running(text) as gateway:
            found = await ask(urls(gateway, "digits")["oip.http"], "digits", {"X": PIXELS})
    assert sorted(found) == ["label", "probabilities"]


def test_model_files_become_models(tmp_path: Path) -> None:
    """A folder with versions and a file are accepted; without `-o` the text is printed."""
    file = f"{DIGITS}/1/model.onnx"
    result = command("init", "--model", f"digits={DIGITS}", "--model", f"one={file}")
    assert result.exit_code == 0, result.output
    config = yaml.safe_load(result.stdout)
    assert config["models"] == {
        "digits": {"backend": "onnx", "path": DIGITS},
        "one": {"backend": "onnx", "path": file},
    }


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        ((), 2, "nothing to serve; expected --from URL"),
        (("--upstream", "triton:8001"), 2, "triton:8001"),
        (("--model", "digits"), 2, "--model is 'digits'; expected NAME=PATH"),
        (("--model", "digits=/nothing"), 2, "/nothing is not a model"),
        (("--from", "oip+http://127.0.0.1:1"), 1, "127.0.0.1:1"),
        (
            ("--upstream", "oip+http://a:1", "--http", "off", "--grpc", "off"),
            2,
            "nothing to listen",
        ),
    ],
)
def test_init_errors_have_a_status_and_no_traceback(
    arguments: tuple[str, ...], status: int, text: str
) -> None:
    """Wrong flags have status 2, and an unreachable server has status 1."""
    result = command("init", *arguments)
    assert (result.exit_code, text in result.output) == (status, True), result.output
    assert "Traceback" not in result.output


def test_existing_file_is_not_overwritten(tmp_path: Path) -> None:
    """The user's file stays unchanged, and the status is 1."""
    out = tmp_path / "gateway.yaml"
    out.write_text("mine")
    result = command("init", "--upstream", "oip+http://a:1", "-o", str(out))
    assert (result.exit_code, out.read_text()) == (1, "mine")
    assert "exists; remove it" in result.output
