"""Large binary tensors of a real client, forwarded to a real server while they arrive."""

import json
from pathlib import Path

import pytest

from tests.integration.cli_kit import get
from tests.interop.client import SCRIPTS, Client
from tests.interop.gateways import serving
from tests.interop.servers.process import RunningServer

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]


@pytest.mark.parametrize("carrier", ["http", "grpc"])
def test_large_tensors_round_trip(
    carrier: str, client: Client, triton_server: RunningServer
) -> None:
    """Up to 16 MB pass through the gateway and Triton exactly, over either carrier."""
    address = triton_server.grpc_address if carrier == "grpc" else triton_server.http_address
    free = ("--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--admin", "127.0.0.1:0")
    with serving("--upstream", f"oip+{carrier}://{address}", *free) as gateway:
        seen = client.run(SCRIPTS / "large.py", gateway.addresses["main.http"])
    assert {"1000": True, "300000": True, "4000000": True} == seen


@pytest.mark.parametrize("carrier", ["http", "grpc"])
def test_large_tensors_are_handed_over_in_shared_memory(
    carrier: str, client: Client, triton_server: RunningServer, tmp_path: Path
) -> None:
    """They are exact before Triton has the region and after, and clients do not see the region."""
    address = triton_server.grpc_address if carrier == "grpc" else triton_server.http_address
    upstream = {"url": f"oip+{carrier}://{address}", "hand_over": "auto"}
    listener = {"http": "127.0.0.1:0", "shared_memory": {"mode": "forward", "keys": ["*"]}}
    config = {
        "version": 1,
        "listeners": [listener],
        "admin": {"address": "127.0.0.1:0"},
        "upstreams": {"t": upstream},
        "routes": [{"name": "all", "match": {"model": "*"}, "targets": [{"upstream": "t"}]}],
    }
    path = tmp_path / "gateway.yaml"
    path.write_text(json.dumps(config))
    with serving(str(path)) as gateway:
        for _ in range(2):
            seen = client.run(SCRIPTS / "large.py", gateway.addresses["main.http"])
            assert {"1000": True, "300000": True, "4000000": True} == seen
        (found,) = get(gateway.url("/status", "admin"))[1]["upstreams"]
        assert "on" == found["endpoints"][0]["hand_over"]
        assert (200, []) == get(gateway.url("/v2/systemsharedmemory/status"))
        listed = get(f"http://{triton_server.http_address}/v2/systemsharedmemory/status")[1]
        assert 1 == len([each for each in listed if each["name"].startswith("tensor-gateway-")])
        assert (200, None) == get(gateway.url("/v2/systemsharedmemory/unregister"), {})
        assert listed == get(f"http://{triton_server.http_address}/v2/systemsharedmemory/status")[1]
        gateway.stop()
    listed = get(f"http://{triton_server.http_address}/v2/systemsharedmemory/status")[1]
    assert [] == [each for each in listed if each["name"].startswith("tensor-gateway-")]
