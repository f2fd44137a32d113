"""Harmful requests, through gateways of five configurations before three real servers.

Each configuration runs all cases of `shield_cases` in sequence: every case has a reply, exposes
nothing, and leaves the server as it was. A bystander sends requests all the time.
"""

from __future__ import annotations

import http.client
import re
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from tests.integration.cli_kit import Running
from tests.interop import shield_cases
from tests.interop.attacks import MOST_WAIT_S, await_ready
from tests.interop.gateways import make, serving
from tests.interop.sacrifice import (
    Bystander,
    Innocent,
    Sacrifice,
    bystander,
)
from tests.interop.servers.kserve import start as kserve
from tests.interop.servers.mlserver import start as mlserver
from tests.interop.servers.triton import start as triton
from tests.interop.shield_cases import Case, Model
from tests.scheduling import delayed_s

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600), pytest.mark.flaky(reruns=1)]

SEGMENTS = Path("/dev/shm")  # noqa: S108  # where Linux keeps POSIX segments
DEFAULT_SEGMENT = "triton_python_backend_shm_region_1"
QUIET_S = 1.0

CONFIGURATION = """
version: 1
listeners:
  - http: "127.0.0.1:0"
    grpc: "127.0.0.1:0"
    {listener}
admin: {{address: "127.0.0.1:0", metrics: null}}
upstreams: {{server: {{url: "oip+{carrier}://{address}"}}}}
lifecycle: {{pre_stop: 0s}}
"""
QUESTIONS = "model_configuration: true, statistics: target, repository_index: true, trace: read, logging: read"
ALL = (
    'shared_memory: {mode: forward, keys: "shield-*"}\n    options: {oip: {model_control: true, '
    "model_config: limited, opaque: true, model_configuration: true, statistics: target, "
    "repository_index: true, trace: true, logging: target}}"
)
CONFIGURATIONS = {
    "grpc": ("grpc", f"options: {{oip: {{{QUESTIONS}}}}}"),
    "http": ("http", f"passthrough: server\n    options: {{oip: {{{QUESTIONS}}}}}"),
    "all": ("grpc", ALL),
    "map": ("grpc", "shared_memory: map"),
    "model control": ("http", "options: {oip: {model_control: true}}"),
}
"""Carrier to the server, and members of the listener; the first two are those of a sidecar."""

SERVERS = {
    "triton": (triton.prepare_sacrificial, Innocent("identity_fp32", "FP32", (1, 4))),
    "mlserver": (mlserver.prepare_sacrificial, Innocent("identity_fp32", "FP32", (1, 4))),
    "kserve": (kserve.prepare, Innocent("identity_int32", "INT32", (4,))),
}


IS_NATIVE = make() == "native"
"""The reference transports have the same codecs and policies: Triton and both carriers suffice."""


@pytest.fixture(scope="module", params=SERVERS if IS_NATIVE else ["triton"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Sacrifice]]:
    """Run each real server, which nothing may hurt; its name is with it."""
    prepare, innocent = SERVERS[request.param]
    folder = tmp_path_factory.mktemp(f"suite-{request.param}")
    sacrifice = Sacrifice(request.param, prepare, folder, innocent)
    yield request.param, sacrifice
    sacrifice.close()


