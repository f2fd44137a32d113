"""Gateways of the make of transports that INTEROP_TRANSPORT names: native by default.

Whatever a test starts a gateway with, a file or flags, all its listeners and upstreams are given that
make, unless they name one themselves.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.cli.serving.sidecar import sidecar_config
from tests.integration import cli_kit
from tests.integration.cli_kit import Running
from tests.interop.servers.process import RunningServer

MAKES = ("native", "reference")
CARRIERS = ("grpc", "http")
FREE_PORTS = ("--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--admin", "127.0.0.1:0")


def make() -> str:
    """Return the make of this run."""
    found = os.environ.get("INTEROP_TRANSPORT") or "native"
    assert found in MAKES, f"INTEROP_TRANSPORT is {found!r}, not one of {MAKES}"
    return found


ONCE = pytest.mark.skipif(make() != "native", reason="no transport of the gateway decides this")
"""Of tests that run with the native transports alone."""


@contextmanager
def serving(*arguments: str, patience_s: float = cli_kit.START_S) -> Iterator[Running]:
    """Run `gateway serve` with *arguments*, as `cli_kit.serving`, on the make of this run."""
    file = len(arguments) == 1 and not arguments[0].startswith("-")
    config = yaml.safe_load(Path(arguments[0]).read_text()) if file else _of_flags(arguments)
    for part in (*config["listeners"], *(config.get("upstreams") or {}).values()):
        part.setdefault("transport", make())
    # Beside the file: what it names is relative to it.
    folder = Path(arguments[0]).parent if file else None
    with tempfile.NamedTemporaryFile("w", suffix=".yaml", dir=folder) as written:
        yaml.safe_dump(config, written, sort_keys=False)
        written.flush()
        with cli_kit.serving(written.name, patience_s=patience_s) as running:
            yield running


@contextmanager
def gateway_before(server: RunningServer, carrier: str, *flags: str) -> Iterator[Running]:
    """Run a gateway before *server*, as its users do: with a flag for the upstream, and *flags*."""
    upstream = f"oip+{carrier}://{server.address(carrier)}"
    with serving("--upstream", upstream, *FREE_PORTS, *flags) as running:
        yield running


@contextmanager
def gateways_before(server: RunningServer) -> Iterator[dict[str, Running]]:
    """Run a gateway without other flags before *server* for each carrier."""
    with ExitStack() as stack:
        yield {each: stack.enter_context(gateway_before(server, each)) for each in CARRIERS}


def _of_flags(arguments: Sequence[str]) -> dict[str, Any]:
    """Return the configuration that flags of a sidecar stand for, as the command line has it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--upstream", action="append", default=[])
    parser.add_argument("--enable", action="append", default=[])
    parser.add_argument("--no-passthrough", dest="passthrough", action="store_false")
    for name in ("http", "grpc", "graphpipe-tcp", "graphpipe-unix", "brpc", "admin"):
        parser.add_argument(f"--{name}")
    parser.add_argument("--default-model")
    parser.add_argument("--identity")
    parser.add_argument("--timeout")
    flags = vars(parser.parse_args(arguments))
    return sidecar_config(flags.pop("upstream"), **flags)
