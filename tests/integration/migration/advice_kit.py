"""A gateway whose stock has clients of several protocols, and the advice for each of its models."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from typer.testing import CliRunner, Result

from gateway.cli.commands import command_line
from tests.integration.cli_kit import Running, gateway, serving

PIXELS = json.dumps([[0.0] * 64])


def advise(*arguments: str) -> Result:
    return CliRunner().invoke(command_line(["advise"]), ["advise", *arguments])


@contextmanager
def called_gateway(state: Path) -> Iterator[Running]:
    """Serve the demo models, which clients of two protocols have called."""
    addresses = ("--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--admin", "127.0.0.1:0")
    with serving("--demo", *addresses, "--stock", str(state)) as running:
        http = running.addresses["main.http"]
        for url in (f"trtis+http://{http}", f"grps+http://{http}"):
            done = gateway("infer", url, "digits", "-i", f"X={PIXELS}", "--version", "1")
            assert done.returncode == 0, done.stderr
        assert (
            gateway("infer", f"oip+http://{http}", "language", "-i", 'text=["a"]').returncode == 0
        )
        running.stop()  # writes the counts
    with serving("--demo", *addresses, "--stock", str(state)) as running:
        yield running


def servers_of(running: Running) -> tuple[str, ...]:
    """Return the flags that name both addresses of the new server."""
    http, grpc = running.addresses["main.http"], running.addresses["main.grpc"]
    return ("--to", f"oip+http://{http}", "--to", f"oip+grpc://{grpc}")


def code_of(running: Running) -> dict[tuple[str, str], str]:
    """Return every snippet by model and library."""
    found = {}
    for model in ("digits", "language"):
        flags = (running.addresses["admin"], *servers_of(running), "--output", "json")
        result = advise(model, *flags)
        assert result.exit_code == 0, result.output
        for library, code in json.loads(result.stdout)["code"].items():
            found[model, library] = code
    return found
