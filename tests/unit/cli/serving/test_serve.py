"""Wrong usage of `gateway serve`: errors before the start."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from gateway.cli.commands import command_line

CONFIG = Path(__file__).parents[4] / "config"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "expected exactly one of CONFIG.yaml"),
        (["--demo", "--upstream", "grpc://h"], "expected exactly one of CONFIG.yaml"),
        (["--demo", "--default-model", "m"], "--default-model is not allowed with --demo"),
        (["--upstream", "h:1"], "'h:1' is not an upstream URL"),
        (["--upstream", "nonsense+http://h"], "nonsense"),
        (["--upstream", "grpc://h", "--http", "x"], "'x' is not an address"),
        (["--demo", "--http", "off", "--grpc", "off"], "leave nothing to listen on"),
        (["none.yaml"], "none.yaml"),
        ([str(CONFIG / "demo.yaml"), "--http", "0"], "--http is not allowed with CONFIG.yaml"),
    ],
)
def test_wrong_usage_exits_with_status_2(arguments: list[str], message: str) -> None:
    """The error is printed before anything starts."""
    result = CliRunner().invoke(command_line(["serve"]), ["serve", *arguments])
    assert (2, "") == (result.exit_code, result.stdout)
    assert message in result.stderr
