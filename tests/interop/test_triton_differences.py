"""The page of differences between Triton and a sidecar in front of it is complete and current."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.cli_kit import Running
from tests.interop.gateways import gateway_before, serving
from tests.interop.servers.process import RunningServer
from tests.interop.test_extensions import BEFORE_TRITON
from tests.interop.triton_probes import probe_all
from tests.interop.triton_requests import Outcome

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

PAGE = Path(__file__).parents[2] / "docs" / "triton-differences.md"
OTHER_WORDS = "## Same status, other words"
SIDECARS = ("default http", "default grpc", "all http", "all grpc")
WHERE = {
    "every": SIDECARS,
    "default": ("default http", "default grpc"),
    "HTTP upstream": ("default http", "all http"),
    "gRPC upstream": ("default grpc", "all grpc"),
    "all, and gRPC upstream": ("default grpc", "all http", "all grpc"),
    "default, and all with a gRPC upstream": ("default http", "default grpc", "all grpc"),
    "default, and all with an HTTP upstream": ("default http", "default grpc", "all http"),
}
"""The sidecars of each text in the second column of the page."""


def listed(section: str) -> dict[str, set[str]]:
    """Return the requests that a part of the page lists, by sidecar."""
    found: dict[str, set[str]] = {sidecar: set() for sidecar in SIDECARS}
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith("| ") and cells[-1].startswith("`"):
            for sidecar in WHERE[cells[1]]:
                found[sidecar] |= set(re.findall(r"`(\w+)`", cells[2]))
    return found


@pytest.fixture(scope="module")
def direct(bare_triton: RunningServer) -> dict[str, Outcome]:
    """Send all requests to Triton itself."""
    return probe_all(bare_triton.http_address, bare_triton.grpc_address)


@pytest.fixture(scope="module", params=SIDECARS)
def sidecar(
    request: pytest.FixtureRequest,
    triton_server: RunningServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[str, Running]]:
    """Run one sidecar in front of Triton; its name is with it."""
    kind, carrier = request.param.split()
    if kind == "default":
        with gateway_before(triton_server, carrier) as gateway:
            yield request.param, gateway
        return
    file = tmp_path_factory.mktemp("all") / "gateway.yaml"
    file.write_text(BEFORE_TRITON.format(carrier=carrier, address=triton_server.address(carrier)))
    with serving(str(file)) as gateway:
        yield request.param, gateway


def test_the_page_lists_every_difference(
    direct: dict[str, Outcome], sidecar: tuple[str, Running]
) -> None:
    """It lists no other ones; where it promises the same status, the status is the same."""
    name, gateway = sidecar
    seen = probe_all(gateway.addresses["main.http"], gateway.addresses["main.grpc"])
    page = PAGE.read_text()
    different = {each for each, found in seen.items() if found != direct[each]}
    assert listed(page)[name] == different, {
        each: (direct[each], seen[each]) for each in listed(page)[name] ^ different
    }
    words = listed(page[page.index(OTHER_WORDS) :])[name]
    assert [] == [each for each in words if seen[each][0] != direct[each][0]]