@pytest.mark.parametrize("configuration", CONFIGURATIONS if IS_NATIVE else ["grpc", "http"])
def test_no_harmful_request_reaches_the_server(
    server: tuple[str, Sacrifice], configuration: str, tmp_path: Path
) -> None:
    """No case ends, blocks, takes over or leaks the server, and other clients do not wait."""
    name, sacrifice = server
    sacrifice.revive()
    carrier, listener = CONFIGURATIONS[configuration]
    running = sacrifice.server
    address = running.address(carrier)
    file = tmp_path / "gateway.yaml"
    file.write_text(CONFIGURATION.format(carrier=carrier, address=address, listener=listener))
    marker = tmp_path / "taken-over"
    # `map` knows the names of Triton's segments only if they begin as Triton's do by default.
    own = DEFAULT_SEGMENT if configuration == "map" else ""
    cases = list(_cases(name, sacrifice, marker, own))
    assert len({case.name for case in cases}) == len(cases)
    problems: list[str] = []
    with serving(str(file)) as gateway:
        await_ready(gateway, sacrifice.innocent)
        # `_problem` subtracts the time for which the processes had no processor.
        with bystander(sacrifice.innocent.by_http, gateway.addresses["main.http"]) as seen:
            time.sleep(QUIET_S)
            # A busy machine lets everybody wait, and aiohttp reads small chunks in one turn.
            most_s = max(MOST_WAIT_S * (1 if IS_NATIVE else 3), 10 * seen.worst_s)
            for case in cases:
                found = _problem(case, sacrifice, gateway, seen, most_s)
                if found:
                    problems.append(f"{case.name}: {found}")
                    sacrifice.revive()
                    await_ready(gateway, sacrifice.innocent)
        assert gateway.process.poll() is None
    assert [] == problems, "\n".join(problems)
    assert not marker.exists()
    assert not sacrifice.is_hurt()


def _cases(name: str, sacrifice: Sacrifice, marker: Path, own: str) -> Iterator[Case]:
    innocent = sacrifice.innocent
    model = Model(innocent.name, innocent.datatype, innocent.shape)
    if name != "triton":
        return shield_cases.python_servers(model)
    own = own or _own_segments(sacrifice)[0]
    return shield_cases.triton(model, own, str(marker))


def _own_segments(sacrifice: Sacrifice) -> list[str]:
    """Return the names of the segments that Triton shares with its own processes."""
    port = sacrifice.server.http_address.rpartition(":")[2]
    return [path.name for path in SEGMENTS.glob(f"interop{port}*")]


def _problem(
    case: Case, sacrifice: Sacrifice, gateway: Running, seen: Bystander, most_s: float
) -> str:
    """Send a case; return a description of the failure, or "". A slow case is sent once more.

    Time in which other processes of the machine had the CPU does not count.
    """
    found = ""
    addresses = gateway.addresses["main.http"], gateway.addresses["main.grpc"]
    processes = gateway.process.pid, sacrifice.server.process.pid
    for _ in range(2):
        seen.worst_s = 0.0
        seen.failures.clear()
        others_s = -delayed_s(*processes)
        reply = case.send(*addresses)
        found = case.problem(reply)
        if not case.names:
            found = found or _leak(reply[1], sacrifice)
        if not found and seen.failures:
            found = f"others failed: {seen.failures[0]}"
        if not found:
            found = _innocent(sacrifice, addresses)
        others_s += delayed_s(*processes)
        if found or seen.worst_s - others_s <= most_s:
            return found
        found = f"others waited {seen.worst_s:.1f} s, {others_s:.1f} s of it without a CPU"
    return found


def _innocent(sacrifice: Sacrifice, addresses: tuple[str, str]) -> str:
    """Return the failure of the server after a case, or ""."""
    try:
        sacrifice.innocent.by_http(addresses[0])
        sacrifice.innocent.by_grpc(addresses[1])
    except (AssertionError, OSError, http.client.HTTPException, grpc.RpcError) as error:
        return f"the next call: {error!r}"
    return "" if sacrifice.server.process.poll() is None else "the server has ended"


def _leak(text: str, sacrifice: Sacrifice) -> str:
    """Return the details of the server that a response exposes, or ""."""
    server = sacrifice.server
    secrets = [server.grpc_address, server.http_address, "Traceback", "triton_python_backend_shm"]
    port = server.http_address.rpartition(":")[2]
    found = [each for each in (*secrets, f"interop{port}") if each in text]
    found += re.findall(r'File "[^"]*"|/dev/shm/\w+|/[\w./-]+\.py\b', text)
    return f"the response has {found}: {text[:200]}" if found else ""
