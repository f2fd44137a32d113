"""`gateway stock` against a running gateway and its state directory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from gateway.cli.commands import command_line
from gateway.cli.configuration import load_checked_mapping
from gateway.cli.demo.config import demo_config
from gateway.config.load import ConfigError
from tests.integration.cli_kit import gateway, serving

pytestmark = pytest.mark.timeout(90)


def stock(*arguments: str) -> Result:
    return CliRunner().invoke(command_line(["stock"]), ["stock", *arguments])


def test_stock_lists_callers(tmp_path: Path) -> None:
    """A call is listed with client and inputs from the admin port and from the directory."""
    state = tmp_path / "state"
    addresses = ("--http", "127.0.0.1:0", "--grpc", "off", "--admin", "127.0.0.1:0")
    with serving("--demo", *addresses, "--stock", str(state)) as running:
        url = f"oip+http://{running.addresses['main.http']}"
        assert gateway("infer", url, "language", "-i", 'text=["hello"]').returncode == 0
        live = stock(running.addresses["admin"], "--output", "json")
        assert live.exit_code == 0, live.output
        running.stop()
    rows = json.loads(stock(str(state), "--output", "json").stdout)
    assert [(row["client"], row["protocol"], row["model"]) for row in rows] == [
        ("127.0.0.1", "oip.http", "language")
    ]
    assert (rows[0]["calls"], rows[0]["errors"], rows[0]["inputs"]) == (1, 0, "text BYTES[1]")
    text = stock(str(state), "--since", "30d").stdout
    assert "language" in text
    assert text.startswith("client")
    assert stock(str(state), "--since", "soon").exit_code == 2
    assert stock("127.0.0.1:1").exit_code == 1


def test_gateway_without_stock_names_the_keys(tmp_path: Path) -> None:
    """The error names the keys."""
    config = demo_config(http="127.0.0.1:0", grpc="off", admin="127.0.0.1:0")
    path = tmp_path / "gateway.yaml"
    path.write_text(yaml.safe_dump(config))
    with serving(str(path)) as running:
        result = stock(running.addresses["admin"])
    assert (result.exit_code, "expected 'stock: {}' and 'state'" in result.output) == (1, True)


def test_stock_needs_a_state_directory() -> None:
    """The configuration is rejected without `state`."""
    with pytest.raises(ConfigError, match="needs 'state"):
        load_checked_mapping({**demo_config(), "stock": {}})
