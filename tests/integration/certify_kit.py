"""The lines of clients that `gateway certify --upstream` prints, run before a sidecar."""

from __future__ import annotations

import json
import shlex
import subprocess

from tests.integration.cli_kit import gateway, serving

ADDRESSES = ("--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--brpc", "127.0.0.1:0")


def tried_lines(upstream: str, *models: str) -> list[str]:
    """Run the line of each pair before a sidecar; return the verdicts of those that were run.

    Raises:
        AssertionError: A line succeeds where the table has a refusal, or fails where it has none.
    """
    names = [word for model in models for word in ("--model", model)]
    found = json.loads(gateway("certify", "--upstream", upstream, *names, "-o", "json").stdout)
    assert set(models) == {pair["model"] for pair in found["pairs"]}
    tried: list[str] = []
    with serving("--upstream", upstream, *ADDRESSES, "--admin", "off") as sidecar:
        # A page of metrics is no listener; it is there where its default port is free.
        listeners = {name: text for name, text in sidecar.addresses.items() if "." in name}
        addresses = {name.split(".")[1]: text for name, text in listeners.items()}
        addresses["brpc"] = addresses.pop("grps")
        for pair in found["pairs"]:
            carrier = pair["protocol"].partition("+")[2]
            if not pair["request"] or carrier not in addresses:
                continue
            line = pair["request"]
            for default in ("127.0.0.1:8000", "127.0.0.1:8001", "127.0.0.1:18002"):
                line = line.replace(default, addresses[carrier])
            assert (_run(line) == 0) is (pair["verdict"] != "refused"), pair
            tried.append(pair["verdict"])
    return tried


def _run(line: str) -> int:
    """Return the exit status of a line."""
    if line.startswith("gateway"):
        return gateway(*shlex.split(line)[1:]).returncode
    script = ["bash", "-c", line]
    return subprocess.run(script, check=False, capture_output=True, timeout=60).returncode
